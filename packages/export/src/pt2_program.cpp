// SPDX-License-Identifier: Apache-2.0
#include <tessera/export/pt2_program.h>

#include <tessera/common/shorten.h>

#include "packages/export/src/pt2/archive.h"
#include "packages/export/src/pt2/graph_runner.h"
#include "src/common/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

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

std::string shape_text(const std::vector<pt2::Polynomial>& sizes) {
  std::vector<std::string> texts;
  for (const pt2::Polynomial& size : sizes) {
    texts.push_back(pt2::to_text(size));
  }
  return fmt::format("[{}]", fmt::join(texts, ", "));
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
  Impl(pt2::Archive archive, const std::string& path)
      : archive_(std::move(archive)),
        runner_(archive_.graph, tensors_of(archive_), kProgramWhere) {
    for (const std::string& input : archive_.graph.inputs) {
      metas_.push_back(archive_.graph.tensors.at(input));
      for (const pt2::Polynomial& size : metas_.back().sizes) {
        for (const auto& [product, factor] : size.terms()) {
          for (const size_t symbol : product) {
            num_symbols_ = std::max(num_symbols_, symbol + 1);
          }
        }
      }
    }
    TESSERA_CHECK_VALUE(
        num_symbols_ <= kMaxSymbols,
        "{} {}: expected at most {} symbols, but got {}. The file is damaged.",
        kProgramWhere,
        path,
        kMaxSymbols,
        num_symbols_);
  }

  std::unique_ptr<Impl> with_weights(
      const std::map<std::string, at::Tensor>& weights) const {
    pt2::Archive archive = archive_;
    for (pt2::Weight& weight : archive.weights) {
      const auto found = weights.find(weight.name);
      if (found == weights.end() && !weight.is_parameter &&
          weight.name.starts_with("constant_")) {
        continue;  // a constant of the graph, which no module has
      }
      TESSERA_CHECK_VALUE(
          found != weights.end() && found->second.defined(),
          "{} with_weights: expected the weight '{}', but it is missing. Pass all weights of the program.",
          kProgramWhere,
          shorten(weight.name));
      const at::Tensor& tensor = found->second;
      TESSERA_CHECK_VALUE(
          tensor.sizes() == weight.tensor.sizes() && tensor.is_cpu() &&
              tensor.layout() == at::kStrided,
          "{} with_weights: the weight '{}' must be a dense tensor {} on the cpu, but is {} on {}. Export the program again if the model has changed.",
          kProgramWhere,
          shorten(weight.name),
          weight.tensor.sizes(),
          tensor.sizes(),
          tensor.device());
      TESSERA_CHECK_TYPE(
          tensor.scalar_type() == weight.tensor.scalar_type(),
          "{} with_weights: the weight '{}' must be {}, but is {}. Convert it with .to().",
          kProgramWhere,
          shorten(weight.name),
          weight.tensor.scalar_type(),
          tensor.scalar_type());
      weight.tensor = tensor;
    }
    return std::make_unique<Impl>(std::move(archive), "");
  }

  std::vector<at::Tensor> run(const std::vector<at::Tensor>& inputs) const {
    check(inputs);
    return runner_.run(inputs);
  }

  void check(const std::vector<at::Tensor>& inputs) const {
    TESSERA_CHECK_VALUE(
        inputs.size() == metas_.size(),
        "{} expected {} tensors, but got {}. Pass one tensor for each of signature().inputs.",
        kProgramWhere,
        metas_.size(),
        inputs.size());
    SizeCheck sizes(num_symbols_);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = archive_.graph.inputs[i];
      TESSERA_CHECK_VALUE(
          inputs[i].defined() && inputs[i].device().is_cpu() &&
              inputs[i].layout() == at::kStrided,
          "{} input '{}' must be a dense tensor on the cpu. Pass such a tensor.",
          kProgramWhere,
          shorten(name));
      TESSERA_CHECK_TYPE(
          inputs[i].scalar_type() == metas_[i].dtype,
          "{} input '{}' must have the dtype {}, but has {}. Convert it with to().",
          kProgramWhere,
          shorten(name),
          c10::toString(metas_[i].dtype),
          c10::toString(inputs[i].scalar_type()));
      check_shape(
          i,
          inputs[i],
          inputs[i].dim() == rank_of(i),
          "the number of dimensions differs");
      check_shape(
          i,
          inputs[i],
          archive_.signature.inputs[i].part != "row_splits" ||
              inputs[i].numel() > 0,
          "row_splits begin with 0 even without rows");
      for (int64_t axis = 0; axis < inputs[i].dim(); ++axis) {
        check_shape(
            i,
            inputs[i],
            sizes.learn(metas_[i].sizes[axis], inputs[i].size(axis)),
            "a size is too small");
      }
    }
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (int64_t axis = 0; axis < inputs[i].dim(); ++axis) {
        const auto expected = sizes.expected(metas_[i].sizes[axis]);
        check_shape(
            i,
            inputs[i],
            !expected || *expected == inputs[i].size(axis),
            "sizes of the same name must be equal in all inputs");
      }
    }
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

  int64_t rank_of(size_t input) const {
    return static_cast<int64_t>(metas_[input].sizes.size());
  }

  void check_shape(
      size_t input,
      const at::Tensor& tensor,
      bool is_right,
      const char* reason) const {
    TESSERA_CHECK_VALUE(
        is_right,
        "{} input '{}' must have the shape {}, but has {}: {}. Correct the batch.",
        kProgramWhere,
        shorten(archive_.graph.inputs[input]),
        shape_text(metas_[input].sizes),
        tensor.sizes(),
        reason);
  }

  pt2::Archive archive_;
  pt2::GraphRunner runner_;
  std::vector<pt2::TensorMeta> metas_;  // of the inputs
  size_t num_symbols_ = 0;
};

Pt2Program::Pt2Program(const std::string& path)
    : impl_(std::make_unique<Impl>(
          pt2::read_archive(path, kProgramWhere),
          path)) {}

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
