// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/pt2_program.h>

#include "packages/export/src/pt2/archive.h"
#include "packages/export/src/pt2/graph_runner.h"
#include "packages/export/src/pt2/polynomial.h"
#include "src/common/check.h"

#include <tessera/common/shorten.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

namespace tessera {

namespace {

constexpr const char* kProgramWhere = "[Pt2Program]";

std::string shape_text(const std::vector<std::optional<int64_t>>& shape) {
  std::vector<std::string> sizes;
  for (const std::optional<int64_t>& size : shape) {
    sizes.push_back(size ? std::to_string(*size) : "?");
  }
  return fmt::format("[{}]", fmt::join(sizes, ", "));
}

// Returns the weight of this name, which must have the shape and the dtype of `like`.
at::Tensor checked_weight(
    const std::map<std::string, at::Tensor>& weights,
    const std::string& name,
    const at::Tensor& like) {
  const auto found = weights.find(name);
  TESSERA_CHECK_VALUE(
      found != weights.end() && found->second.defined(),
      "{} with_weights: expected the weight '{}', but it is missing. Pass all weights of the program.",
      kProgramWhere,
      shorten(name));
  const at::Tensor& tensor = found->second;
  TESSERA_CHECK_VALUE(
      tensor.sizes() == like.sizes() && tensor.is_cpu() &&
          tensor.layout() == at::kStrided,
      "{} with_weights: the weight '{}' must be a dense tensor {} on the cpu, but is {} on {}. Export the program again if the model has changed.",
      kProgramWhere,
      shorten(name),
      like.sizes(),
      tensor.sizes(),
      tensor.device());
  TESSERA_CHECK_TYPE(
      tensor.scalar_type() == like.scalar_type(),
      "{} with_weights: the weight '{}' must be {}, but is {}. Convert it with .to().",
      kProgramWhere,
      shorten(name),
      like.scalar_type(),
      tensor.scalar_type());
  return tensor;
}

// Checks that the sizes of the inputs belong together: each symbol has one value.
class SizeCheck {
 public:
  explicit SizeCheck(size_t num_symbols) : symbols_(num_symbols) {}

  // Learns the value of a symbol from a size that is symbol + constant. Returns whether
  // the symbol is not negative.
  bool learn(const pt2::Polynomial& size, int64_t value) {
    const auto symbol = plain_symbol(size);
    if (symbol && !symbols_[*symbol]) {
      int64_t known = 0;
      if (__builtin_sub_overflow(value, size.constant(), &known)) {
        return false;
      }
      symbols_[*symbol] = known;
    }
    return !symbol || *symbols_[*symbol] >= 0;
  }

  // The value that a size must have. nullopt if no input determines it.
  std::optional<int64_t> expected(const pt2::Polynomial& size) const {
    std::vector<int64_t> values;
    for (const auto& [product, factor] : size.terms()) {
      for (const size_t symbol : product) {
        if (symbol >= symbols_.size() || !symbols_[symbol]) {
          return std::nullopt;
        }
      }
    }
    for (const auto& symbol : symbols_) {
      values.push_back(symbol.value_or(0));
    }
    return size.at(values);
  }

 private:
  std::optional<size_t> plain_symbol(const pt2::Polynomial& size) const {
    std::optional<size_t> symbol;
    for (const auto& [product, factor] : size.terms()) {
      if (product.empty()) {
        continue;
      }
      if (product.size() > 1 || factor != 1 || symbol ||
          product[0] >= symbols_.size()) {
        return std::nullopt;
      }
      symbol = product[0];
    }
    return symbol;
  }

