// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/format/version_file.h"
#include "src/engine/embedding_state.h"

#include <c10/util/ArrayRef.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace tessera::serving {

/// Copies rows of a table in the format in which they are published.
class RowCopier {
 public:
  RowCopier(const TableState& table, StoredFormat format);

  /// Copies rows[i] to out + i * row_bytes(format, dim), on all threads.
  /// Errors:  c10::ValueError naming the row for a number that the format can't store.
  void copy(c10::ArrayRef<uint32_t> rows, std::byte* out) const;
  /// Copies `count` rows from `first` on.
  void copy(int64_t first, int64_t count, std::byte* out) const;

 private:
  template <class RowOf>
  void copy_rows(int64_t count, const RowOf& row_of, std::byte* out) const;
  // Returns false if the format can't store a number of the row.
  bool copy_row(int64_t row, std::byte* out, float* scratch) const;

  std::string table_name_;
  const std::byte* data_;
  at::ScalarType dtype_;
  int64_t dim_;
  StoredFormat format_;
  int64_t table_row_bytes_;
  int64_t row_bytes_;
  bool is_copy_;  // whether the bytes are copied as they are
};

/// The format that stores the numbers of a dtype unchanged.
StoredFormat format_of(at::ScalarType dtype);

}  // namespace tessera::serving
