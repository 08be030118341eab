// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/publisher.h>

#include "packages/serving/src/format/version_file.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::serving {

/// Copies rows of a table in the format in which they are published.
class RowCopier {
 public:
  /// `values` are the rows of the table, [rows, dim]. It copies those with the numbers
  /// `chosen`, or all.
  RowCopier(
      std::string table_name,
      at::Tensor values,
      StoredFormat format,
      std::optional<std::vector<uint32_t>> chosen = {});

  /// Copies the chosen rows [begin, end) to `out`, on all threads.
  /// Errors:  c10::ValueError naming the row for a number that the format can't store.
  void operator()(int64_t begin, int64_t end, std::byte* out) const;

 private:
  // Returns false if the format can't store a number of the row.
  bool copy_row(int64_t row, std::byte* out, float* scratch) const;

  std::string table_name_;
  at::Tensor values_;
  const std::byte* data_;  // of values_
  at::ScalarType dtype_;
  int64_t dim_;
  StoredFormat format_;
  std::optional<std::vector<uint32_t>> chosen_;
  int64_t table_row_bytes_;
  int64_t row_bytes_;
  bool is_copy_;  // whether the bytes are copied as they are
};

/// How rows of a dtype are stored. RowFormat::kTable stores their numbers unchanged.
StoredFormat stored_format(RowFormat format, at::ScalarType dtype);

}  // namespace tessera::serving