  std::vector<std::optional<int64_t>> symbols_;
};

std::string text_of_sizes(const std::vector<pt2::Polynomial>& sizes) {
  std::vector<std::string> texts;
  for (const pt2::Polynomial& size : sizes) {
    texts.push_back(pt2::to_text(size));
  }
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

// Checks the arguments of a program. Each symbol in the sizes has one value in a call.
class InputCheck {
 public:
  using Sizes = std::vector<pt2::Polynomial>;

  // `sizes` has the sizes of each input.
  InputCheck(
      std::vector<Pt2Value> inputs,
      std::vector<Sizes> sizes,
      std::string where)
      : inputs_(std::move(inputs)),
        sizes_(std::move(sizes)),
        where_(std::move(where)) {
    for (const Sizes& of_input : sizes_) {
      for (const pt2::Polynomial& size : of_input) {
        for (const auto& [product, factor] : size.terms()) {
          for (const size_t symbol : product) {
            num_symbols_ = std::max(num_symbols_, symbol + 1);
          }
        }
      }
    }
  }

  // Errors:  those of Pt2Program::check(), beginning with `where`.
  void operator()(const std::vector<at::Tensor>& tensors) const {
    TESSERA_CHECK_VALUE(
        tensors.size() == inputs_.size(),
        "{} expected {} tensors, but got {}. Pass one tensor for each of signature().inputs.",
        where_,
        inputs_.size(),
        tensors.size());
    SizeCheck known(num_symbols_);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i];
      TESSERA_CHECK_VALUE(
          tensor.defined() && tensor.device().is_cpu() &&
              tensor.layout() == at::kStrided,
          "{} input '{}' must be a dense tensor on the cpu. Pass such a tensor.",
          where_,
          shorten(inputs_[i].name));
      TESSERA_CHECK_TYPE(
          tensor.scalar_type() == inputs_[i].dtype,
          "{} input '{}' must have the dtype {}, but has {}. Convert it with to().",
          where_,
          shorten(inputs_[i].name),
          c10::toString(inputs_[i].dtype),
          c10::toString(tensor.scalar_type()));
      check_shape(
          i,
          tensor,
          tensor.dim() == static_cast<int64_t>(sizes_[i].size()),
          "the number of dimensions differs");
      check_shape(
          i,
          tensor,
          inputs_[i].part != "row_splits" || tensor.numel() > 0,
          "row_splits begin with 0 even without rows");
      for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
        check_shape(
            i,
            tensor,
            known.learn(sizes_[i][axis], tensor.size(axis)),
            "a size is too small");
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (int64_t axis = 0; axis < tensors[i].dim(); ++axis) {
        const auto expected = known.expected(sizes_[i][axis]);
        check_shape(
            i,
            tensors[i],
            !expected || *expected == tensors[i].size(axis),
            "sizes of the same name must be equal in all inputs");
      }
    }
  }

  size_t num_symbols() const {
    return num_symbols_;
  }

 private:
  void check_shape(
      size_t input,
      const at::Tensor& tensor,
      bool fits,
      const char* reason) const {
    TESSERA_CHECK_VALUE(
        fits,
        "{} input '{}' must have the shape {}, but has {}: {}. Correct the batch.",
        where_,
        shorten(inputs_[input].name),
        text_of_sizes(sizes_[input]),
        tensor.sizes(),
        reason);
  }

  std::vector<Pt2Value> inputs_;
  std::vector<Sizes> sizes_;
  std::string where_;
  size_t num_symbols_ = 0;
};

void add_values(
    std::string& text,
    const char* title,
    const std::vector<Pt2Value>& values) {
  text += fmt::format("{}\n", title);
  for (size_t i = 0; i < values.size(); ++i) {
    const Pt2Value& value = values[i];
    text += fmt::format(
        "  {:>3}  {:<32} {:<8} {:<12} {}\n",
        i,
        value.name,
        c10::toString(value.dtype),
        shape_text(value.shape),
        value.part.empty() ? value.path
                           : fmt::format("{}: {}", value.path, value.part));
  }
}

}  // namespace

std::string to_string(const Pt2Signature& signature) {
  std::string text;
  add_values(text, "inputs", signature.inputs);
  add_values(text, "outputs", signature.outputs);
  return text;
}

