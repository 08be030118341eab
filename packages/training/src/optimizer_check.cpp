// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/optimizer_check.h"

#include <tessera/common/shorten.h>
#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer.h>

#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/core/functional.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/optim/adagrad.h>

#include <unordered_set>
#include <utility>

namespace tessera::training {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

thread_local ParameterWatch* watch =
    nullptr;  // of the fit() that runs on this thread

// Describes a parameter, such as "'tower.weight' (Float of shape [1, 8])".
std::string parameter_text(const at::Tensor& parameter) {
  if (watch != nullptr && watch->model() != nullptr) {
    for (const auto& item : watch->model()->named_parameters()) {
      if (item.value().is_same(parameter)) {
        return fmt::format(
            "'{}' ({})", shorten(item.key()), describe(parameter));
      }
    }
  }
  return fmt::format("a parameter ({})", describe(parameter));
}

// Whether this input of a node is the virtual variable of a layer with tables, which
// always has the value 0.
bool is_virtual_variable(const Node& node, size_t input) {
  return input == 0 &&
      (node.name() == "tessera::LookupNode" ||
       node.name() == "tessera::ShardedLookupNode");
}

struct GraphFindings {
  std::vector<at::Tensor> missing = {};
  bool has_sharded_tables = false;
};

// Finds the parameters that get a gradient from loss.backward() and are not in `optimizer`.
GraphFindings search_graph(
    const torch::optim::Optimizer& optimizer,
    const at::Tensor& loss) {
  std::unordered_set<const at::TensorImpl*> known;
  for (const at::Tensor& parameter : parameters_of(optimizer)) {
    known.insert(parameter.unsafeGetTensorImpl());
  }
  GraphFindings findings;
  // The edge keeps all nodes alive.
  const torch::autograd::Edge root = torch::autograd::impl::gradient_edge(loss);
  std::unordered_set<const Node*> seen{root.function.get()};
  std::vector<const Node*> left{root.function.get()};
  while (!left.empty()) {
    const Node* node = left.back();
    left.pop_back();
    findings.has_sharded_tables = findings.has_sharded_tables ||
        node->name() == "tessera::ShardedLookupNode";
    for (size_t i = 0; i < node->next_edges().size(); ++i) {
      const Node* next = node->next_edge(i).function.get();
      if (next == nullptr || !seen.insert(next).second) {
        continue;
      }
      const auto* leaf = dynamic_cast<const AccumulateGrad*>(next);
      if (leaf == nullptr) {
        left.push_back(next);
      } else if (
          known.count(leaf->variable.unsafeGetTensorImpl()) == 0 &&
          !is_virtual_variable(*node, i)) {
        findings.missing.push_back(leaf->variable);
      }
    }
  }
  return findings;
}

// Refuses accumulators without a size. The constructor of torch::optim::Adagrad makes them,
// and a parameter may have no size then.
void check_accumulators(const torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<const torch::optim::Adagrad*>(&optimizer) == nullptr) {
    return;
  }
  for (const at::Tensor& parameter : parameters_of(optimizer)) {
    const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
    if (found == optimizer.state().end()) {
      continue;
    }
    const auto& state =
        static_cast<const torch::optim::AdagradParamState&>(*found->second);
    TESSERA_CHECK_VALUE(
        !tessera::detail::is_unsized(state.sum()) ||
            tessera::detail::is_unsized(parameter),
        "[make_train_step] torch::optim::Adagrad makes its accumulators at once, but it was made before the layer of {} was built. Call build() or forward() of the layer before you make this optimizer, or make it with optim::make_optimizer().",
        parameter_text(parameter));
  }
}

constexpr const char* kAdvice =
    "Make the optimizer after the layers have their parameters: call build() or forward() before. Freeze what should not be trained by requires_grad_(false), or set `allow_unoptimized`.";

}  // namespace

std::vector<at::Tensor> parameters_of(
    const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(
        parameters.end(), group.params().begin(), group.params().end());
  }
  return parameters;
}

std::string parameter_list(const std::vector<at::Tensor>& parameters) {
  return shorten_all(c10::fmap(parameters, parameter_text));
}

void check_gradients(
    const std::vector<at::Tensor>& parameters,
    const char* unchanged) {
  std::vector<at::Tensor> refused;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined() && !all_finite(parameter.grad())) {
      refused.push_back(parameter);
    }
  }
  TESSERA_CHECK_VALUE(
      refused.empty(),
      "[fit] the gradients of parameters must be finite, but NaN or infinity is in that of {}. {} Check the loss and the data, lower the learning rate, or set FitOptions::non_finite_gradients to NonFiniteGradients::kApply.",
      parameter_list(refused),
      unchanged);
}

void check_optimizer(
    const torch::optim::Optimizer& optimizer,
    const at::Tensor& loss,
    bool allow_unoptimized,
    const Strategy& strategy) {
  if (watch != nullptr) {
    watch->note_check();
  }
  check_accumulators(optimizer);
  const GraphFindings findings = search_graph(optimizer, loss);
  const std::vector<at::Tensor>& missing = findings.missing;
  TESSERA_CHECK_VALUE(
      !findings.has_sharded_tables || strategy.is_sharded(),
      "[make_train_step] the loss depends on sharded tables, but the step has no sharded strategy, so the dense weights of the ranks would differ. Set FitOptions::model, or TrainStepOptions::model for a loop without fit().");
  TESSERA_CHECK_VALUE(
      missing.empty() || allow_unoptimized ||
          (watch != nullptr && watch->allows_unoptimized()),
      "[make_train_step] each parameter that gets a gradient must be in the optimizer, but it lacks {}, which would never be trained. {}",
      parameter_list(missing),
      kAdvice);
}

ParameterWatch::ParameterWatch(
    std::shared_ptr<torch::nn::Module> model,
    bool allow_unoptimized,
    Strategy strategy)
    : model_(std::move(model)),
      allow_unoptimized_(allow_unoptimized),
      strategy_(std::move(strategy)),
      previous_(std::exchange(watch, this)) {
  if (model_ != nullptr) {
    for (const at::Tensor& parameter : model_->parameters()) {
      known_.insert(parameter.unsafeGetTensorImpl());
    }
  }
}

const ParameterWatch* ParameterWatch::current() {
  return watch;
}

ParameterWatch::~ParameterWatch() {
  watch = previous_;
}

void ParameterWatch::end_step() {
  if (++step_ < next_check_) {
    return;
  }
  next_check_ = 2 * step_;
  if (model_ == nullptr || has_checked_ || allow_unoptimized_) {
    return;
  }
  for (const auto& item : model_->named_parameters()) {
    TESSERA_CHECK_VALUE(
        !item.value().requires_grad() ||
            known_.count(item.value().unsafeGetTensorImpl()) > 0,
        "[fit] the model made '{}' ({}) during the training, so an optimizer that was made before it does not train it. {}",
        shorten(item.key()),
        describe(item.value()),
        kAdvice);
  }
}

}  // namespace tessera::training
