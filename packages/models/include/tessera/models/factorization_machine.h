// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// The config of a FactorizationMachine layer.
struct FactorizationMachineOptions {
  /// If true, the first column of a row is the weight of its feature. If false, the layer
  /// computes only the pairs, and you can add weights from other tables.
  bool use_first_order = true;
  /// If true, the layer adds a learned constant to all scores.
  bool use_bias = true;

  bool operator==(const FactorizationMachineOptions&) const = default;

  TESSERA_FIELDS(use_first_order, use_bias)
};

// snippet: tests/docs/reference_models_test.cpp FactorizationMachineImpl
/// A factorization machine: a linear model with the dot products of all pairs of
/// features.
///
///   score = bias + sum_i w_i + sum_{i < j} dot(v_i, v_j)
///
/// A row of a table holds the weight w and, after it, the vector v, so that one lookup
/// gives both. The sum over pairs reads each feature once, with the sum of the
/// vectors before each feature:
///
///   sum_{i < j} dot(v_i, v_j) = sum_j dot(v_0 + ... + v_{j-1}, v_j)
///
///   torch::nn::Sequential model(
///       embedding,  // its tables have the dim 1 + 16
///       FactorizationMachine(FactorizationMachineOptions{.use_bias = true}));
///   const auto logits = model->forward(features);  // [batch, 1]
///
/// To add a number x as a feature, give all examples the same id with the weight x, and
/// use Combiner::kSum. A feature of several ids counts as one feature, so its ids form no
/// pairs with each other. The ids of a sequence feature do form pairs.
///
/// Parameters:  `bias` [1], 0 at first. The constructor creates it.
/// Shapes:  A leaf [batch, 1 + dim] is one feature, a leaf [batch, n, 1 + dim] is n
///          features. The nest may be a single tensor. Without first order, rows have the
///          width dim. The result is [batch, 1].
/// Errors:  c10::ValueError naming the path, for an empty nest and for different batch
///          sizes or dims, and for rows without a vector; c10::TypeError for different
///          dtypes or integers.
/// Source:  Rendle 2010, with degree 2.
/// Differs: the paper's (|sum_i v_i|² - sum_i |v_i|²) / 2 is a difference of squares, which
///          in float32 is 0 for the values 1e4 and 1e-4.
class FactorizationMachineImpl
    : public LayerImpl<FactorizationMachineImpl, FactorizationMachineOptions> {
 public:
  static constexpr const char* kClassName = "FactorizationMachine";

  explicit FactorizationMachineImpl(FactorizationMachineOptions options = {});

  at::Tensor forward(const Nest<at::Tensor>& features);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

  void reset() override;

 private:
  at::Tensor bias_;  // [1] or undefined
};

using FactorizationMachine = LayerHolder<FactorizationMachineImpl>;

}  // namespace tessera
