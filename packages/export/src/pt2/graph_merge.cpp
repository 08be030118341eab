// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/graph_merge.h"

#include "packages/export/src/pt2/graph_conversion.h"
#include "packages/export/src/pt2/graph_runner.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_lstsq.h>
#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <random>
#include <set>
#include <unordered_set>
#include <utility>
#include <variant>

namespace tessera::exporting {

using pt2::Polynomial;

namespace {

// The number of points at which all symbols change, with Changes::kSeparate.
constexpr int kJointPoints = 8;
// The number of points at which all symbols change, with Changes::kJoint. A polynomial
// then has at most four coefficients, so the other points confirm it.
constexpr int kOnlyJointPoints = 12;

}  // namespace

SizeSolver::SizeSolver(
    std::vector<int64_t> base,
    std::vector<bool> is_fixed,
    Changes changes)
    : is_fixed_(std::move(is_fixed)), changes_(changes) {
  points_.push_back(std::move(base));
  changed_.emplace_back();
  const std::vector<int64_t> first = points_[0];
  const auto add = [&](const auto& size_of) {
    std::vector<int64_t> point = first;
    for (size_t i = 0; i < point.size(); ++i) {
      if (!is_fixed_[i]) {
        point[i] = size_of(i);
      }
    }
    points_.push_back(std::move(point));
  };
  const bool is_separate = changes_ == Changes::kSeparate;
  for (size_t changed = 0; changed < first.size(); ++changed) {
    for (const int64_t step : {2, 5}) {
      if (is_separate && !is_fixed_[changed]) {
        add([&](size_t i) { return first[i] + (i == changed ? step : 0); });
        changed_.emplace_back(changed);
      }
    }
  }
  std::mt19937 random(
      1);  // NOLINT(cert-msc32-c,cert-msc51-cpp): always the same
  const int joint = is_separate ? kJointPoints : kOnlyJointPoints;
  for (int i = 0; i < joint; ++i) {
    add([&](size_t symbol) {
      return first[symbol] + 1 + static_cast<int64_t>(random() % 12);
    });
    changed_.emplace_back();
  }
}

std::optional<Polynomial> SizeSolver::solve(
    const std::vector<int64_t>& values) {
  const auto known = known_.find(values);
  if (known != known_.end()) {
    return known->second;
  }
  const auto found = changes_ == Changes::kSeparate
      ? find_by_separate_changes(values)
      : find_by_joint_changes(values);
  known_.emplace(values, found);
  has_failed_ = has_failed_ || !found;
  return found;
}

std::optional<Polynomial> SizeSolver::find_by_joint_changes(
    const std::vector<int64_t>& values) const {
  if (auto found = fit({{}}, values)) {
    return found;
  }
  const size_t count = points_[0].size();
  for (size_t i = 0; i < count; ++i) {
    if (auto found = fit({{}, {i}}, values)) {
      return found;
    }
  }
  if (auto found = fit({{}, {0}, {0, 0}}, values)) {  // symbol 0: batch size
    return found;
  }
  for (size_t i = 1; i < count; ++i) {
    if (auto found = fit({{}, {0}, {i}, {0, i}}, values)) {
      return found;
    }
  }
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = 1; j < i; ++j) {
      if (auto found = fit({{}, {j}, {i}}, values)) {
        return found;
      }
    }
  }
  return std::nullopt;
}

std::optional<Polynomial> SizeSolver::find_by_separate_changes(
    const std::vector<int64_t>& values) const {
  // The symbols that change the value when they change alone.
  std::vector<size_t> symbols;
  for (size_t k = 0; k < points_.size(); ++k) {
    if (changed_[k] && values[k] != values[0] &&
        (symbols.empty() || symbols.back() != *changed_[k])) {
      symbols.push_back(*changed_[k]);
    }
  }
  std::vector<Polynomial::Product> products{{}};
  std::vector<Polynomial::Product> last = products;
  for (int degree = 0; degree <= 3; ++degree) {
    if (products.size() > points_.size()) {
      return std::nullopt;
    }
    if (auto found = fit(products, values)) {
      return found;
    }
    std::vector<Polynomial::Product> next;
    for (const Polynomial::Product& product : last) {
      for (const size_t symbol : symbols) {
        if (product.empty() || product.back() <= symbol) {
          next.push_back(product);
          next.back().push_back(symbol);
        }
      }
    }
    products.insert(products.end(), next.begin(), next.end());
    last = std::move(next);
  }
  return std::nullopt;
}

