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

namespace tessera {

namespace {

constexpr const char* kProgramWhere = "[Pt2Program]";

std::string shape_text(const std::vector<std::optional<int64_t>>& shape) {
  const auto sizes = pt2::converted(shape, [](const auto& size) {
    return size ? std::to_string(*size) : "?";
  });
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

std::string text_of_sizes(const std::vector<pt2::Polynomial>& sizes) {
  return fmt::format(
      "[{}]", fmt::join(pt2::converted(sizes, pt2::to_text), ", "));
}

// Checks that the sizes of the inputs belong together: each symbol has one value in a call.
class SizeCheck {
 public:
  explicit SizeCheck(size_t num_symbols) : symbols_(num_symbols) {}

  // Learns the value of a symbol from a size of the form symbol + constant. Returns false
  // if the symbol would be negative.
  bool learn(const pt2::Polynomial& size, int64_t value) {
    const auto term = size.linear_term();
    if (!term || term->factor != 1 || term->symbol >= symbols_.size()) {
      return true;
    }
    std::optional<int64_t>& symbol = symbols_[term->symbol];
    if (!symbol) {
      int64_t known = 0;
      if (__builtin_sub_overflow(value, size.constant(), &known)) {
        return false;
      }
      symbol = known;
    }
    return *symbol >= 0;
  }

  // The value that a size must have. nullopt if no input determines it.
  std::optional<int64_t> expected(const pt2::Polynomial& size) const {
    for (const auto& [product, factor] : size.terms()) {
      for (const size_t symbol : product) {
        if (symbol >= symbols_.size() || !symbols_[symbol]) {
          return std::nullopt;
        }
      }
    }
    return size.at(pt2::converted(
        symbols_, [](const auto& symbol) { return symbol.value_or(0); }));
  }

 private:
  std::vector<std::optional<int64_t>> symbols_;
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
  Impl(pt2::Archive from, const std::string& place)
      : archive(std::move(from)),
        run(pt2::make_function(archive.graph, archive.weights, kProgramWhere)) {
    for (const std::string& input : archive.graph.inputs) {
      sizes.push_back(&archive.graph.tensors.at(input).sizes);
      for (const pt2::Polynomial& size : *sizes.back()) {
        for (const auto& [product, factor] : size.terms()) {
          for (const size_t symbol : product) {
            num_symbols = std::max(num_symbols, symbol + 1);
          }
        }
      }
    }
    constexpr size_t kMaxSymbols = 1'000'000;
    TESSERA_CHECK_VALUE(
        num_symbols <= kMaxSymbols,
        "{} expected at most {} symbols, but got {}. The file is damaged.",
        place,
        kMaxSymbols,
        num_symbols);
  }

  void check(const std::vector<at::Tensor>& tensors) const {
    const std::vector<Pt2Value>& inputs = archive.signature.inputs;
    TESSERA_CHECK_VALUE(
        tensors.size() == inputs.size(),
        "{} expected {} tensors, but got {}. Pass one tensor for each of signature().inputs.",
        kProgramWhere,
        inputs.size(),
        tensors.size());
    SizeCheck known(num_symbols);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const at::Tensor& tensor = tensors[i];
      TESSERA_CHECK_VALUE(
          tensor.defined() && tensor.device().is_cpu() &&
              tensor.layout() == at::kStrided,
          "{} input '{}' must be a dense tensor on the cpu. Pass such a tensor.",
          kProgramWhere,
          shorten(inputs[i].name));
      TESSERA_CHECK_TYPE(
          tensor.scalar_type() == inputs[i].dtype,
          "{} input '{}' must have the dtype {}, but has {}. Convert it with to().",
          kProgramWhere,
          shorten(inputs[i].name),
          c10::toString(inputs[i].dtype),
          c10::toString(tensor.scalar_type()));
      check_shape(
          i,
          tensor,
          tensor.dim() == static_cast<int64_t>(sizes[i]->size()),
          "the number of dimensions differs");
      check_shape(
          i,
          tensor,
          inputs[i].part != "row_splits" || tensor.numel() > 0,
          "row_splits begin with 0 even without rows");
      for (int64_t axis = 0; axis < tensor.dim(); ++axis) {
        check_shape(
            i,
            tensor,
            known.learn((*sizes[i])[axis], tensor.size(axis)),
            "a size is too small");
      }
    }
    for (size_t i = 0; i < tensors.size(); ++i) {
      for (int64_t axis = 0; axis < tensors[i].dim(); ++axis) {
        const auto expected = known.expected((*sizes[i])[axis]);
        check_shape(
            i,
            tensors[i],
            !expected || *expected == tensors[i].size(axis),
            "sizes of the same name must be equal in all inputs");
      }
    }
  }

  void check_shape(
      size_t input,
      const at::Tensor& tensor,
      bool fits,
      const char* reason) const {
    TESSERA_CHECK_VALUE(
        fits,
        "{} input '{}' must have the shape {}, but has {}: {}. Correct the batch.",
        kProgramWhere,
        shorten(archive.graph.inputs[input]),
        text_of_sizes(*sizes[input]),
        tensor.sizes(),
        reason);
  }

  pt2::Archive archive;
  pt2::GraphFunction run;
  // The sizes of each input in archive.
  std::vector<const std::vector<pt2::Polynomial>*> sizes;
  size_t num_symbols = 0;
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
  return impl_->archive.signature;
}

std::vector<at::Tensor> Pt2Program::run(
    const std::vector<at::Tensor>& inputs) const {
  impl_->check(inputs);
  return impl_->run(inputs, {});
}

void Pt2Program::check(const std::vector<at::Tensor>& inputs) const {
  impl_->check(inputs);
}

Pt2Program Pt2Program::with_weights(
    const std::map<std::string, at::Tensor>& weights) const {
  pt2::Archive archive = impl_->archive;
  for (pt2::Weight& weight : archive.weights) {
    if (!weights.contains(weight.name) && !weight.is_parameter &&
        weight.name.starts_with("constant_")) {
      continue;  // a constant of the graph, which no module has
    }
    weight.tensor = checked_weight(weights, weight.name, weight.tensor);
  }
  return Pt2Program(std::make_unique<Impl>(std::move(archive), kProgramWhere));
}

std::vector<std::pair<std::string, at::Tensor>> Pt2Program::state_dict() const {
  return pt2::converted(impl_->archive.weights, [](const auto& weight) {
    return std::pair(weight.name, weight.tensor);
  });
}

}  // namespace tessera
