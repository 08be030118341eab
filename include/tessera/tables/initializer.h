// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/optim/named_function.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

namespace tessera {

namespace initializers {

// snippet: tests/docs/reference_engine_test.cpp Zeros
/// All values are 0.
///
///   const TablePtr biases = make_table(
///       {.name = "biases",
///        .vocabulary_size = 1000,
///        .dim = 1,
///        .initializer = initializers::Zeros{}});
struct Zeros {
  bool operator==(const Zeros&) const = default;

  TESSERA_FIELDS()
};

// snippet: tests/docs/reference_engine_test.cpp Constant
/// All values are `value`.
///
///   const TablePtr scales = make_table(
///       {.name = "scales",
///        .vocabulary_size = 1000,
///        .dim = 1,
///        .initializer = initializers::Constant{.value = 1.0}});
struct Constant {
  double value = 0.0;

  bool operator==(const Constant&) const = default;

  TESSERA_FIELDS(value)
};

// snippet: tests/docs/reference_engine_test.cpp Uniform
/// Uniform in [low, high).
///
///   const TablePtr users = make_table(
///       {.name = "users",
///        .vocabulary_size = 1000,
///        .dim = 16,
///        .initializer = initializers::Uniform{.low = -0.1, .high = 0.1}});
struct Uniform {
  double low = -0.05;
  double high = 0.05;

  bool operator==(const Uniform&) const = default;

  TESSERA_FIELDS(low, high)
};

// snippet: tests/docs/reference_engine_test.cpp Normal
/// Normal with the given mean and standard deviation, stddev >= 0.
///
///   const TablePtr users = make_table(
///       {.name = "users",
///        .vocabulary_size = 1000,
///        .dim = 16,
///        .initializer = initializers::Normal{.stddev = 0.01}});
struct Normal {
  double mean = 0.0;
  double stddev = 0.05;

  bool operator==(const Normal&) const = default;

  TESSERA_FIELDS(mean, stddev)
};

// snippet: tests/docs/reference_engine_test.cpp TruncatedNormal
/// Normal, truncated to mean +- 2 stddev. `stddev` is the standard deviation before
/// truncation, as in TensorFlow. The standard deviation of the values is 0.88 * stddev.
///
///   const TablePtr users = make_table(
///       {.name = "users",
///        .vocabulary_size = 1000,
///        .dim = 16,
///        .initializer = initializers::TruncatedNormal{.stddev = 0.01}});
struct TruncatedNormal {
  double mean = 0.0;
  double stddev = 0.05;

  bool operator==(const TruncatedNormal&) const = default;

  TESSERA_FIELDS(mean, stddev)
};

// snippet: tests/docs/reference_engine_test.cpp RowId
/// Row i is filled with offset + i.
///
///   // For a test: a lookup of id 7 gives 7.
///   const TablePtr users = make_table(
///       {.name = "users",
///        .vocabulary_size = 1000,
///        .dim = 1,
///        .initializer = initializers::RowId{}});
struct RowId {
  int64_t offset = 0;

  bool operator==(const RowId&) const = default;

  TESSERA_FIELDS(offset)
};

// snippet: tests/docs/reference_engine_test.cpp Callable
/// A user's function that makes the rows. Its arguments are the ids `[rows]` (int64) of
/// the rows to fill, which are keys in a key table, and the width of a row. It returns
/// `[rows, dim]` float32.
///
///   const auto rows_of = [=](const at::Tensor& ids, int64_t /*dim*/) {
///     return vectors.index_select(0, ids);  // from another model
///   };
///   const TablePtr users = make_table(
///       {.name = "users",
///        .vocabulary_size = 1000,
///        .dim = 16,
///        .initializer = initializers::Callable("vectors", rows_of)});
class Callable : public optim::detail::NamedFunction<
                     at::Tensor(const at::Tensor& ids, int64_t dim)> {
 public:
  using NamedFunction::NamedFunction;

  bool operator==(const Callable&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("name", self.name_);
  }
};

}  // namespace initializers

/// The initial values of a table's rows.
///
/// Random values come from a counter-based generator and are a pure function of (seed,
/// table name, row, column), so a table is the same for any number of threads. Normal
/// values differ between instruction sets in the last digits.
using Initializer = std::variant<
    initializers::Zeros,
    initializers::Constant,
    initializers::Uniform,
    initializers::Normal,
    initializers::TruncatedNormal,
    initializers::RowId,
    initializers::Callable>;

/// Fills `rows` with the initial values of the table's rows first_row, first_row +
/// row_step, ...
///
/// Shapes:  rows [n, dim] float32, contiguous.
/// Errors:  c10::ValueError for a callable that is missing, or whose result has another
///          shape or dtype, or a value that is not finite.
void initialize_rows(
    const Initializer& initializer,
    uint64_t seed,
    std::string_view table_name,
    int64_t first_row,
    at::Tensor rows,
    int64_t row_step = 1);

/// Refuses values that are not finite in float32, high < low, stddev < 0, and a RowId
/// offset beyond +- 2^62.
/// Errors:  c10::ValueError beginning with `where`.
void validate(const Initializer& initializer, const std::string& where);

}  // namespace tessera
