// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/graph_runner.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <ATen/core/List.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <array>
#include <exception>
#include <memory>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>

namespace tessera::pt2 {

namespace {

using c10::IValue;
using torch::jit::Stack;

constexpr std::string_view kOperatorPrefix = "torch.ops.";
constexpr std::string_view kSizeTarget = "torch.ops.aten.sym_size.int";
constexpr std::string_view kAssertTarget = "torch.ops.aten._assert_async.msg";

struct IntegerOperator {
  std::string_view target;
  // Returns false if the result does not fit into an int64.
  bool (*compute)(int64_t a, int64_t b, int64_t* result);
};

bool divide(int64_t a, int64_t b, int64_t* result) {
  TESSERA_CHECK(b > 0 && a >= 0, "a size must not be negative");
  *result = a / b;
  return true;
}

constexpr std::array<IntegerOperator, 4> kIntegerOperators = {{
    {"_operator.add",
     [](int64_t a, int64_t b, int64_t* result) {
       return !__builtin_add_overflow(a, b, result);
     }},
    {"_operator.sub",
     [](int64_t a, int64_t b, int64_t* result) {
       return !__builtin_sub_overflow(a, b, result);
     }},
    {"_operator.mul",
     [](int64_t a, int64_t b, int64_t* result) {
       return !__builtin_mul_overflow(a, b, result);
     }},
    {"_operator.floordiv", divide},
}};

// "torch.ops.aten.add.Tensor" is the operator "aten::add" with the overload "Tensor".
std::optional<c10::OperatorName> operator_name(const std::string& target) {
  if (!target.starts_with(kOperatorPrefix)) {
    return std::nullopt;
  }
  const std::string rest = target.substr(kOperatorPrefix.size());
  const size_t first = rest.find('.');
  const size_t last = rest.rfind('.');
  if (first == std::string::npos || first == last) {
    return std::nullopt;
  }
  const std::string overload = rest.substr(last + 1);
  return c10::OperatorName(
      rest.substr(0, first) + "::" + rest.substr(first + 1, last - first - 1),
      overload == "default" ? "" : overload);
}

// Where a step finds an argument: a constant, one value, or a list of values.
struct Operand {
  enum class Kind { kConstant, kValue, kTensors, kOptionalTensors, kInts };
  Kind kind = Kind::kConstant;
  IValue constant = {};
  // The indices of the values. For kOptionalTensors, -1 stands for None. For kInts, an
  // index below 0 stands for the constant at the same place in `ints`.
  std::vector<int64_t> slots = {};
  std::vector<int64_t> ints = {};
};

enum class StepKind { kOperator, kSize, kInteger };

struct Step {
  StepKind kind = StepKind::kOperator;
  std::optional<c10::OperatorHandle> handle = {};
  const IntegerOperator* integer = nullptr;
  std::vector<Operand> operands = {};
  std::vector<std::vector<int64_t>> results =
      {};  // several for a list of tensors
  std::vector<bool> is_list = {};
  std::vector<int64_t> last_uses = {};  // values that no later step needs
  size_t node = 0;
};

class GraphRunner {
 public:
  GraphRunner(
      const Graph& graph,
      const std::vector<Weight>& weights,
      const std::string& where)
      : weights_(converted(weights, &Weight::tensor)),
        where_(where),
        num_inputs_(graph.inputs.size()) {
    TESSERA_CHECK_VALUE(
        weights_.size() == graph.weights.size(),
        "{} expected {} weights, but got {}. The file is damaged.",
        where_,
        graph.weights.size(),
        weights_.size());
    for (const std::string& name : graph.weights) {
      define(name);
    }
    for (const std::string& name : graph.inputs) {
      define(name);
    }
    for (const Node& node : graph.nodes) {
      add_step(node);
    }
    for (const std::string& name : graph.outputs) {
      outputs_.push_back(slot_of(name, "the outputs"));
    }
    find_last_uses();
  }

  std::vector<at::Tensor> run(
      const std::vector<at::Tensor>& inputs,
      const Observer& observer) const {
    TESSERA_CHECK_VALUE(
        inputs.size() == num_inputs_,
        "{} expected {} tensors, but got {}. Pass one tensor for each input.",
        where_,
        num_inputs_,
        inputs.size());
    const at::NoGradGuard no_grad;
    std::vector<IValue> values(names_.size());
    size_t next = 0;
    for (const at::Tensor& weight : weights_) {
      set(values, static_cast<int64_t>(next++), weight, observer);
    }
    for (const at::Tensor& input : inputs) {
      TESSERA_CHECK_VALUE(
          input.defined(),
          "{} input '{}' must be a tensor, but is undefined. Pass a tensor.",
          where_,
          shorten(names_[next]));
      set(values, static_cast<int64_t>(next++), input, observer);
    }
    Stack stack;
    for (const Step& step : steps_) {
      run_step(step, values, stack, observer);
      for (const int64_t slot : step.last_uses) {
        values[slot] = IValue();
      }
    }
    return converted(
        outputs_, [&](int64_t slot) { return values[slot].toTensor(); });
  }

