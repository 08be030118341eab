// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// How a table's numbers are stored. All arithmetic is float32.
enum class Storage : uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr int64_t bytes_per_element(Storage storage) {
  return storage == Storage::kFloat32 ? 4 : 2;
}

/// Which rows of a table some memory holds: first, first + step, ...
struct RowNumbers {
  int64_t first = 0;
  int64_t step = 1;

  constexpr int64_t operator[](int64_t i) const {
    return first + i * step;
  }
};

/// How float32 becomes 16 bits.
///
/// Stochastic: to one of the two neighbours, to the nearer one with the larger
/// probability, so that the expectation is the float32 value. The random bits
/// are a function of (key, row, column), and of the step where duplicates are
/// taken one by one: the same for any number of threads
/// and any instruction set. Otherwise to the nearest, ties to even.
struct Rounding {
  bool is_stochastic = false;
  uint64_t key = 0;  // another one for each update
  RowNumbers rows = {};
};

/// A table as the kernels see it.
struct StoredRows {
  void* data = nullptr;  // [vocab, dim]
  int64_t dim = 0;
  Storage storage = Storage::kFloat32;
  Rounding rounding = {};  // of what is written to 16 bits
};

}  // namespace tessera::kernels
