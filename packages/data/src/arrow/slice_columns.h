// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>

#include <cstdint>

namespace tessera::data {

/// The examples [begin, end). Tensors share memory with the columns, apart from the
/// row_splits of lists.
inline Columns slice_columns(
    const Columns& columns,
    int64_t begin,
    int64_t end) {
  Columns result;
  for (const auto& [name, column] : columns.entries()) {
    Column part;
    int64_t first = begin;
    int64_t last = end;
    if (column.row_splits.defined()) {
      const auto* splits = column.row_splits.const_data_ptr<int64_t>();
      first = splits[begin];
      last = splits[end];
      part.row_splits = column.row_splits.slice(0, begin, end + 1).sub(first);
    }
    if (const auto* text =
            std::get_if<std::vector<std::string>>(&column.values)) {
      part.values =
          std::vector<std::string>(text->begin() + first, text->begin() + last);
    } else {
      part.values = std::get<at::Tensor>(column.values).slice(0, first, last);
    }
    result.add(name, std::move(part));
  }
  return result;
}

}  // namespace tessera::data
