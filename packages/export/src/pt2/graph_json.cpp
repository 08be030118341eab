// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/graph_json.h"

#include <tessera/common/shorten.h>

#include "packages/formats/src/tensor_bytes.h"
#include "src/common/check.h"

#include <ATen/TensorGeometry.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <torch/version.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <span>
#include <utility>

namespace tessera::pt2 {

namespace {

// Readers refuse another major version, but accept a higher minor version. torch 2.11 to
// 2.15 know this version, and read the files with the same result.
constexpr int64_t kSchemaMajor = 8;
constexpr int64_t kSchemaMinor = 17;
constexpr int64_t kAtenOpset = 10;

// The numbers of torch.export's schema, which differ from those of LibTorch.
template <class T>
struct SchemaNumber {
  T value;
  int64_t number;
};

constexpr std::array<SchemaNumber<at::ScalarType>, 10> kDtypes = {{
    {at::kByte, 1},
    {at::kChar, 2},
    {at::kShort, 3},
    {at::kInt, 4},
    {at::kLong, 5},
    {at::kHalf, 6},
    {at::kFloat, 7},
    {at::kDouble, 8},
    {at::kBool, 12},
    {at::kBFloat16, 13},
}};

constexpr std::array<SchemaNumber<at::MemoryFormat>, 4> kMemoryFormats = {{
    {at::MemoryFormat::Contiguous, 1},
    {at::MemoryFormat::ChannelsLast, 2},
    {at::MemoryFormat::ChannelsLast3d, 3},
    {at::MemoryFormat::Preserve, 4},
}};

constexpr std::array<SchemaNumber<at::Layout>, 1> kLayouts = {{
    {at::kStrided, 7},
}};

template <class T>
int64_t number_of(T value, std::span<const SchemaNumber<T>> numbers) {
  const auto found = std::ranges::find(numbers, value, &SchemaNumber<T>::value);
  TESSERA_CHECK_VALUE(
      found != numbers.end(),
      "[export_pt2] the file format has no number for {}. Use dense tensors with float, integer or bool elements.",
      value);
  return found->number;
}

template <class T>
T value_of(
    const Json& json,
    std::span<const SchemaNumber<T>> numbers,
    const std::string& where) {
  const int64_t number = integer_from_json(json, where);
  const auto found =
      std::ranges::find(numbers, number, &SchemaNumber<T>::number);
  TESSERA_CHECK_VALUE(
      found != numbers.end(),
      "{} expected a dtype, layout or memory format that Tessera writes, but got the number {}. Read the file with torch.export.load.",
      where,
      number);
  return found->value;
}

Json device_json(const at::Device& device) {
  return {
      {"type", c10::DeviceTypeName(device.type(), /*lower_case=*/true)},
      {"index", nullptr}};
}

Json tensor_json(const TensorName& tensor) {
  return {{"name", tensor.name}};
}

Json int_json(const Int& value) {
  const auto* computed = std::get_if<IntName>(&value);
  return computed != nullptr ? Json{{"as_name", computed->name}}
                             : Json{{"as_int", std::get<int64_t>(value)}};
}

// JSON has no numbers for NaN and infinity. torch.export writes these words instead.
Json float_json(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  if (std::isinf(value)) {
    return value > 0 ? "Infinity" : "-Infinity";
  }
  return value;
}

bool is_constant(const Int& value) {
  return std::holds_alternative<int64_t>(value);
}

struct ArgumentToJson {
  Json operator()(const None& /*none*/) const {
    return {{"as_none", true}};
  }
  Json operator()(const TensorName& value) const {
    return {{"as_tensor", tensor_json(value)}};
  }
  Json operator()(const std::vector<TensorName>& values) const {
    return {{"as_tensors", converted(values, tensor_json)}};
  }
  Json operator()(const std::vector<std::optional<TensorName>>& values) const {
    const auto list = converted(values, [](const auto& value) {
      return value ? Json{{"as_tensor", tensor_json(*value)}}
                   : Json{{"as_none", true}};
    });
    return {{"as_optional_tensors", list}};
  }
  Json operator()(const Int& value) const {
    return is_constant(value) ? Json{{"as_int", std::get<int64_t>(value)}}
                              : Json{{"as_sym_int", int_json(value)}};
  }
  Json operator()(const std::vector<Int>& values) const {
    const bool all = std::ranges::all_of(values, is_constant);
    const auto list = converted(values, [&](const Int& value) {
      return all ? Json(std::get<int64_t>(value)) : int_json(value);
    });
    return {{all ? "as_ints" : "as_sym_ints", list}};
  }
  Json operator()(double value) const {
    return {{"as_float", float_json(value)}};
  }
  Json operator()(const std::vector<double>& values) const {
    return {{"as_floats", converted(values, float_json)}};
  }
  Json operator()(bool value) const {
    return {{"as_bool", value}};
  }
  Json operator()(const std::vector<bool>& values) const {
    return {{"as_bools", values}};
  }
  Json operator()(const std::string& value) const {
    return {{"as_string", value}};
  }
  Json operator()(at::ScalarType value) const {
    return {{"as_scalar_type", number_of<at::ScalarType>(value, kDtypes)}};
  }
  Json operator()(at::MemoryFormat value) const {
    return {
        {"as_memory_format",
         number_of<at::MemoryFormat>(value, kMemoryFormats)}};
  }
  Json operator()(at::Layout value) const {
    return {{"as_layout", number_of<at::Layout>(value, kLayouts)}};
  }
  Json operator()(const at::Device& value) const {
    return {{"as_device", device_json(value)}};
  }
};

bool has_value_symbol(const Graph& graph, const Polynomial& size) {
  for (const auto& [product, factor] : size.terms()) {
    for (const size_t symbol : product) {
      if (symbol < graph.is_value.size() && graph.is_value[symbol]) {
        return true;
      }
    }
  }
  return false;
}

Json size_json(const Polynomial& size, const Graph& graph) {
  if (size.is_constant()) {
    return {{"as_int", size.constant()}};
  }
  Json hint = {{"as_int", size.at(graph.symbols)}};
  if (has_value_symbol(graph, size)) {
    hint = nullptr;  // torch.export writes no hint for values
  }
  return {
      {"as_expr",
       {{"expr_str", to_sympy(size, graph.is_value)}, {"hint", hint}}}};
}

Json sizes_json(const std::vector<Polynomial>& sizes, const Graph& graph) {
  return converted(
      sizes, [&](const Polynomial& size) { return size_json(size, graph); });
}

Json meta_json(const TensorMeta& meta, const Graph& graph, bool is_parameter) {
  return {
      {"dtype", number_of<at::ScalarType>(meta.dtype, kDtypes)},
      {"sizes", sizes_json(meta.sizes, graph)},
      {"requires_grad", is_parameter},
      {"device", device_json(at::kCPU)},
      {"strides", sizes_json(meta.strides, graph)},
      {"storage_offset", size_json(meta.storage_offset, graph)},
      {"layout", number_of<at::Layout>(at::kStrided, kLayouts)}};
}

Json output_json(const Output& output) {
  if (const auto* integer = std::get_if<IntName>(&output)) {
    return {{"as_sym_int", {{"as_name", integer->name}}}};
  }
  if (const auto* tensor = std::get_if<TensorName>(&output)) {
    return ArgumentToJson()(*tensor);
  }
  return ArgumentToJson()(std::get<std::vector<TensorName>>(output));
}

// How Python passes an argument.
constexpr int kPositional = 1;
constexpr int kKeyword = 2;

Json node_json(const Node& node) {
  const auto inputs =
      converted(node.arguments, [](const NamedArgument& argument) {
        return Json{
            {"name", argument.name},
            {"arg", std::visit(ArgumentToJson(), argument.value)},
            {"kind", argument.is_keyword ? kKeyword : kPositional}};
      });
  return {
      {"target", node.target},
      {"inputs", inputs},
      {"outputs", converted(node.outputs, output_json)},
      {"metadata", Json::object()},
      {"is_hop_single_tensor_return", nullptr}};
}

// A tensor of the graph as an argument.
Json argument_json(const std::string& tensor) {
  return ArgumentToJson()(TensorName{tensor});
}

Json graph_json(const Graph& graph, const std::vector<Weight>& weights) {
  Json inputs = Json::array();
  Json tensors = Json::object();
  for (size_t i = 0; i < weights.size(); ++i) {
    inputs.push_back(argument_json(graph.weights[i]));
    tensors[graph.weights[i]] =
        to_json(weights[i].tensor, weights[i].is_parameter);
  }
  for (const std::string& input : graph.inputs) {
    inputs.push_back(argument_json(input));
  }
  for (const auto& [name, meta] : graph.tensors) {
    if (!tensors.contains(name)) {
      tensors[name] = meta_json(meta, graph, /*is_parameter=*/false);
    }
  }
  Json integers = Json::object();
  for (const auto& [name, value] : graph.integers) {
    integers[name] = size_json(value, graph);
  }
  return {
      {"inputs", std::move(inputs)},
      {"outputs", converted(graph.outputs, argument_json)},
      {"nodes", converted(graph.nodes, node_json)},
      {"tensor_values", std::move(tensors)},
      {"sym_int_values", std::move(integers)},
      {"sym_bool_values", Json::object()},
      {"is_single_tensor_return", false},
      {"custom_obj_values", Json::object()},
      {"sym_float_values", Json::object()}};
}

Json signature_json(const Graph& graph, const std::vector<Weight>& weights) {
  Json inputs = Json::array();
  for (size_t i = 0; i < weights.size(); ++i) {
    const std::string kind = weights[i].is_parameter ? "parameter" : "buffer";
    Json fields = {
        {"arg", tensor_json({graph.weights[i]})},
        {kind + "_name", weights[i].name}};
    if (!weights[i].is_parameter) {
      fields["persistent"] = true;
    }
    inputs.push_back({{kind, std::move(fields)}});
  }
  for (const std::string& input : graph.inputs) {
    inputs.push_back({{"user_input", {{"arg", argument_json(input)}}}});
  }
  const auto outputs = converted(graph.outputs, [](const std::string& output) {
    return Json{{"user_output", {{"arg", argument_json(output)}}}};
  });
  return {{"input_specs", std::move(inputs)}, {"output_specs", outputs}};
}

Json tree_json(const char* type, const char* context, const Json& children) {
  return {{"type", type}, {"context", context}, {"children_spec", children}};
}

Json leaves_json(size_t count) {
  const Json leaf = {
      {"type", nullptr},
      {"context", nullptr},
      {"children_spec", Json::array()}};
  return std::vector<Json>(count, leaf);
}

// A tree of Python containers as text, with the version of torch's pytree format.
std::string tree_text(const Json& tree) {
  Json text = Json::array();
  text.push_back(1);
  text.push_back(tree);
  return text.dump();
}

Json call_json(const Graph& graph) {
  Json arguments = Json::array();
  arguments.push_back(
      tree_json("builtins.tuple", "null", leaves_json(graph.inputs.size())));
  arguments.push_back(tree_json("builtins.dict", "[]", Json::array()));
  const Json leaves = leaves_json(graph.outputs.size());
  const Json result = graph.returns_list
      ? tree_json("builtins.list", "null", leaves)
      : leaves[0];
  Json call = {
      {"fqn", ""},
      {"signature",
       {{"inputs", Json::array()},
        {"outputs", Json::array()},
        {"in_spec", tree_text(tree_json("builtins.tuple", "null", arguments))},
        {"out_spec", tree_text(result)},
        {"forward_arg_names", graph.inputs}}}};
  Json calls = Json::array();
  calls.push_back(std::move(call));
  return calls;
}

// The ranges of the symbols begin at 0, because sizes may be 0.
Json ranges_json(const Graph& graph) {
  Json ranges = Json::object();
  for (size_t i = 0; i < graph.symbols.size(); ++i) {
    ranges[symbol_name(i, graph.is_value.at(i))] = {
        {"min_val", 0}, {"max_val", nullptr}};
  }
  return ranges;
}

// The pairs of input sizes that must be equal, written as torch's guards.
Json guards_json(const Graph& graph) {
  std::map<Polynomial, std::string> first;
  Json guards = Json::array();
  for (const std::string& input : graph.inputs) {
    const std::vector<Polynomial>& sizes = graph.tensors.at(input).sizes;
    for (size_t axis = 0; axis < sizes.size(); ++axis) {
      if (sizes[axis].is_constant()) {
        continue;
      }
      const std::string size = fmt::format("L['{}'].size()[{}]", input, axis);
      const auto [known, is_new] = first.emplace(sizes[axis], size);
      if (!is_new) {
        guards.push_back(fmt::format("{} == {}", size, known->second));
      }
    }
  }
  return guards;
}

// Reads JSON and raises the errors of graph_from_json().
class GraphReader {
 public:
  explicit GraphReader(const std::string& where) : where_(where) {}