std::optional<Polynomial> SizeSolver::fit(
    const std::vector<Polynomial::Product>& products,
    const std::vector<int64_t>& values) const {
  const auto count = static_cast<int64_t>(products.size());
  const at::Tensor rows = at::empty({std::ssize(points_), count}, at::kDouble);
  double* next = rows.mutable_data_ptr<double>();
  for (const std::vector<int64_t>& point : points_) {
    for (const Polynomial::Product& product : products) {
      *next++ = static_cast<double>(Polynomial(product, 1).at(point));
    }
  }
  // Columns are scaled, because products of symbols differ by orders of magnitude.
  const at::Tensor scale = rows.abs().amax(0);
  const auto [scaled, residuals, rank, singular] = at::linalg_lstsq(
      rows / scale, at::tensor(values, at::kDouble).unsqueeze(1));
  if (rank.item<int64_t>() < count) {
    return std::nullopt;
  }
  const at::Tensor factors = scaled.squeeze(1) / scale;
  Polynomial polynomial;
  for (int64_t i = 0; i < count; ++i) {
    polynomial.add(products[i], std::llround(factors[i].item<double>()));
  }
  for (size_t k = 0; k < points_.size(); ++k) {
    if (polynomial.at(points_[k]) != values[k]) {
      return std::nullopt;
    }
  }
  return polynomial;
}

namespace {

// A tensor's type and sizes at one point.
struct Observation {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
  int64_t storage_offset = 0;
};

using Observations = std::map<std::string, Observation>;

Observations observe(const RecordedGraph& record, const std::string& where) {
  Observations seen;
  const auto observer = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) {
      seen[name] = {
          .dtype = tensor.scalar_type(),
          .sizes = tensor.sizes().vec(),
          .strides = tensor.strides().vec(),
          .storage_offset = tensor.storage_offset()};
    }
  };
  pt2::make_function(record.graph, record.weights, where)(
      record.inputs, observer);
  return seen;
}

class Merger {
 public:
  explicit Merger(const MergeInput& input)
      : input_(input), graph_(input.records[0].graph) {}

  pt2::Graph merge() {
    graph_.symbols = input_.hints;
    graph_.is_value.assign(graph_.symbols.size(), false);
    taken_.insert(graph_.weights.begin(), graph_.weights.end());
    taken_.insert(graph_.inputs.begin(), graph_.inputs.end());
    for (size_t k = 1; k < input_.records.size(); ++k) {
      check_structure(k);
    }
    for (const RecordedGraph& record : input_.records) {
      observations_.push_back(observe(record, input_.where));
    }
    for (const auto& [name, first] : observations_[0]) {
      taken_.insert(name);
      graph_.tensors[name] = merge_meta(name, first);
    }
    add_undefined();
    std::vector<pt2::Node> nodes = std::move(graph_.nodes);
    name_input_sizes();
    add_checks();
    for (size_t i = 0; i < nodes.size(); ++i) {
      for (size_t j = 0; j < nodes[i].arguments.size(); ++j) {
        merge_argument(nodes[i], i, j);
      }
    }
    graph_.nodes = std::move(integer_nodes_);
    std::move(nodes.begin(), nodes.end(), std::back_inserter(graph_.nodes));
    substitute_symbols();
    return std::move(graph_);
  }

 private:
  // Raises an error that names the first node at which two records differ.
  void check_structure(size_t k) const {
    const pt2::Graph& a = input_.records[0].graph;
    const pt2::Graph& b = input_.records[k].graph;
    const size_t count = std::min(a.nodes.size(), b.nodes.size());
    for (size_t i = 0; i < count; ++i) {
      check_same(
          k,
          a.nodes[i].target == b.nodes[i].target &&
              a.nodes[i].arguments.size() == b.nodes[i].arguments.size() &&
              a.nodes[i].outputs == b.nodes[i].outputs,
          fmt::format("{} and then {}", a.nodes[i].target, b.nodes[i].target));
    }
    check_same(
        k,
        a.nodes.size() == b.nodes.size() && a.outputs == b.outputs,
        fmt::format(
            "{} operators and then {}", a.nodes.size(), b.nodes.size()));
    check_same(
        k,
        a.weights == b.weights &&
            std::equal(
                input_.records[0].weights.begin(),
                input_.records[0].weights.end(),
                input_.records[k].weights.begin(),
                input_.records[k].weights.end(),
                [](const pt2::Weight& x, const pt2::Weight& y) {
                  return x.tensor.is_same(y.tensor) ||
                      (x.tensor.sizes() == y.tensor.sizes() &&
                       x.tensor.equal(y.tensor));
                }),
        "other tensors that C++ made");
  }

