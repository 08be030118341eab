// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/pt2/polynomial.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace tessera::pt2 {

namespace {

// Reads the text of to_sympy() from left to right.
class SympyReader {
 public:
  SympyReader(const std::string& text, const std::string& where)
      : text_(text), rest_(text), where_(where) {}

  Polynomial read_all() {
    Polynomial result = read(0);
    check(rest_.empty());
    return result;
  }

 private:
  // Sizes that the library writes are nested three levels deep at most.
  static constexpr int kMaxDepth = 8;
  // A damaged file may have products of sums, which would become too many terms.
  static constexpr size_t kMaxTerms = 10'000;

  void check(bool is_readable) const {
    TESSERA_CHECK_VALUE(
        is_readable,
        "{} sizes must be sums and products of integers and symbols, but got '{}'. Read the file with torch.export.load.",
        where_,
        shorten(text_));
  }

  bool skip(std::string_view prefix) {
    if (!rest_.starts_with(prefix)) {
      return false;
    }
    rest_.remove_prefix(prefix.size());
    return true;
  }

  int64_t read_integer() {
    int64_t value = 0;
    const char* end = rest_.data() + rest_.size();
    const auto [next, error] = std::from_chars(rest_.data(), end, value);
    check(error == std::errc());
    rest_.remove_prefix(static_cast<size_t>(next - rest_.data()));
    return value;
  }

  Polynomial read_symbol() {
    check(skip("s") || skip("u"));
    const int64_t index = read_integer();
    check(skip("'") && index >= 0);
    while (skip(", positive=True") || skip(", nonnegative=True") ||
           skip(", integer=True")) {
    }
    check(skip(")"));
    return Polynomial::symbol(static_cast<size_t>(index));
  }

  Polynomial read(int depth) {
    check(depth < kMaxDepth);
    if (skip("Integer(")) {
      const int64_t value = read_integer();
      check(skip(")"));
      return value;
    }
    if (skip("Symbol('")) {
      return read_symbol();
    }
    if (skip("Pow(")) {
      const Polynomial base = read(depth + 1);
      check(skip(", Integer(2))"));
      check(base.terms().size() * base.terms().size() <= kMaxTerms);
      return base * base;
    }
    const bool is_sum = skip("Add(");
    check(is_sum || skip("Mul("));
    Polynomial result = read(depth + 1);
    while (skip(", ")) {
      const Polynomial next = read(depth + 1);
      if (is_sum) {
        result += next;
      } else {
        check(result.terms().size() * next.terms().size() <= kMaxTerms);
        result = result * next;
      }
    }
    check(skip(")"));
    return result;
  }

  const std::string& text_;
  std::string_view rest_;
  const std::string& where_;
};

std::string joined(
    const std::string& function,
    const std::vector<std::string>& parts) {
  return parts.size() == 1
      ? parts[0]
      : fmt::format("{}({})", function, fmt::join(parts, ", "));
}

}  // namespace

Polynomial::Polynomial(int64_t constant) : Polynomial({}, constant) {}

Polynomial::Polynomial(const Product& product, int64_t factor) {
  add(product, factor);
}

Polynomial Polynomial::symbol(size_t index) {
  return {{index}, 1};
}

void Polynomial::add(const Product& product, int64_t factor) {
  const auto term = terms_.emplace(product, 0).first;
  TESSERA_CHECK(
      !__builtin_add_overflow(term->second, factor, &term->second),
      "[pt2] a factor of a size must fit into 64 bits, but does not. Use smaller sizes.");
  if (term->second == 0) {
    terms_.erase(term);
  }
}

Polynomial& Polynomial::operator+=(const Polynomial& other) {
  for (const auto& [product, factor] : other.terms_) {
    add(product, factor);
  }
  return *this;
}

bool Polynomial::is_constant() const {
  return terms_.empty() ||
      (terms_.size() == 1 && terms_.begin()->first.empty());
}

int64_t Polynomial::constant() const {
  const auto term = terms_.find({});
  return term == terms_.end() ? 0 : term->second;
}

