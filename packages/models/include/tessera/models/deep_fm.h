// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/dense/activation.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>
#include <tessera/models/factorization_machine.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace tessera {

/// The config of a DeepFM layer.
struct DeepFMOptions {
  /// The widths of the hidden layers of the MLP, 1 to 1023 of them. A layer of width 1
  /// follows.
  std::vector<int64_t> hidden_units = {};
  /// The activation after each hidden layer.
  Activation activation = Activation::kRelu;
  /// If true, the first column of a row is the weight of its feature.
  bool use_first_order = true;

  bool operator==(const DeepFMOptions&) const = default;

  TESSERA_FIELDS(hidden_units, activation, use_first_order)
};

// snippet: tests/docs/reference_models_test.cpp DeepFMImpl
/// The sum of a factorization machine and an MLP that share the vectors of the features.
///
///   score = sum_i w_i + sum_{i < j} dot(v_i, v_j) + mlp(v_1, ..., v_n)
///
/// FactorizationMachine describes the rows of the tables.
///
///   DeepFM model(DeepFMOptions{.hidden_units = {64, 32}});
///   const auto logits = model->forward(embedding->forward(features));
///
/// Parameters:  those of an MLP, `mlp.linear_0.weight` [hidden_units[0], n dim] and so
///          on. The bias of its last layer is the bias of the model.
/// Shapes:  as for a FactorizationMachine. Once the layer is built, forward() needs the
///          same number of features and the same dim. The result is [batch, 1].
/// Errors:  as for a FactorizationMachine; c10::ValueError for options out of range.
/// Source:  Guo et al. 2017.
/// Differs: there is no dropout.
class DeepFMImpl : public LayerImpl<DeepFMImpl, DeepFMOptions> {
 public:
  static constexpr const char* kClassName = "DeepFM";

  explicit DeepFMImpl(DeepFMOptions options);

  at::Tensor forward(const Nest<at::Tensor>& features);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;

  FactorizationMachine fm_{nullptr};
  MLP mlp_{nullptr};
};

using DeepFM = LayerHolder<DeepFMImpl>;

}  // namespace tessera