  NamedGraph read(const Json& json) const {
    const int64_t major =
        integer_from_json(json.at("schema_version").at("major"), where_);
    TESSERA_CHECK_VALUE(
        major == kSchemaMajor,
        "{} the schema version must be {}, but is {}. Read the file with the release of torch that wrote it.",
        where_,
        kSchemaMajor,
        major);
    const Json& module = json.at("graph_module");
    const Json& graph = module.at("graph");
    NamedGraph result;
    for (const Json& spec : module.at("signature").at("input_specs")) {
      read_input(spec, result);
    }
    result.graph.nodes = converted(
        graph.at("nodes"), [&](const Json& node) { return read_node(node); });
    result.graph.outputs =
        converted(graph.at("outputs"), [](const Json& output) {
          return read_tensor(output.at("as_tensor")).name;
        });
    TESSERA_CHECK_VALUE(
        !result.graph.outputs.empty(),
        "{} expected a model with at least one output, but it has none. The file is damaged.",
        where_);
    const std::string tree = module.at("module_call_graph")
                                 .at(0)
                                 .at("signature")
                                 .at("out_spec")
                                 .get<std::string>();
    result.graph.returns_list = tree.find("builtins.list") != std::string::npos;
    for (const auto& [name, meta] : graph.at("tensor_values").items()) {
      result.graph.tensors[name] = read_meta(meta);
    }
    for (const auto& [name, value] : graph.at("sym_int_values").items()) {
      result.graph.integers[name] = read_size(value);
    }
    for (const std::string& input : result.graph.inputs) {
      TESSERA_CHECK_VALUE(
          result.graph.tensors.count(input) == 1,
          "{} the type of the input '{}' is missing. The file is damaged.",
          where_,
          shorten(input));
    }
    return result;
  }