  void check_same(size_t k, bool is_same, const std::string& difference) const {
    TESSERA_CHECK_VALUE(
        is_same,
        "{} forward() must call the same operators for batches of all sizes, but it calls {} with {}. Choose operators without conditions on sizes.",
        input_.where,
        difference,
        point_text(k));
  }

  std::string point_text(size_t k) const {
    std::vector<std::string> changes;
    for (size_t i = 0; i < input_.descriptions.size(); ++i) {
      const int64_t before = input_.solver.points()[0][i];
      const int64_t after = input_.solver.points()[k][i];
      if (before != after && changes.size() < 3) {
        changes.push_back(fmt::format(
            "{} {} instead of {}", input_.descriptions[i], after, before));
      }
    }
    return fmt::format("{}", fmt::join(changes, ", "));
  }

  Polynomial solve(
      const std::vector<int64_t>& values,
      const std::string& what) {
    const auto found = input_.solver.solve(values);
    TESSERA_CHECK_VALUE(
        found.has_value(),
        "{} sizes must be sums of products of the batch size and the numbers of ids, but {} is {} with {}, and {} with {}. Compute it with operators, or without this size.",
        input_.where,
        what,
        values[0],
        sizes_text(0),
        values.back(),
        sizes_text(values.size() - 1));
    return *found;
  }

  std::string sizes_text(size_t k) const {
    std::vector<std::string> texts;
    for (size_t i = 0; i < std::min<size_t>(input_.descriptions.size(), 3);
         ++i) {
      texts.push_back(fmt::format(
          "{} {}", input_.descriptions[i], input_.solver.points()[k][i]));
    }
    return fmt::format("{}", fmt::join(texts, ", "));
  }

  // The values that `get` returns for the observations of a tensor.
  template <class Get>
  std::vector<int64_t> collect(const std::string& name, const Get& get) const {
    return pt2::converted(observations_, [&](const Observations& seen) {
      return get(seen.at(name));
    });
  }

  pt2::TensorMeta merge_meta(
      const std::string& name,
      const Observation& first) {
    pt2::TensorMeta meta{.dtype = first.dtype};
    for (const Observations& seen : observations_) {
      const auto other = seen.find(name);
      TESSERA_CHECK_VALUE(
          other != seen.end() && other->second.dtype == first.dtype &&
              other->second.sizes.size() == first.sizes.size(),
          "{} the tensor '{}' must have the same dtype and rank for batches of all sizes. Choose operators without conditions on sizes.",
          input_.where,
          name);
    }
    for (size_t axis = 0; axis < first.sizes.size(); ++axis) {
      meta.sizes.push_back(solve(
          collect(name, [&](const auto& seen) { return seen.sizes[axis]; }),
          fmt::format("size {} of '{}'", axis, name)));
      meta.strides.push_back(solve(
          collect(name, [&](const auto& seen) { return seen.strides[axis]; }),
          fmt::format("stride {} of '{}'", axis, name)));
    }
    meta.storage_offset = solve(
        collect(name, [](const auto& seen) { return seen.storage_offset; }),
        fmt::format("the storage offset of '{}'", name));
    return meta;
  }

  // An operator may leave an unused result undefined. A file needs a type for it, too, and
  // describes it as an empty tensor.
  void add_undefined() {
    for (const pt2::Node& node : graph_.nodes) {
      for (const pt2::Output& output : node.outputs) {
        if (const auto* tensor = std::get_if<pt2::TensorName>(&output)) {
          graph_.tensors.try_emplace(
              tensor->name,
              pt2::TensorMeta{
                  .dtype = at::kLong, .sizes = {0}, .strides = {1}});
        }
      }
    }
  }

