// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/graph_conversion.h"

#include "src/common/check.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <fmt/format.h>
#include <torch/csrc/jit/ir/constants.h>
#include <torch/csrc/jit/passes/dead_code_elimination.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace tessera::exporting {

namespace jit = torch::jit;
using c10::TypeKind;

namespace {

// Python's keywords, which can't be names of values.
constexpr std::array<std::string_view, 35> kKeywords = {
    "False",  "None",   "True",    "and",      "as",       "assert", "async",
    "await",  "break",  "class",   "continue", "def",      "del",    "elif",
    "else",   "except", "finally", "for",      "from",     "global", "if",
    "import", "in",     "is",      "lambda",   "nonlocal", "not",    "or",
    "pass",   "raise",  "return",  "try",      "while",    "with",   "yield"};

class Converter {
 public:
  Converter(
      jit::Graph& recorded,
      std::vector<pt2::Weight>& weights,
      const std::vector<std::string>& inputs,
      const Checks& checks,
      const std::string& where)
      : recorded_(recorded), weights_(weights), where_(where) {
    const auto outputs = recorded.outputs()[0]->node()->inputs();
    num_outputs_ = outputs.size() - checks.size();
    for (size_t i = 0; i < checks.size(); ++i) {
      messages_[outputs[num_outputs_ + i]].push_back(checks[i].message);
    }
    TORCH_INTERNAL_ASSERT(
        recorded.inputs().size() == weights.size() + inputs.size());
    graph_.inputs = inputs;
    names_.insert(inputs.begin(), inputs.end());
    for (const pt2::Weight& weight : weights) {
      graph_.weights.push_back(weight_name(weight));
    }
    for (size_t i = 0; i < recorded.inputs().size(); ++i) {
      tensors_[recorded.inputs()[i]] =
          i < weights.size() ? graph_.weights[i] : inputs[i - weights.size()];
    }
  }

  pt2::Graph convert() {
    jit::EliminateDeadCode(recorded_.block());
    for (jit::Node* node : recorded_.nodes()) {
      convert_node(*node);
    }
    const auto outputs = recorded_.outputs()[0]->node()->inputs();
    for (size_t i = 0; i < num_outputs_; ++i) {
      graph_.outputs.push_back(tensor(*outputs[i]).name);
    }
    return std::move(graph_);
  }

 private:
  std::string weight_name(const pt2::Weight& weight) {
    return identifier(
        (weight.is_parameter ? "p_" : "b_") + weight.name, names_);
  }

  static std::string kind_of(const jit::Node& node) {
    return node.kind().toUnqualString();
  }

  void convert_node(jit::Node& node) {
    if (node.kind() == c10::prim::Constant ||
        node.kind() == c10::prim::ListConstruct ||
        node.kind() == c10::prim::ListUnpack) {
      return;  // converted as arguments of the nodes that use them
    }
    const c10::FunctionSchema* schema = node.maybeSchema();
    check(
        node,
        schema != nullptr && node.kind().is_aten(),
        "is no operator on tensors");
    pt2::Node result{
        .target = fmt::format(
            "torch.ops.aten.{}.{}",
            kind_of(node),
            schema->overload_name().empty() ? "default"
                                            : schema->overload_name())};
    bool has_gap = false;
    for (size_t i = 0; i < schema->arguments().size(); ++i) {
      const c10::Argument& argument = schema->arguments()[i];
      jit::Value& value = *node.inputs()[i];
      if (is_default(argument, value)) {
        has_gap = true;
        continue;
      }
      result.arguments.push_back(
          {.name = argument.name(),
           .value = this->argument(node, value, argument.real_type()),
           .is_keyword = has_gap || argument.kwarg_only()});
    }
    result.outputs = pt2::converted(node.outputs(), [&](jit::Value* output) {
      return this->output(node, *output);
    });
    graph_.nodes.push_back(std::move(result));
    for (const jit::Value* output : node.outputs()) {
      for (const std::string& message : messages_[output]) {
        add_check(*output, message);
      }
    }
  }

