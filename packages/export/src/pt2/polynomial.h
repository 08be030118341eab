// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::pt2 {

/// A size that depends on the sizes of a batch: a polynomial of symbols with integer
/// coefficients, such as 2 * s0 * s1 + 1.
class Polynomial {
 public:
  /// The indices of a product's symbols, in ascending order. s0 * s0 * s2 is {0, 0, 2}.
  using Product = std::vector<size_t>;

  Polynomial() = default;
  Polynomial(int64_t constant);  // NOLINT(google-explicit-constructor)
  Polynomial(const Product& product, int64_t factor);
  static Polynomial symbol(size_t index);

  void add(const Product& product, int64_t factor);
  Polynomial& operator+=(const Polynomial& other);

  bool is_constant() const;
  /// The constant part.
  int64_t constant() const;
  /// The terms with nonzero factors, in a fixed order.
  const std::map<Product, int64_t>& terms() const {
    return terms_;
  }

  struct LinearTerm {
    size_t symbol = 0;
    int64_t factor = 0;
  };
  /// The only term with symbols if it is factor * symbol. Otherwise nullopt.
  std::optional<LinearTerm> linear_term() const;

  /// The polynomial with `value` in place of a symbol.
  Polynomial substitute(size_t symbol, const Polynomial& value) const;

  Polynomial operator*(const Polynomial& other) const;

  /// The value where symbol i has the value `symbols[i]`.
  /// Errors:  c10::Error if the value does not fit into an int64.
  int64_t at(const std::vector<int64_t>& symbols) const;

  bool operator==(const Polynomial&) const = default;
  bool operator<(const Polynomial& other) const {
    return terms_ < other.terms_;
  }

 private:
  std::map<Product, int64_t> terms_ = {};
};

/// The name of a symbol in files: "s0" for a size of an input, and "u0" for a size that is
/// read from the values of an input.
std::string symbol_name(size_t index, bool is_value = false);

/// The text of sympy.srepr(), the form in which torch.export stores sizes. `is_value` says
/// for each symbol whether it is read from values.
std::string to_sympy(
    const Polynomial& polynomial,
    const std::vector<bool>& is_value);

/// The polynomial for messages: "2*s0 + 1".
std::string to_text(const Polynomial& polynomial);

/// Reads what to_sympy() writes: sums and products of integers and symbols.
/// Errors:  c10::ValueError beginning with `where`, for any other text.
Polynomial from_sympy(const std::string& text, const std::string& where);

}  // namespace tessera::pt2