 private:
  int64_t define(const std::string& name) {
    const auto slot = static_cast<int64_t>(names_.size());
    TESSERA_CHECK_VALUE(
        slots_.emplace(name, slot).second,
        "{} each value must have a name of its own, but there are two values '{}'. The file is damaged.",
        where_,
        shorten(name));
    names_.push_back(name);
    return slot;
  }

  int64_t slot_of(const std::string& name, const std::string& user) const {
    const auto found = slots_.find(name);
    TESSERA_CHECK_VALUE(
        found != slots_.end(),
        "{} {} needs the value '{}', but nothing before it computes this value. The file is damaged.",
        where_,
        user,
        shorten(name));
    return found->second;
  }

  [[noreturn]] void refuse(
      const Node& node,
      const std::string& argument,
      const std::string& type) const {
    TESSERA_CHECK_VALUE(
        false,
        "{} argument '{}' of {} must be {}, but is of another kind. The file is damaged.",
        where_,
        shorten(argument),
        shorten(node.target),
        type);
    std::terminate();
  }

  Operand operand_of(
      const Node& node,
      const std::string& name,
      const Argument& argument,
      c10::TypePtr type) const {
    if (const auto optional = type->cast<c10::OptionalType>()) {
      if (std::holds_alternative<None>(argument)) {
        return {};
      }
      type = optional->getElementType();
    }
    // LibTorch would accept any number as an enumerator.
    const auto is_misfit = [&]<class Enum>(Enum, c10::TypeKind kind) {
      return type->kind() == kind && !std::holds_alternative<Enum>(argument);
    };
    if (is_misfit(at::ScalarType(), c10::TypeKind::ScalarTypeType) ||
        is_misfit(at::MemoryFormat(), c10::TypeKind::MemoryFormatType) ||
        is_misfit(at::Layout(), c10::TypeKind::LayoutType) ||
        std::holds_alternative<None>(argument)) {
      refuse(node, name, type->str());
    }
    const auto constant = [](IValue value) -> Operand {
      return {.constant = std::move(value)};
    };
    const auto slot_of_tensor = [&](const TensorName& tensor) {
      return slot_of(tensor.name, node.target);
    };
    const auto value = [&](const std::string& used) -> Operand {
      return {
          .kind = Operand::Kind::kValue, .slots = {slot_of(used, node.target)}};
    };
    return std::visit(
        [&](const auto& content) -> Operand {
          using T = std::decay_t<decltype(content)>;
          if constexpr (std::is_same_v<T, None>) {
            return {};
          } else if constexpr (std::is_same_v<T, TensorName>) {
            return value(content.name);
          } else if constexpr (std::is_same_v<T, std::vector<TensorName>>) {
            return {
                .kind = Operand::Kind::kTensors,
                .slots = converted(content, slot_of_tensor)};
          } else if constexpr (std::is_same_v<
                                   T,
                                   std::vector<std::optional<TensorName>>>) {
            return {
                .kind = Operand::Kind::kOptionalTensors,
                .slots = converted(content, [&](const auto& tensor) {
                  return tensor ? slot_of_tensor(*tensor) : -1;
                })};
          } else if constexpr (std::is_same_v<T, Int>) {
            if (const auto* computed = std::get_if<IntName>(&content)) {
              return value(computed->name);
            }
            const int64_t number = std::get<int64_t>(content);
            return type->kind() == c10::TypeKind::FloatType
                ? constant(static_cast<double>(number))
                : constant(number);
          } else if constexpr (std::is_same_v<T, std::vector<Int>>) {
            Operand operand{.kind = Operand::Kind::kInts};
            for (const Int& entry : content) {
              const auto* computed = std::get_if<IntName>(&entry);
              operand.slots.push_back(
                  computed ? slot_of(computed->name, node.target) : -1);
              operand.ints.push_back(computed ? 0 : std::get<int64_t>(entry));
            }
            if (std::ranges::all_of(
                    operand.slots, [](int64_t slot) { return slot < 0; })) {
              return constant(operand.ints);
            }
            return operand;
          } else if constexpr (
              std::is_same_v<T, at::ScalarType> ||
              std::is_same_v<T, at::MemoryFormat> ||
              std::is_same_v<T, at::Layout>) {
            return constant(static_cast<int64_t>(content));
          } else if constexpr (std::is_same_v<T, std::string>) {
            if (type->kind() != c10::TypeKind::StringType) {
              refuse(node, name, type->str());
            }
            return constant(content);
          } else {
            return constant(content);  // bool, double, lists of these, device
          }
        },
        argument);
  }