  StoredType read_stored_type(const Json& json) const {
    const TensorMeta meta = read_meta(json);
    const auto sizes = converted(meta.sizes, &Polynomial::constant);
    const auto strides = converted(meta.strides, &Polynomial::constant);
    const bool is_contiguous =
        std::ranges::all_of(meta.sizes, &Polynomial::is_constant) &&
        std::ranges::all_of(meta.strides, &Polynomial::is_constant) &&
        sizes.size() == strides.size() &&
        meta.storage_offset == Polynomial(0) &&
        num_bytes(sizes, meta.dtype) &&  // no product overflows
        at::geometry_is_contiguous(sizes, strides);
    TESSERA_CHECK_VALUE(
        is_contiguous,
        "{} expected a contiguous tensor with constant sizes, but its sizes or strides are others. Read the file with torch.export.load.",
        where_);
    return {.dtype = meta.dtype, .sizes = sizes};
  }

 private:
  static TensorName read_tensor(const Json& json) {
    return {json.at("name").get<std::string>()};
  }

  [[noreturn]] void refuse(const std::string& what, const Json& json) const {
    TESSERA_CHECK_VALUE(
        false,
        "{} expected {} that Tessera writes, but got {}. Read the file with torch.export.load.",
        where_,
        what,
        shorten(json.dump(
            -1, ' ', false, nlohmann::detail::error_handler_t::replace)));
    std::terminate();
  }