  void add_check(const jit::Value& condition, const std::string& message) {
    graph_.nodes.push_back(
        {.target = "torch.ops.aten._assert_async.msg",
         .arguments = {
             {.name = "self",
              .value = pt2::TensorName{tensors_.at(&condition)}},
             {.name = "assert_msg", .value = message}}});
  }

  static bool is_default(const c10::Argument& argument, jit::Value& value) {
    const auto& standard = argument.default_value();
    const auto constant = jit::toIValue(&value);
    return standard && constant &&
        ((standard->isNone() && constant->isNone()) ||
         (standard->isBool() && constant->isBool() &&
          standard->toBool() == constant->toBool()));
  }

  pt2::Output output(const jit::Node& node, jit::Value& value) {
    const auto name = [&] {
      return identifier(
          fmt::format("{}_{}", kind_of(node), graph_.nodes.size()), names_);
    };
    if (value.type()->kind() == TypeKind::TensorType) {
      tensors_[&value] = name();
      return pt2::TensorName{tensors_[&value]};
    }
    check(
        node,
        value.type()->kind() == TypeKind::ListType &&
            value.uses().size() == 1 &&
            value.uses()[0].user->kind() == c10::prim::ListUnpack,
        "has a result that is no tensor");
    return pt2::converted(
        value.uses()[0].user->outputs(), [&](jit::Value* element) {
          tensors_[element] = name();
          return pt2::TensorName{tensors_[element]};
        });
  }

  pt2::TensorName tensor(jit::Value& value) {
    const auto found = tensors_.find(&value);
    if (found != tensors_.end()) {
      return {found->second};
    }
    const auto constant = jit::toIValue(&value);
    check(
        *value.node(),
        constant && constant->isTensor() && constant->toTensor().defined(),
        "has a result that is no tensor");
    std::string name;
    do {
      name = fmt::format("constant_{}", num_constants_++);
    } while (std::ranges::find(weights_, name, &pt2::Weight::name) !=
             weights_.end());
    weights_.push_back({.name = name, .tensor = constant->toTensor().detach()});
    graph_.weights.push_back(weight_name(weights_.back()));
    tensors_[&value] = graph_.weights.back();
    return {graph_.weights.back()};
  }

  pt2::Argument argument(
      const jit::Node& node,
      jit::Value& value,
      c10::TypePtr type) {
    if (const auto optional = type->cast<c10::OptionalType>()) {
      if (value.mustBeNone()) {
        return pt2::None{};
      }
      type = optional->getElementType();
    }
    if (type->kind() == TypeKind::TensorType) {
      return tensor(value);
    }
    const auto list = type->cast<c10::ListType>();
    if (list && value.node()->kind() == c10::prim::ListConstruct) {
      return list_argument(node, value, *list->getElementType());
    }
    const auto constant = jit::toIValue(&value);
    check(
        node,
        constant.has_value(),
        "has an argument that the model computes from values of a tensor");
    return constant_argument(node, *constant, *type);
  }

  pt2::Argument list_argument(
      const jit::Node& node,
      jit::Value& value,
      const c10::Type& element) {
    const auto elements = value.node()->inputs();
    switch (element.kind()) {
      case TypeKind::TensorType:
        return pt2::converted(
            elements, [&](jit::Value* entry) { return tensor(*entry); });
      case TypeKind::OptionalType:
        return pt2::converted(elements, [&](jit::Value* entry) {
          return entry->mustBeNone() ? std::nullopt
                                     : std::make_optional(tensor(*entry));
        });
      case TypeKind::FloatType:
        return pt2::converted(elements, [&](jit::Value* entry) {
          return scalar(node, *entry).toDouble();
        });
      case TypeKind::BoolType:
        return pt2::converted(elements, [&](jit::Value* entry) {
          return scalar(node, *entry).toBool();
        });
      default:
        return pt2::converted(elements, [&](jit::Value* entry) {
          return pt2::Int{scalar(node, *entry).toInt()};
        });
    }
  }