class Pt2Program::Impl {
 public:
  Impl(pt2::Archive archive, const std::string& place)
      : archive_(std::move(archive)),
        runner_(archive_.graph, tensors_of(archive_), kProgramWhere),
        check_(
            archive_.signature.inputs,
            sizes_of(archive_.graph),
            kProgramWhere) {
    TESSERA_CHECK_VALUE(
        check_.num_symbols() <= kMaxSymbols,
        "{} expected at most {} symbols, but got {}. The file is damaged.",
        place,
        kMaxSymbols,
        check_.num_symbols());
  }

  std::unique_ptr<Impl> with_weights(
      const std::map<std::string, at::Tensor>& weights) const {
    pt2::Archive archive = archive_;
    for (pt2::Weight& weight : archive.weights) {
      if (!weights.contains(weight.name) && !weight.is_parameter &&
          weight.name.starts_with("constant_")) {
        continue;  // a constant of the graph, which no module has
      }
      weight.tensor = checked_weight(weights, weight.name, weight.tensor);
    }
    return std::make_unique<Impl>(std::move(archive), kProgramWhere);
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const {
    check(inputs);
    return runner_.run(inputs);
  }

  void check(const std::vector<at::Tensor>& inputs) const {
    check_(inputs);
  }

  const pt2::Archive& archive() const {
    return archive_;
  }

 private:
  static constexpr size_t kMaxSymbols = 1'000'000;

  static std::vector<at::Tensor> tensors_of(const pt2::Archive& archive) {
    std::vector<at::Tensor> tensors;
    for (const pt2::Weight& weight : archive.weights) {
      tensors.push_back(weight.tensor);
    }
    return tensors;
  }

  static std::vector<std::vector<pt2::Polynomial>> sizes_of(
      const pt2::Graph& graph) {
    std::vector<std::vector<pt2::Polynomial>> sizes;
    for (const std::string& input : graph.inputs) {
      sizes.push_back(graph.tensors.at(input).sizes);
    }
    return sizes;
  }

  pt2::Archive archive_;
  pt2::GraphRunner runner_;
  InputCheck check_;
};

Pt2Program::Pt2Program(const std::string& path) {
  const std::string place = fmt::format("{} {}:", kProgramWhere, path);
  impl_ = std::make_unique<Impl>(
      pt2::read_archive(
          std::make_shared<MappedFile>(path, kProgramWhere), place),
      place);
}

Pt2Program::Pt2Program(
    std::string_view bytes,
    std::shared_ptr<const void> owner)
    : impl_(std::make_unique<Impl>(
          pt2::read_archive(
              std::make_shared<MappedFile>(bytes, std::move(owner)),
              kProgramWhere),
          kProgramWhere)) {}

Pt2Program::Pt2Program(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Pt2Program::~Pt2Program() = default;
Pt2Program::Pt2Program(Pt2Program&&) noexcept = default;
Pt2Program& Pt2Program::operator=(Pt2Program&&) noexcept = default;

const Pt2Signature& Pt2Program::signature() const& {
  return impl_->archive().signature;
}

std::vector<at::Tensor> Pt2Program::run(
    const std::vector<at::Tensor>& inputs) const {
  return impl_->run(inputs);
}

void Pt2Program::check(const std::vector<at::Tensor>& inputs) const {
  impl_->check(inputs);
}

Pt2Program Pt2Program::with_weights(
    const std::map<std::string, at::Tensor>& weights) const {
  return Pt2Program(impl_->with_weights(weights));
}

std::vector<std::pair<std::string, at::Tensor>> Pt2Program::state_dict() const {
  std::vector<std::pair<std::string, at::Tensor>> weights;
  for (const pt2::Weight& weight : impl_->archive().weights) {
    weights.emplace_back(weight.name, weight.tensor);
  }
  return weights;
}

}  // namespace tessera
