// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/mixture_of_experts.h>

#include <tessera/common/shorten.h>
#include <tessera/layers/layer_json.h>  // defines get_config()

#include <tessera/layers/input_checks.h>
#include "layers/dense/joined_inputs.h"
#include "layers/initial_parameter.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <cstddef>
#include <optional>
#include <set>
#include <utility>

namespace tessera {

namespace {

constexpr int64_t kMaxParts = 1024;

void check_tasks(const std::vector<std::string>& tasks) {
  TESSERA_CHECK_VALUE(
      !tasks.empty() && tasks.size() <= kMaxParts,
      "[MMoE] tasks must have 1 to {} names, but got {}. Name each output.",
      kMaxParts,
      tasks.size());
  std::set<std::string> seen;
  for (const std::string& task : tasks) {
    TESSERA_CHECK_VALUE(
        !task.empty() && seen.insert(task).second,
        "[MMoE] tasks must be different names that are not empty, but got '{}'{}. Rename the task.",
        shorten(task),
        task.empty() ? "" : " twice");
  }
}

// The shape [batch, n] of the inputs joined along the last axis.
PartialShape joined_rows(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name) {
  for (const auto& [path, shape] : input_shapes) {
    check_rows(shape, input_name(path, class_name));
    TESSERA_CHECK_VALUE(
        shape.size() == 2,
        "[{}] expected an input [batch, n], but got {}. Flatten it with Concatenate.",
        input_name(path, class_name),
        to_string(shape));
  }
  return joined_shape(input_shapes, class_name);
}

void check_units(const std::vector<int64_t>& units, const char* name) {
  TESSERA_CHECK_VALUE(
      units.size() <= kMaxParts,
      "[MMoE] {} must have at most {} sizes, but got {}. Use fewer layers.",
      name,
      kMaxParts,
      units.size());
  for (size_t i = 0; i < units.size(); ++i) {
    TESSERA_CHECK_VALUE(
        units[i] >= 1,
        "[MMoE] {}[{}] must be >= 1, but got {}. Set it to the width of that layer.",
        name,
        i,
        units[i]);
  }
}

}  // namespace

MMoEImpl::MMoEImpl(MMoEOptions options) : LayerImpl(std::move(options)) {
  const MMoEOptions& checked = this->options();
  check_tasks(checked.tasks);
  TESSERA_CHECK_VALUE(
      checked.num_experts >= 1 && checked.num_experts <= kMaxParts,
      "[MMoE] num_experts must be in [1, {}], but got {}. Set it to the number of networks that the tasks share.",
      kMaxParts,
      checked.num_experts);
  TESSERA_CHECK_VALUE(
      !checked.expert_units.empty(),
      "[MMoE] expert_units must have one size or more, but got none. Set them to the widths of an expert's layers.");
  check_units(checked.expert_units, "expert_units");
  check_units(checked.tower_units, "tower_units");
  declare();
}

Nest<PartialShape> MMoEImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const int64_t units = options().tower_units.empty()
      ? options().expert_units.back()
      : options().tower_units.back();
  const PartialShape output{joined_rows(input_shapes, kClassName)[0], units};
  Nest<PartialShape>::Map outputs;
  for (const std::string& task : options().tasks) {
    outputs.emplace_back(task, output);
  }
  return Nest<PartialShape>::map(std::move(outputs));
}

void MMoEImpl::declare_parameters() {
  std::vector<MLP> experts;
  std::vector<MLP> towers;
  for (int64_t i = 0; i < options().num_experts; ++i) {
    experts.push_back(register_module(
        "expert_" + std::to_string(i),
        MLP(MLPOptions{
            .units = options().expert_units,
            .activation = options().activation,
            .final_activation = options().activation})));
  }
  gates_ = register_module("gates", unsized_linear(/*use_bias=*/false));
  for (int64_t i = 0; !options().tower_units.empty() && i < num_tasks(); ++i) {
    towers.push_back(register_module(
        "tower_" + std::to_string(i),
        MLP(MLPOptions{
            .units = options().tower_units,
            .activation = options().activation})));
  }
  // In a copy of this layer, the members still hold the layers of the original.
  experts_ = std::move(experts);
  towers_ = std::move(towers);
}

void MMoEImpl::make_parameters(const Nest<PartialShape>& input_shapes) {
  const int64_t width =
      known_dim(joined_rows(input_shapes, kClassName), kClassName);
  for (MLP& expert : experts_) {
    expert->build(PartialShape{std::nullopt, width});
  }
  const torch::nn::Linear gates(
      torch::nn::LinearOptions(width, num_tasks() * options().num_experts)
          .bias(false));
  detail::adopt_parameters(*gates_, *gates);
  for (MLP& tower : towers_) {
    tower->build(PartialShape{std::nullopt, options().expert_units.back()});
  }
}

Nest<at::Tensor> MMoEImpl::forward(const Nest<at::Tensor>& inputs) {
  const std::vector<at::Tensor> tensors =
      checked_inputs(inputs, kClassName, joined_rows);
  build_on_first_call(inputs);
  check_fits(tensors, gates_->weight, kClassName);

  const at::Tensor x = joined(tensors);
  std::vector<at::Tensor> outputs_of_experts;
  for (MLP& expert : experts_) {
    outputs_of_experts.push_back(expert->forward(x));
  }
  const at::Tensor gates = at::softmax(
      gates_->forward(x).unflatten(1, {num_tasks(), options().num_experts}),
      -1);  // [batch, tasks, experts]
  const at::Tensor mixtures = at::bmm(
      gates, at::stack(outputs_of_experts, 1));  // [batch, tasks, units]
  Nest<at::Tensor>::Map outputs;
  for (int64_t i = 0; i < num_tasks(); ++i) {
    const at::Tensor mixture = mixtures.select(1, i);
    const auto tower = static_cast<size_t>(i);
    outputs.emplace_back(
        options().tasks[tower],
        towers_.empty() ? mixture : towers_[tower]->forward(mixture));
  }
  return Nest<at::Tensor>::map(std::move(outputs));
}

}  // namespace tessera
