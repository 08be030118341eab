// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// The type in which a table's numbers are stored. All arithmetic is float32.
enum class Storage : uint8_t { kFloat32, kBFloat16, kFloat16, kInt8 };

/// A row in kInt8 begins with its scale, a bfloat16. Then come `dim` codes in [-127, 127].
/// Number i is scale * code[i], which is exact in float32.
inline constexpr int64_t kInt8HeaderBytes = 2;

/// The bytes of a row. Rows lie one behind the other.
constexpr int64_t bytes_of_row(Storage storage, int64_t dim) {
  return storage == Storage::kFloat32 ? dim * 4
      : storage == Storage::kInt8     ? dim + kInt8HeaderBytes
                                      : dim * 2;
}

/// The row numbers of the rows in some memory: first, first + step, ...
struct RowNumbers {
  int64_t first = 0;
  int64_t step = 1;

  constexpr int64_t operator[](int64_t i) const {
    return first + i * step;
  }
};

/// How float32 numbers are rounded to fewer bits: to nearest, ties to even, or at random.
///
/// Stochastic rounding goes to one of the two neighbours. The nearer one has the larger
/// probability, so that the expectation is the float32 value. The random bits are a
/// function of (key, number of the row, column). If duplicates update a row one by one,
/// the bits also depend on the step. They do not depend on the number of threads or the
/// instruction set.
struct Rounding {
  bool is_stochastic = false;
  uint64_t key = 0;  // each update has a new one
  RowNumbers rows = {};
  /// Whether the scale of a row in kInt8 depends on its previous scale, as in an update. If
  /// false, it depends on the new numbers alone.
  bool keeps_scale = false;
  /// The keys of a key table's rows, [vocab], which serve as the numbers of the rows.
  /// nullptr: `rows` has the numbers.
  const int64_t* row_keys = nullptr;

  int64_t number_of(int64_t row) const {
    return row_keys == nullptr ? rows[row] : row_keys[row];
  }
};

/// The memory of a table, and how it is stored.
struct StoredRows {
  void* data = nullptr;  // [vocab] rows of bytes_of_row(storage, dim)
  int64_t dim = 0;
  int64_t vocab = 0;  // 0: unknown; only decides about prefetching
  Storage storage = Storage::kFloat32;
  Rounding rounding = {};  // for storage of less than 32 bits
};

}  // namespace tessera::kernels
