// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/trace/record_graph.h"

#include <ATen/record_function.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "src/common/check.h"

namespace tessera::exporting {

namespace jit = torch::jit;

namespace {

std::vector<at::Tensor> to_tensors(const jit::Stack& values) {
  std::vector<at::Tensor> tensors;
  for (const jit::IValue& value : values) {
    tensors.push_back(value.toTensor());
  }
  return tensors;
}

// Returns true for operators that give C++ a value of a tensor.
bool reads_value(const std::string& name) {
  return name == "aten::item" || name == "aten::_local_scalar_dense" ||
      name == "aten::is_nonzero" || name == "aten::equal" ||
      name == "aten::allclose";
}

// Notices when C++ code of this thread reads a value of a tensor while LibTorch's tracer
// records. Such a value would be a constant of the record.
class ValueReadObserver {
 public:
  ValueReadObserver()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(begin, end)
                .scopes({at::RecordScope::FUNCTION}))),
        outer_(std::exchange(current, this)) {}
  ~ValueReadObserver() {
    at::removeCallback(handle_);
    current = outer_;
  }
  ValueReadObserver(const ValueReadObserver&) = delete;
  ValueReadObserver& operator=(const ValueReadObserver&) = delete;

  void check_no_reads(const std::string& where) const {
    TESSERA_CHECK_VALUE(
        after_.empty(),
        "{} forward() must not read values of tensors, but it does so after {}, for example by item() or in a condition. The file would keep the value of the example. Compute the same with operators, such as at::where().",
        where,
        after_);
  }

 private:
  // LibTorch's callbacks have no data of their own.
  static inline thread_local ValueReadObserver* current = nullptr;

  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function) {
    if (current == nullptr) {
      return nullptr;  // an operator has started another thread
    }
    // Reads inside another operator are harmless.
    if (current->depth_++ == 0 && jit::tracer::isTracing()) {
      const std::string name = function.name();
      if (!reads_value(name)) {
        current->last_ = name;
      } else if (current->after_.empty()) {
        current->after_ = current->last_;
      }
    }
    return nullptr;
  }
  static void end(
      const at::RecordFunction& /*function*/,
      at::ObserverContext* /*context*/) {
    if (current != nullptr) {
      --current->depth_;
    }
  }

  at::CallbackHandle handle_;
  ValueReadObserver* outer_;
  std::string last_ = "the first operator";
  std::string after_;  // the last operator before the first value was read
  int depth_ = 0;  // of operators that call operators
};

}  // namespace

std::shared_ptr<jit::Graph> record_graph(
    const std::vector<at::Tensor>& inputs,
    const TensorFunction& function,
    const RecordOptions& options) {
  jit::Stack stack;
  for (const at::Tensor& input : inputs) {
    stack.emplace_back(input);
  }
  const auto run = [&](const jit::Stack& tensors) -> jit::Stack {
    const std::vector<at::Tensor> outputs = function(to_tensors(tensors));
    if (options.returns_list) {
      return {c10::List<at::Tensor>(outputs)};
    }
    return {outputs[0]};
  };
  try {
    return jit::tracer::trace(
               stack,
               run,
               [](const torch::autograd::Variable&) { return ""; },
               /*strict=*/false,  // without its warning about lists
               /*force_outplace=*/false,
               options.root)
        .first->graph;
  } catch (const c10::ValueError&) {
    throw;
  } catch (const std::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} LibTorch can't trace the model: {}. Register the tensors that it holds as parameters or buffers.",
        options.where,
        reason_of(error));
    throw;
  }
}

std::shared_ptr<jit::Graph> record_operators(
    const std::vector<at::Tensor>& weights,
    const std::vector<at::Tensor>& arguments,
    const TensorFunction& function,
    const Checks& checks,
    const std::string& where) {
  const ValueReadObserver observer;
  const auto with_checks = [&](std::vector<at::Tensor> tensors) {
    tensors.erase(
        tensors.begin(),
        tensors.begin() + static_cast<std::ptrdiff_t>(weights.size()));
    std::vector<at::Tensor> outputs = function(std::move(tensors));
    for (const Check& check : checks) {
      outputs.push_back(check.condition);
    }
    return outputs;
  };
  std::vector<at::Tensor> inputs = weights;
  inputs.insert(inputs.end(), arguments.begin(), arguments.end());
  auto graph =
      record_graph(inputs, with_checks, {.returns_list = true, .where = where});
  check_filled(*graph, where);
  observer.check_no_reads(where);
  return graph;
}

// The tracer records at::tensor(values) as an empty tensor, because it does not see
// values that C++ writes into memory. A comparison with the model may not notice this,
// because reused memory may hold the right values by chance.
void check_filled(const jit::Graph& graph, const std::string& where) {
  for (const jit::Node* node : graph.nodes()) {
    const std::string kind = node->kind().toUnqualString();
    if (kind.find("empty") == std::string::npos) {
      continue;
    }
    TESSERA_CHECK_VALUE(
        std::ranges::any_of(
            node->output()->uses(),
            [](const jit::Use& use) {
              const std::string user = use.user->kind().toUnqualString();
              return user.ends_with("_");
            }),
        "{} operators must compute all tensors, but forward() fills one with C++ values, by at::tensor() or through its memory. Make it with torch::tensor(), register it as a buffer, or pass it as an input.",
        where);
  }
}

}  // namespace tessera::exporting
