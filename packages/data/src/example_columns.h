// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "packages/data/src/row_range.h"
#include "src/common/check.h"

#include <fmt/format.h>

#include <cmath>
#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

// Columns with one value per example, such as users and times. Splits,
// collect_sequences(), NegativeSampler and UserItems read them. Messages begin with
// `where`, the name of the function, of its options or of the class.

namespace tessera::data {

/// Errors:  c10::ValueError if the column name that a user has set as `option` is empty.
inline void check_column_name(
    const char* where,
    const char* option,
    const std::string& name) {
  TESSERA_CHECK_VALUE(
      !name.empty(),
      "[{}] {} must be the name of a column, but it is empty.",
      where,
      option);
}

/// Finds a column with one value per example, and checks its values.
struct ExampleColumn {
  const char* where;
  const std::string& name;
  /// The advice in the error about values of another type.
  const char* advice =
      "Convert the column, or set its type in the options of the source, which then names the first value of another type.";

  /// Calls `use` with the values as a std::span of one of Ts, which messages call `kinds`.
  template <class... Ts, class Use>
  void visit(const Columns& columns, const char* kinds, Use&& use) const {
    const Column& column =
        find_value_column(columns, name, c10::str("[", where, "]"));
    visit_values(column, [&]<class T>(std::span<const T> values) {
      if constexpr ((std::same_as<T, Ts> || ...)) {
        use(values);
      } else {
        TESSERA_CHECK_TYPE(
            false,
            "[{}] column '{}' must have {}, but it has {}. {}",
            where,
            shorten(name),
            kinds,
            kind_of(column),
            advice);
      }
    });
  }

  /// Calls `use` with the place of each value in the range, and the value. No value may
  /// be missing. `first` is the number of the range's first example.
  template <class... Ts, class Use>
  void visit(const RowRange& range, int64_t first, const char* kinds, Use&& use)
      const {
    visit<Ts...>(
        *range.columns, kinds, [&]<class T>(std::span<const T> values) {
          for (int64_t i = 0; i < range.count; ++i) {
            const T& value = values[range.first + i];
            check_present(!is_missing(value), first + i);
            use(i, value);
          }
        });
  }

  /// Does the same for users, which are integers or text.
  template <class Use>
  void visit_users(const RowRange& range, int64_t first, Use&& use) const {
    visit<int64_t, std::string>(range, first, "integers or text", use);
  }

  void check_present(bool condition, int64_t row) const {
    TESSERA_CHECK_VALUE(
        condition,
        "[{}] column '{}' has no value in example {} (counted from 0). Drop such examples before, with filter().",
        where,
        shorten(name),
        row);
  }

  // A float32 beyond 2^24 may stand for several integers.
  void check_exact(float time, int64_t row) const {
    const float size = std::abs(time);
    TESSERA_CHECK_VALUE(
        size < 0x1p24F || std::isinf(time),
        "[{}] column '{}' has the time {} in example {} (counted from 0), but float32 rounds such times to multiples of {}. Store the times as integers, such as milliseconds.",
        where,
        shorten(name),
        fmt::format("{:.0f}", time),
        row,
        static_cast<double>(std::nextafter(size, INFINITY) - size));
  }
};

/// The times of all examples, converted by ordered().
struct Times {
  std::vector<int64_t> values;
  bool is_float = false;

  void add(const ExampleColumn& column, const RowRange& range, int64_t first) {
    column.visit<int64_t, float>(
        range,
        first,
        "integers or floats",
        [&]<class T>(int64_t i, const T& value) {
          is_float = std::same_as<T, float>;
          if constexpr (std::same_as<T, float>) {
            column.check_exact(value, first + i);
          }
          values.push_back(ordered(value));
        });
  }
};

}  // namespace tessera::data
