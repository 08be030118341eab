// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// How a table's numbers are stored. All arithmetic is float32.
enum class Storage : uint8_t { kFloat32, kBFloat16, kFloat16 };

constexpr int64_t bytes_per_element(Storage storage) {
  return storage == Storage::kFloat32 ? 4 : 2;
}

/// How float32 becomes 16 bits.
///
/// Stochastic: to one of the two neighbours, to the nearer one with the larger
/// probability, so that the expectation is the float32 value. The random bits
/// are a function of (key, row, column): the same for any number of threads
/// and any instruction set. Otherwise to the nearest, ties to even.
struct Rounding {
  bool is_stochastic = false;
  uint64_t key = 0;  // another one for each update
};

/// The random bits of one row begin here: the finalizer of splitmix64.
inline uint32_t key_of_row(const Rounding& rounding, int64_t row) {
  uint64_t x =
      rounding.key ^ (static_cast<uint64_t>(row) * 0x9E3779B97F4A7C15ULL);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
  return static_cast<uint32_t>((x ^ (x >> 31)) >> 32);
}

/// A table as the kernels see it.
struct StoredRows {
  void* data = nullptr;  // [vocab, dim]
  int64_t dim = 0;
  Storage storage = Storage::kFloat32;
  Rounding rounding = {};  // of what is written to 16 bits
};

}  // namespace tessera::kernels