std::optional<Polynomial::LinearTerm> Polynomial::linear_term() const {
  std::optional<LinearTerm> found;
  for (const auto& [product, factor] : terms_) {
    if (product.empty()) {
      continue;
    }
    if (found || product.size() > 1) {
      return std::nullopt;
    }
    found = {.symbol = product[0], .factor = factor};
  }
  return found;
}

int64_t Polynomial::at(const std::vector<int64_t>& symbols) const {
  int64_t sum = 0;
  bool fits = true;
  for (const auto& [product, factor] : terms_) {
    int64_t value = factor;
    for (const size_t symbol : product) {
      fits = fits && !__builtin_mul_overflow(value, symbols.at(symbol), &value);
    }
    fits = fits && !__builtin_add_overflow(sum, value, &sum);
  }
  TESSERA_CHECK(
      fits,
      "[pt2] a size must fit into 64 bits, but {} does not. Use a smaller batch.",
      to_text(*this));
  return sum;
}

Polynomial Polynomial::operator*(const Polynomial& other) const {
  Polynomial result;
  for (const auto& [left, left_factor] : terms_) {
    for (const auto& [right, right_factor] : other.terms_) {
      Product symbols = left;
      symbols.insert(symbols.end(), right.begin(), right.end());
      std::ranges::sort(symbols);
      int64_t factor = 0;
      TESSERA_CHECK(
          !__builtin_mul_overflow(left_factor, right_factor, &factor),
          "[pt2] a factor of a size must fit into 64 bits, but does not. Use smaller sizes.");
      result.add(symbols, factor);
    }
  }
  return result;
}

Polynomial Polynomial::substitute(size_t symbol, const Polynomial& value)
    const {
  Polynomial result;
  for (const auto& [product, factor] : terms_) {
    Polynomial term = factor;
    for (const size_t part : product) {
      term = term * (part == symbol ? value : Polynomial::symbol(part));
    }
    result += term;
  }
  return result;
}

std::string symbol_name(size_t index, bool is_value) {
  return fmt::format("{}{}", is_value ? 'u' : 's', index);
}

std::string to_sympy(
    const Polynomial& polynomial,
    const std::vector<bool>& is_value) {
  std::vector<std::string> sum;
  for (const auto& [product, factor] : polynomial.terms()) {
    std::vector<std::string> factors;
    if (factor != 1 || product.empty()) {
      factors.push_back(fmt::format("Integer({})", factor));
    }
    for (const size_t symbol : product) {
      const bool read = symbol < is_value.size() && is_value[symbol];
      factors.push_back(fmt::format(
          "Symbol('{}', {}integer=True)",
          symbol_name(symbol, read),
          read ? "" : "positive=True, "));
    }
    sum.push_back(joined("Mul", factors));
  }
  return sum.empty() ? "Integer(0)" : joined("Add", sum);
}

std::string to_text(const Polynomial& polynomial) {
  std::string text;
  std::vector<std::pair<Polynomial::Product, int64_t>> terms(
      polynomial.terms().begin(), polynomial.terms().end());
  std::ranges::reverse(terms);  // symbols before the constant
  for (const auto& [product, factor] : terms) {
    std::vector<std::string> factors;
    const auto size = static_cast<uint64_t>(
        factor < 0 ? 0 - static_cast<uint64_t>(factor)
                   : static_cast<uint64_t>(factor));
    if (size != 1 || product.empty()) {
      factors.push_back(fmt::format("{}", size));
    }
    for (const size_t symbol : product) {
      factors.push_back(symbol_name(symbol));
    }
    text +=
        text.empty() ? (factor < 0 ? "-" : "") : (factor < 0 ? " - " : " + ");
    text += fmt::format("{}", fmt::join(factors, "*"));
  }
  return text.empty() ? "0" : text;
}

Polynomial from_sympy(const std::string& text, const std::string& where) {
  return SympyReader(text, where).read_all();
}

}  // namespace tessera::pt2