  void merge_argument(pt2::Node& node, size_t i, size_t j) {
    pt2::NamedArgument& argument = node.arguments[j];
    const auto all =
        pt2::converted(input_.records, [&](const RecordedGraph& record) {
          return &record.graph.nodes[i].arguments[j].value;
        });
    if (std::ranges::all_of(
            all, [&](const auto* other) { return *other == argument.value; })) {
      return;
    }
    const std::string what =
        fmt::format("argument '{}' of {}", argument.name, node.target);
    const auto merge_ints = [&](const auto& get) -> pt2::Int {
      return int_of(solve(
          pt2::converted(all, [&](const auto* other) { return get(*other); }),
          what));
    };
    const auto is_alike = [&](const auto* other) {
      const auto* list = std::get_if<std::vector<pt2::Int>>(&argument.value);
      const auto* others = std::get_if<std::vector<pt2::Int>>(other);
      return other->index() == argument.value.index() &&
          (list == nullptr || list->size() == others->size());
    };
    const bool is_list =
        std::holds_alternative<std::vector<pt2::Int>>(argument.value);
    TESSERA_CHECK_VALUE(
        (is_list || std::holds_alternative<pt2::Int>(argument.value)) &&
            std::ranges::all_of(all, is_alike),
        "{} {} must not depend on the sizes of the batch, unless it is an integer, but C++ computes it from them. Compute it with operators.",
        input_.where,
        what);
    if (!is_list) {
      argument.value = merge_ints([](const pt2::Argument& other) {
        return std::get<int64_t>(std::get<pt2::Int>(other));
      });
      return;
    }
    auto merged = std::get<std::vector<pt2::Int>>(argument.value);
    for (size_t entry = 0; entry < merged.size(); ++entry) {
      merged[entry] = merge_ints([&](const pt2::Argument& other) {
        return std::get<int64_t>(std::get<std::vector<pt2::Int>>(other)[entry]);
      });
    }
    argument.value = std::move(merged);
  }

  // Adds a node that computes an integer, and returns its name.
  std::string add_integer(
      const std::string& target,
      std::vector<pt2::NamedArgument> arguments,
      const Polynomial& value) {
    const std::string name = identifier("size", taken_);
    integer_nodes_.push_back(
        {.target = target,
         .arguments = std::move(arguments),
         .outputs = {pt2::IntName{name}}});
    graph_.integers[name] = value;
    names_[value] = name;
    return name;
  }

  std::string combine(
      const char* target,
      const pt2::Int& a,
      const pt2::Int& b,
      const Polynomial& value) {
    return add_integer(target, {{"a", a}, {"b", b}}, value);
  }

  std::string name_of(const Polynomial& value) {
    if (const auto known = names_.find(value); known != names_.end()) {
      return known->second;
    }
    if (const auto read = read_from_input(value)) {
      return *read;
    }
    // A sum is computed as the sum of all other terms, plus the last term.
    const auto [product, factor] = *value.terms().rbegin();
    if (value.terms().size() > 1) {
      Polynomial rest = value;
      rest.add(product, -factor);
      const pt2::Int left = int_of(rest);
      const pt2::Int last = int_of({product, factor});
      return combine("_operator.add", left, last, value);
    }
    if (factor != 1) {
      return combine("_operator.mul", int_of({product, 1}), factor, value);
    }
    if (product.size() > 1) {
      const pt2::Int left = int_of({{product.begin(), product.end() - 1}, 1});
      return combine(
          "_operator.mul",
          left,
          int_of(Polynomial::symbol(product.back())),
          value);
    }
    return name_of_symbol(product[0]);
  }

  pt2::Int int_of(const Polynomial& value) {
    return value.is_constant() ? pt2::Int{value.constant()}
                               : pt2::Int{pt2::IntName{name_of(value)}};
  }

  // Reads a size of an input that is exactly this polynomial.
  std::optional<std::string> read_from_input(const Polynomial& value) {
    for (const std::string& input : graph_.inputs) {
      const std::vector<Polynomial>& sizes = graph_.tensors.at(input).sizes;
      const auto found = std::ranges::find(sizes, value);
      if (found != sizes.end()) {
        return add_integer(
            "torch.ops.aten.sym_size.int",
            {{"self", pt2::TensorName{input}},
             {"dim", pt2::Int{int64_t{found - sizes.begin()}}}},
            value);
      }
    }
    return std::nullopt;
  }

  // Gives a new symbol to each size of an input that is a sum, such as s0 + 1. With such a
  // size, torch.export's run_decompositions() fails, even for files that Python wrote. If
  // nothing else determines s0, it is computed from the new symbol. The graph checks that
  // the new symbol equals the sum.
  void name_input_sizes() {
    std::set<size_t> plain;
    for (const std::string& input : graph_.inputs) {
      for (const Polynomial& size : graph_.tensors.at(input).sizes) {
        if (is_symbol(size)) {
          plain.insert(size.linear_term()->symbol);
        }
      }
    }
    for (const std::string& input : graph_.inputs) {
      std::vector<Polynomial>& sizes = graph_.tensors.at(input).sizes;
      for (size_t axis = 0; axis < sizes.size(); ++axis) {
        if (sizes[axis].is_constant() || is_symbol(sizes[axis])) {
          continue;
        }
        const Polynomial meaning = sizes[axis];
        const Polynomial own = Polynomial::symbol(graph_.symbols.size());
        graph_.symbols.push_back(meaning.at(graph_.symbols));
        graph_.is_value.push_back(false);
        sizes[axis] = own;
        const auto term = meaning.linear_term();
        if (term && term->factor > 0 && plain.insert(term->symbol).second) {
          define_symbol(*term, meaning.constant(), own);
        }
        checks_.push_back({input, own, meaning});
      }
    }
  }