  c10::IValue scalar(const jit::Node& node, jit::Value& value) const {
    const auto constant = jit::toIValue(&value);
    check(
        node,
        constant.has_value() && !constant->isTensor(),
        "has an argument that the model computes from values of a tensor");
    return *constant;
  }

  pt2::Argument constant_argument(
      const jit::Node& node,
      const c10::IValue& value,
      const c10::Type& type) const {
    switch (type.kind()) {
      case TypeKind::ScalarTypeType:
        return static_cast<at::ScalarType>(value.toInt());
      case TypeKind::MemoryFormatType:
        return static_cast<at::MemoryFormat>(value.toInt());
      case TypeKind::LayoutType:
        return static_cast<at::Layout>(value.toInt());
      case TypeKind::FloatType:
        return value.isInt() ? static_cast<double>(value.toInt())
                             : value.toDouble();
      default:
        break;
    }
    if (value.isBool()) {
      return value.toBool();
    }
    if (value.isInt()) {
      return pt2::Int{value.toInt()};
    }
    if (value.isDouble()) {
      return value.toDouble();
    }
    if (value.isString()) {
      return value.toStringRef();
    }
    if (value.isDevice()) {
      return value.toDevice();
    }
    if (value.isIntList()) {
      return pt2::converted(
          value.toIntVector(), [](int64_t number) { return pt2::Int{number}; });
    }
    if (value.isDoubleList()) {
      return value.toDoubleVector();
    }
    if (value.isBoolList()) {
      const auto flags = value.toBoolList();
      return std::vector<bool>(flags.begin(), flags.end());
    }
    check(node, false, "has an argument of a kind that files can't hold");
    return pt2::None{};
  }

  void check(const jit::Node& node, bool is_convertible, const char* problem)
      const {
    TESSERA_CHECK_VALUE(
        is_convertible,
        "{} forward() calls {}, which {}. A file holds only operators whose arguments are tensors and constants. Compute the same with other operators.",
        where_,
        node.kind().toQualString(),
        problem);
  }

  jit::Graph& recorded_;
  std::vector<pt2::Weight>& weights_;
  const std::string& where_;
  pt2::Graph graph_;
  std::unordered_set<std::string> names_;
  std::unordered_map<const jit::Value*, std::string> tensors_;
  std::unordered_map<const jit::Value*, std::vector<std::string>> messages_;
  size_t num_outputs_ = 0;
  size_t num_constants_ = 0;
};

}  // namespace

pt2::Graph convert_graph(
    jit::Graph& recorded,
    std::vector<pt2::Weight>& weights,
    const std::vector<std::string>& inputs,
    const Checks& checks,
    const std::string& where) {
  return Converter(recorded, weights, inputs, checks, where).convert();
}

std::string identifier(
    const std::string& text,
    std::unordered_set<std::string>& taken) {
  std::string name;
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    const bool is_plain = byte < 0x80 && std::isalnum(byte) != 0;
    if (is_plain) {
      name += letter;
    } else if (!name.empty() && name.back() != '_') {
      name += '_';
    }
  }
  while (name.ends_with('_')) {
    name.pop_back();
  }
  constexpr size_t kMaxLength = 200;
  name.resize(std::min(name.size(), kMaxLength));
  const bool begins_with_digit =
      name.empty() || std::isdigit(static_cast<unsigned char>(name[0])) != 0;
  if (begins_with_digit ||
      std::ranges::find(kKeywords, name) != kKeywords.end()) {
    name = "x_" + name;
  }
  const std::string base = name;
  for (int i = 1; !taken.insert(name).second; ++i) {
    name = fmt::format("{}_{}", base, i);
  }
  return name;
}

}  // namespace tessera::exporting