  void add_step(const Node& node) {
    Step step;
    step.node = targets_.size();
    targets_.push_back(node.target);
    const auto* const integer = std::ranges::find(
        kIntegerOperators, node.target, &IntegerOperator::target);
    if (integer != kIntegerOperators.end()) {
      step.kind = StepKind::kInteger;
      step.integer = integer;
      TESSERA_CHECK_VALUE(
          node.arguments.size() == 2,
          "{} {} must have 2 arguments, but has {}. The file is damaged.",
          where_,
          shorten(node.target),
          node.arguments.size());
      TESSERA_CHECK_VALUE(
          node.outputs.size() == 1 &&
              std::holds_alternative<IntName>(node.outputs[0]),
          "{} {} must have one integer as its result, but has {} results. The file is damaged.",
          where_,
          shorten(node.target),
          node.outputs.size());
      for (const NamedArgument& argument : node.arguments) {
        if (!std::holds_alternative<Int>(argument.value)) {
          refuse(node, argument.name, "an integer");
        }
        step.operands.push_back(operand_of(
            node, argument.name, argument.value, c10::IntType::get()));
      }
    } else {
      add_operator(node, step);
    }
    for (const Output& output : node.outputs) {
      std::vector<int64_t> slots;
      bool is_list = false;
      if (const auto* tensor = std::get_if<TensorName>(&output)) {
        slots.push_back(define(tensor->name));
      } else if (const auto* integer = std::get_if<IntName>(&output)) {
        slots.push_back(define(integer->name));
      } else {
        is_list = true;
        for (const TensorName& tensor :
             std::get<std::vector<TensorName>>(output)) {
          slots.push_back(define(tensor.name));
        }
      }
      step.results.push_back(std::move(slots));
      step.is_list.push_back(is_list);
    }
    steps_.push_back(std::move(step));
  }

  void add_operator(const Node& node, Step& step) {
    const auto name = operator_name(node.target);
    if (name && name->name.starts_with("aten::")) {
      step.handle = c10::Dispatcher::singleton().findSchema(*name);
    }
    TESSERA_CHECK_VALUE(
        step.handle.has_value(),
        "{} the operator '{}' is not one of this LibTorch. Read the file with the release of LibTorch that wrote it, or a newer one.",
        where_,
        shorten(node.target));
    if (node.target == kSizeTarget && node.outputs.size() == 1 &&
        std::holds_alternative<IntName>(node.outputs[0])) {
      step.kind = StepKind::kSize;
    }
    const c10::FunctionSchema& schema = step.handle->schema();
    size_t used = 0;
    for (const c10::Argument& argument : schema.arguments()) {
      const auto given = std::ranges::find(
          node.arguments, argument.name(), &NamedArgument::name);
      if (given != node.arguments.end()) {
        ++used;
        step.operands.push_back(
            operand_of(node, given->name, given->value, argument.real_type()));
        continue;
      }
      TESSERA_CHECK_VALUE(
          argument.default_value().has_value(),
          "{} {} must have an argument '{}', but it is missing. The file is damaged.",
          where_,
          shorten(node.target),
          argument.name());
      step.operands.push_back({.constant = *argument.default_value()});
    }
    TESSERA_CHECK_VALUE(
        used == node.arguments.size(),
        "{} {} has an argument that its operator does not take. The file is damaged, or a newer release of LibTorch wrote it.",
        where_,
        shorten(node.target));
    TESSERA_CHECK_VALUE(
        schema.returns().size() == node.outputs.size(),
        "{} {} must have {} results, but has {}. The file is damaged.",
        where_,
        shorten(node.target),
        schema.returns().size(),
        node.outputs.size());
  }

