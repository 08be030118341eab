// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace tessera::kernels {

/// 64 consecutive rows of a table, of which some have been replaced by rows elsewhere.
struct OverlaidWord {
  static constexpr int64_t kRows = 64;

  uint64_t replaced = 0;  // bit i: row i of the word
  const void* const* rows = nullptr;  // the replacements, in bit order
};

/// Finds where rows are:
///
///   out[i] = the replacement of row ids[i], or table + ids[i] * row_bytes without one
struct LocateArgs {
  /// The rows of one chunk have their words together.
  static constexpr int64_t kChunkRows = 1024;

  const void* table = nullptr;
  int64_t row_bytes = 0;
  const OverlaidWord* const* chunks = nullptr;  // no entry is nullptr
  const uint32_t* ids = nullptr;  // [nnz], each < vocab
  int64_t nnz = 0;
  const void** out = nullptr;  // [nnz]
};

}  // namespace tessera::kernels
