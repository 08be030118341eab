// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/features/nest.h>
#include <tessera/layers/dense/activation.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_holder.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/linear.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// The config of an MMoE layer.
struct MMoEOptions {
  /// The names of the tasks, 1 to 1024 different ones.
  std::vector<std::string> tasks = {};
  /// In [1, 1024].
  int64_t num_experts = 4;
  /// The widths of each expert's layers. Its activation also follows the last layer.
  std::vector<int64_t> expert_units = {};
  /// The widths of each task's layers. No activation follows the last layer. If empty,
  /// the output of a task is its mixture of experts, for towers of your own.
  std::vector<int64_t> tower_units = {1};
  Activation activation = Activation::kRelu;

  bool operator==(const MMoEOptions&) const = default;

  TESSERA_FIELDS(tasks, num_experts, expert_units, tower_units, activation)
};

// snippet: tests/docs/reference_models_test.cpp MMoEImpl
/// A multi-gate mixture of experts. Several tasks, such as click and purchase, share the
/// experts, and each task has its own mixture of them.
///
///   gates_k  = softmax(x G_k)  // one weight per expert
///   output_k = tower_k(sum_e gates_ke expert_e(x))
///
///   MMoE model(MMoEOptions{
///       .tasks = {"click", "purchase"},
///       .num_experts = 8,
///       .expert_units = {64, 32},
///       .tower_units = {16, 1}});
///   const auto logits = model->forward(x);
///   const auto loss =
///       torch::binary_cross_entropy_with_logits(logits["click"], clicks) +
///       torch::binary_cross_entropy_with_logits(logits["purchase"], purchases);
///
/// Several inputs are joined along the last axis, as in MLP. The experts and towers are
/// MLPs.
///
/// Parameters:  `expert_0.linear_0.weight` [expert_units[0], n], ...; `gates.weight`
///          [tasks * experts, n], where the rows of a task are adjacent;
///          `tower_0.linear_0.weight`, ... in the order of the tasks.
/// Shapes:  inputs [batch, n_i], or one such tensor. The result is a map from the name of
///          each task to [batch, tower_units.back()], or [batch, expert_units.back()]
///          without towers.
/// Errors:  c10::ValueError for options out of range, and as for an MLP.
/// Source:  Ma et al. 2018.
class MMoEImpl : public LayerImpl<MMoEImpl, MMoEOptions> {
 public:
  static constexpr const char* kClassName = "MMoE";

  explicit MMoEImpl(MMoEOptions options);

  Nest<at::Tensor> forward(const Nest<at::Tensor>& inputs);

  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& input_shapes) const override;

 private:
  void declare_parameters() override;
  void make_parameters(const Nest<PartialShape>& input_shapes) override;
  int64_t num_tasks() const {
    return static_cast<int64_t>(options().tasks.size());
  }

  std::vector<MLP> experts_;
  torch::nn::Linear gates_{nullptr};
  std::vector<MLP> towers_;
};

using MMoE = LayerHolder<MMoEImpl>;

}  // namespace tessera
