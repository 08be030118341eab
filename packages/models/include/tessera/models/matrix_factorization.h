// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// The config of a MatrixFactorization layer.
struct MatrixFactorizationOptions {
  /// The initial value of the parameter `global_mean`, such as the mean of all ratings.
  double global_mean = 0.0;
  /// If true, the first column of a row is the bias of its user or item.
  bool use_biases = true;

  bool operator==(const MatrixFactorizationOptions&) const = default;

  TESSERA_FIELDS(global_mean, use_biases)
};

// snippet: tests/docs/reference_models_test.cpp MatrixFactorizationImpl
/// Predicts the rating that a user gives to an item.
///
///   rating = global_mean + bias_user + bias_item + dot(factors_user, factors_item)
///
/// A row of a table holds the bias and, after it, the factors, so that one lookup gives
/// both.
///
///   const auto users =
///       make_table({.name = "users", .vocabulary_size = 1000, .dim = 1 + 16});
///   const auto movies =
///       make_table({.name = "movies", .vocabulary_size = 500, .dim = 1 + 16});
///   torch::nn::Sequential model(
///       TPUEmbedding(TPUEmbeddingOptions{
///           .features =
///               {{"user", FeatureConfig{.table = users}},
///                {"movie", FeatureConfig{.table = movies}}}}),
///       MatrixFactorization(MatrixFactorizationOptions{.global_mean = 3.5}));
///   const auto stars = model->forward(pairs);  // [batch, 1]
///
/// Parameters:  `global_mean` [1]. The constructor creates it.
/// Shapes:  two inputs, user and item, of the same shape [batch, ..., 1 + dim], or
///          [batch, ..., dim] without biases. The result is [batch, ..., 1].
/// Errors:  c10::ValueError unless there are two inputs of the same shape with one factor
///          or more; c10::TypeError for different dtypes or integers.
/// Source:  Koren, Bell, Volinsky 2009.
/// Differs: the mean is learned. To keep it, call
///          `global_mean.set_requires_grad(false)`. There is no regularizer: set
///          weight_decay_factor in the optimizer of the tables.
class MatrixFactorizationImpl
    : public LayerImpl<MatrixFactorizationImpl, MatrixFactorizationOptions> {
 public:
  static constexpr const char* kClassName = "MatrixFactorization";

  explicit MatrixFactorizationImpl(MatrixFactorizationOptions options = {});

  at::Tensor forward(const Nest<at::Tensor>& user_and_item);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

  void reset() override;

 private:
  at::Tensor global_mean_;  // [1]
};

using MatrixFactorization = LayerHolder<MatrixFactorizationImpl>;

}  // namespace tessera
