// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/input_check.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace tessera::exporting {

namespace {

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

}  // namespace

InputCheck::InputCheck(
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

void InputCheck::operator()(const std::vector<at::Tensor>& tensors) const {
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

void InputCheck::check_shape(
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

}  // namespace tessera::exporting