  static bool is_symbol(const Polynomial& size) {
    const auto term = size.linear_term();
    return term && size == Polynomial::symbol(term->symbol);
  }

  // Computes a symbol from the size `own` of an input, which is `term` + `constant`.
  void define_symbol(
      const Polynomial::LinearTerm& term,
      int64_t constant,
      const Polynomial& own) {
    const Polynomial value = Polynomial::symbol(term.symbol);
    Polynomial product = own;
    product.add({}, -constant);
    if (term.factor == 1) {
      names_[value] = name_of(product);
      substitutions_.emplace_back(term.symbol, product);
    } else {
      combine("_operator.floordiv", int_of(product), term.factor, value);
    }
  }

  // Replaces the symbols that are not sizes of inputs in all sizes, because torch.export
  // does not accept them.
  void substitute_symbols() {
    for (const auto& [symbol, value] : substitutions_) {
      for (auto& [name, integer] : graph_.integers) {
        integer = integer.substitute(symbol, value);
      }
      for (auto& [name, meta] : graph_.tensors) {
        for (Polynomial& size : meta.sizes) {
          size = size.substitute(symbol, value);
        }
        for (Polynomial& stride : meta.strides) {
          stride = stride.substitute(symbol, value);
        }
        meta.storage_offset = meta.storage_offset.substitute(symbol, value);
      }
    }
  }

  // Adds nodes that check that each symbol from name_input_sizes() equals its sum.
  void add_checks() {
    for (const SizeCheck& check : checks_) {
      const std::string own = name_of(check.own);
      const std::string tensor = add_tensor(
          "torch.ops.aten.scalar_tensor.default",
          {{"s", pt2::Int{pt2::IntName{own}}},
           {.name = "dtype", .value = at::kLong, .is_keyword = true}},
          at::kLong);
      const std::string is_equal = add_tensor(
          "torch.ops.aten.eq.Scalar",
          {{"self", pt2::TensorName{tensor}}, {"other", int_of(check.meaning)}},
          at::kBool);
      integer_nodes_.push_back(
          {.target = "torch.ops.aten._assert_async.msg",
           .arguments = {
               {"self", pt2::TensorName{is_equal}},
               {"assert_msg",
                fmt::format(
                    "the size of {} must fit the sizes of the other inputs",
                    check.input)}}});
    }
  }

  // Adds a node whose result is a tensor with one element.
  std::string add_tensor(
      const char* target,
      std::vector<pt2::NamedArgument> arguments,
      at::ScalarType dtype) {
    const std::string name = identifier("check", taken_);
    integer_nodes_.push_back(
        {.target = target,
         .arguments = std::move(arguments),
         .outputs = {pt2::TensorName{name}}});
    graph_.tensors[name] = {.dtype = dtype};
    return name;
  }

  // Reads a symbol that is not a size of an input from the values of a dense_shape.
  std::string name_of_symbol(size_t symbol) {
    const auto source =
        std::ranges::find(input_.value_sources, symbol, &ValueSource::symbol);
    TESSERA_CHECK_VALUE(
        source != input_.value_sources.end(),
        "{} {} must be a size of an input, but it is not. Pass an input with this size.",
        input_.where,
        input_.descriptions[symbol]);
    graph_.is_value[symbol] = true;
    const std::string tensor = add_tensor(
        "torch.ops.aten.select.int",
        {{"self", pt2::TensorName{source->input}},
         {"dim", pt2::Int{int64_t{0}}},
         {"index", pt2::Int{int64_t{0}}}},
        source->dtype);
    return add_integer(
        "torch.ops.aten.item.default",
        {{"self", pt2::TensorName{tensor}}},
        Polynomial::symbol(symbol));
  }

  struct SizeCheck {
    std::string input;
    Polynomial own;
    Polynomial meaning;
  };

  const MergeInput& input_;
  pt2::Graph graph_;
  std::vector<Observations> observations_;
  std::vector<pt2::Node> integer_nodes_;
  std::map<Polynomial, std::string> names_;
  std::vector<std::pair<size_t, Polynomial>> substitutions_;
  std::vector<SizeCheck> checks_;
  std::unordered_set<std::string> taken_;  // all names of the graph
};

}  // namespace

pt2::Graph merge_graphs(const MergeInput& input) {
  return Merger(input).merge();
}

}  // namespace tessera::exporting