  void read_input(const Json& spec, NamedGraph& result) const {
    const std::string kind =
        spec.contains("parameter") ? "parameter" : "buffer";
    if (spec.contains(kind)) {
      const Json& weight = spec.at(kind);
      result.graph.weights.push_back(read_tensor(weight.at("arg")).name);
      result.weights.push_back(weight.at(kind + "_name").get<std::string>());
    } else if (spec.contains("user_input")) {
      const Json& argument = spec.at("user_input").at("arg");
      if (!argument.contains("as_tensor")) {
        refuse("an input", argument);
      }
      result.graph.inputs.push_back(read_tensor(argument.at("as_tensor")).name);
    } else {
      refuse("an input", spec);
    }
  }

  Polynomial read_size(const Json& json) const {
    if (json.contains("as_int")) {
      return integer_from_json(json.at("as_int"), where_);
    }
    return from_sympy(
        json.at("as_expr").at("expr_str").get<std::string>(), where_);
  }

  std::vector<Polynomial> read_sizes(const Json& json) const {
    TESSERA_CHECK_VALUE(
        json.is_array() && json.size() <= kMaxRank,
        "{} expected tensors with at most {} dimensions, but got {}. The file is damaged, or another program wrote it.",
        where_,
        kMaxRank,
        json.size());
    std::vector<Polynomial> sizes;
    for (const Json& size : json) {
      sizes.push_back(read_size(size));
      if (sizes.back().is_constant() && sizes.back().constant() < 0) {
        refuse("a size or a stride", size);
      }
    }
    return sizes;
  }