  // A value can be freed after its last use, unless it is a weight or an output.
  void find_last_uses() {
    std::vector<bool> is_needed(names_.size(), false);
    for (size_t slot = 0; slot < weights_.size(); ++slot) {
      is_needed[slot] = true;
    }
    for (const int64_t slot : outputs_) {
      is_needed[slot] = true;
    }
    for (auto step = steps_.rbegin(); step != steps_.rend(); ++step) {
      const auto use = [&](int64_t slot) {
        if (slot >= 0 && !is_needed[slot]) {
          is_needed[slot] = true;
          step->last_uses.push_back(slot);
        }
      };
      for (const Operand& operand : step->operands) {
        std::ranges::for_each(operand.slots, use);
      }
      for (const auto& results : step->results) {
        std::ranges::for_each(results, use);
      }
    }
  }

  static IValue read(
      const Operand& operand,
      const std::vector<IValue>& values) {
    switch (operand.kind) {
      case Operand::Kind::kConstant:
        return operand.constant;
      case Operand::Kind::kValue:
        return values[operand.slots[0]];
      case Operand::Kind::kTensors: {
        c10::List<at::Tensor> list;
        list.reserve(operand.slots.size());
        for (const int64_t slot : operand.slots) {
          list.push_back(values[slot].toTensor());
        }
        return list;
      }
      case Operand::Kind::kOptionalTensors: {
        c10::List<std::optional<at::Tensor>> list;
        for (const int64_t slot : operand.slots) {
          list.push_back(
              slot < 0 ? std::nullopt
                       : std::make_optional(values[slot].toTensor()));
        }
        return list;
      }
      case Operand::Kind::kInts: {
        c10::List<int64_t> list;
        list.reserve(operand.slots.size());
        for (size_t i = 0; i < operand.slots.size(); ++i) {
          const int64_t slot = operand.slots[i];
          list.push_back(slot < 0 ? operand.ints[i] : values[slot].toInt());
        }
        return list;
      }
    }
    return {};
  }

  void run_step(
      const Step& step,
      std::vector<IValue>& values,
      Stack& stack,
      const Observer& observer) const {
    try {
      stack.clear();
      for (const Operand& operand : step.operands) {
        stack.push_back(read(operand, values));
      }
      switch (step.kind) {
        case StepKind::kSize:
          stack = {stack[0].toTensor().size(stack[1].toInt())};
          break;
        case StepKind::kInteger: {
          int64_t result = 0;
          TESSERA_CHECK(
              step.integer->compute(
                  stack[0].toInt(), stack[1].toInt(), &result),
              "a size is too large");
          stack = {result};
          break;
        }
        case StepKind::kOperator:
          step.handle->callBoxed(stack);
          break;
      }
      for (size_t i = 0; i < step.results.size(); ++i) {
        store(step.results[i], step.is_list[i], stack[i], values, observer);
      }
    } catch (const std::exception& error) {
      const std::string& target = targets_[step.node];
      TESSERA_CHECK_VALUE(
          target != kAssertTarget, "{} {}", where_, reason_of(error));
      TESSERA_CHECK(
          false,
          "{} {} failed: {}. Pass tensors with the dtypes and sizes of the model's inputs.",
          where_,
          target,
          reason_of(error));
    }
  }

  void store(
      const std::vector<int64_t>& slots,
      bool is_list,
      const IValue& result,
      std::vector<IValue>& values,
      const Observer& observer) const {
    if (!is_list) {
      set(values, slots[0], result, observer);
      return;
    }
    const c10::List<at::Tensor> tensors = result.toTensorList();
    TESSERA_CHECK(
        tensors.size() == slots.size(),
        "{} tensors were expected, but there are {}",
        slots.size(),
        tensors.size());
    for (size_t i = 0; i < slots.size(); ++i) {
      set(values, slots[i], tensors.get(i), observer);
    }
  }

  void set(
      std::vector<IValue>& values,
      int64_t slot,
      IValue value,
      const Observer& observer) const {
    if (observer && value.isTensor()) {
      observer(names_[slot], value.toTensor());
    }
    values[slot] = std::move(value);
  }

  std::vector<at::Tensor> weights_;
  std::string where_;
  size_t num_inputs_;
  std::vector<std::string> names_;  // of all values
  std::unordered_map<std::string, int64_t> slots_;
  std::vector<std::string> targets_;
  std::vector<Step> steps_;
  std::vector<int64_t> outputs_;
};

}  // namespace

GraphFunction make_function(
    const Graph& graph,
    const std::vector<Weight>& weights,
    const std::string& where) {
  const auto runner =
      std::make_shared<const GraphRunner>(graph, weights, where);
  return [runner](const auto& inputs, const Observer& observer) {
    return runner->run(inputs, observer);
  };
}

}  // namespace tessera::pt2