  TensorMeta read_meta(const Json& json) const {
    if (json.at("device").at("type") != "cpu") {
      refuse("a tensor on the cpu", json.at("device"));
    }
    value_of<at::Layout>(json.at("layout"), kLayouts, where_);
    return {
        .dtype = value_of<at::ScalarType>(json.at("dtype"), kDtypes, where_),
        .sizes = read_sizes(json.at("sizes")),
        .strides = read_sizes(json.at("strides")),
        .storage_offset = read_size(json.at("storage_offset"))};
  }

  Node read_node(const Json& json) const {
    Node node{.target = json.at("target").get<std::string>()};
    node.arguments = converted(json.at("inputs"), [&](const Json& input) {
      return NamedArgument{
          .name = input.at("name").get<std::string>(),
          .value = read_argument(input.at("arg"))};
    });
    for (const Json& output : json.at("outputs")) {
      if (output.contains("as_tensor")) {
        node.outputs.emplace_back(read_tensor(output.at("as_tensor")));
      } else if (output.contains("as_tensors")) {
        node.outputs.emplace_back(
            converted(output.at("as_tensors"), read_tensor));
      } else if (output.contains("as_sym_int")) {
        node.outputs.emplace_back(
            IntName{output.at("as_sym_int").at("as_name").get<std::string>()});
      } else {
        refuse("a result of a node", output);
      }
    }
    return node;
  }

  Int read_int(const Json& json) const {
    if (json.contains("as_name")) {
      return IntName{json.at("as_name").get<std::string>()};
    }
    return integer_from_json(json.at("as_int"), where_);
  }

  double read_float(const Json& json) const {
    if (!json.is_string()) {
      return json.get<double>();
    }
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (json == "NaN") {
      return std::numeric_limits<double>::quiet_NaN();
    }
    if (json != "Infinity" && json != "-Infinity") {
      refuse("a number", json);
    }
    return json == "Infinity" ? kInfinity : -kInfinity;
  }

  Argument read_argument(const Json& json) const {
    if (json.size() != 1) {
      refuse("an argument", json);
    }
    const std::string kind = json.begin().key();
    const Json& value = json.begin().value();
    if (kind == "as_none") {
      return None{};
    }
    if (kind == "as_tensor") {
      return read_tensor(value);
    }
    if (kind == "as_tensors") {
      return converted(value, read_tensor);
    }
    if (kind == "as_optional_tensors") {
      return converted(value, [](const Json& entry) {
        return entry.contains("as_tensor")
            ? std::make_optional(read_tensor(entry.at("as_tensor")))
            : std::nullopt;
      });
    }
    if (kind == "as_int") {
      return Int{integer_from_json(value, where_)};
    }
    if (kind == "as_sym_int") {
      return read_int(value);
    }
    if (kind == "as_ints" || kind == "as_sym_ints") {
      return converted(value, [&](const Json& entry) {
        return kind == "as_ints" ? Int{integer_from_json(entry, where_)}
                                 : read_int(entry);
      });
    }
    if (kind == "as_float") {
      return read_float(value);
    }
    if (kind == "as_floats") {
      return converted(
          value, [&](const Json& entry) { return read_float(entry); });
    }
    if (kind == "as_bool") {
      return value.get<bool>();
    }
    if (kind == "as_bools") {
      return value.get<std::vector<bool>>();
    }
    if (kind == "as_string") {
      return value.get<std::string>();
    }
    if (kind == "as_scalar_type") {
      return value_of<at::ScalarType>(value, kDtypes, where_);
    }
    if (kind == "as_memory_format") {
      return value_of<at::MemoryFormat>(value, kMemoryFormats, where_);
    }
    if (kind == "as_layout") {
      return value_of<at::Layout>(value, kLayouts, where_);
    }
    if (kind == "as_device" && value.at("type") == "cpu") {
      return at::Device(at::kCPU);
    }
    refuse("an argument", json);
  }

  const std::string& where_;
};

// Calls read() and turns errors of the JSON library into the library's own.
template <class Read>
auto with_schema_errors(const std::string& where, const Read& read) {
  try {
    return read();
  } catch (const Json::exception& error) {
    TESSERA_CHECK_VALUE(
        false,
        "{} expected JSON with the schema of torch.export, but got an error: {}. The file is damaged, or another program wrote it.",
        where,
        error.what());
    throw;
  }
}

}  // namespace

Json to_json(const at::Tensor& tensor, bool is_parameter) {
  const c10::DimVector strides = c10::contiguous_strides(tensor.sizes());
  const TensorMeta meta{
      .dtype = tensor.scalar_type(),
      .sizes = {tensor.sizes().begin(), tensor.sizes().end()},
      .strides = {strides.begin(), strides.end()}};
  return meta_json(meta, Graph(), is_parameter);
}

Json to_json(const Graph& graph, const std::vector<Weight>& weights) {
  return {
      {"graph_module",
       {{"graph", graph_json(graph, weights)},
        {"signature", signature_json(graph, weights)},
        {"module_call_graph", call_json(graph)},
        {"metadata", Json::object()},
        {"treespec_namedtuple_fields", Json::object()}}},
      {"opset_version", {{"aten", kAtenOpset}}},
      {"range_constraints", ranges_json(graph)},
      {"schema_version", {{"major", kSchemaMajor}, {"minor", kSchemaMinor}}},
      {"verifiers", {"TRAINING"}},
      {"torch_version", TORCH_VERSION},
      {"guards_code", guards_json(graph)}};
}

int64_t integer_from_json(const Json& json, const std::string& where) {
  const bool fits = json.is_number_integer() &&
      (!json.is_number_unsigned() ||
       json.get<uint64_t>() <=
           static_cast<uint64_t>(std::numeric_limits<int64_t>::max()));
  TESSERA_CHECK_VALUE(
      fits,
      "{} expected an integer of 64 bits, but got {}. The file is damaged, or another program wrote it.",
      where,
      shorten(json.dump(-1, ' ', false, Json::error_handler_t::replace)));
  return json.get<int64_t>();
}

NamedGraph graph_from_json(const Json& json, const std::string& where) {
  return with_schema_errors(
      where, [&] { return GraphReader(where).read(json); });
}

StoredType stored_type_from_json(const Json& json, const std::string& where) {
  return with_schema_errors(
      where, [&] { return GraphReader(where).read_stored_type(json); });
}

}  // namespace tessera::pt2
