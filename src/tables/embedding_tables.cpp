// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/embedding_tables.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/tensor_text.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <utility>

namespace tessera {

EmbeddingTables::EmbeddingTables(std::vector<Entry> entries)
    : entries_(std::move(entries)) {
  for (const Entry& entry : entries_) {
    if (!entry.keys.defined()) {
      continue;
    }
    TESSERA_CHECK_VALUE(
        entry.keys.dim() == 1 && entry.keys.scalar_type() == at::kLong &&
            entry.keys.is_cpu() && entry.keys.is_contiguous(),
        "[EmbeddingTables] the keys of table '{}' must be a contiguous int64 vector on the CPU, but got {}. Pass keys.to(at::kCPU, at::kLong).contiguous().",
        shorten(entry.name),
        describe(entry.keys));
    const auto* begin = entry.keys.const_data_ptr<int64_t>();
    const auto* end = begin + entry.keys.numel();
    TESSERA_CHECK_VALUE(
        std::adjacent_find(begin, end, std::greater_equal<>()) == end,
        "[EmbeddingTables] the keys of table '{}' must be ascending, each of them once, but they are not. Sort the keys, and the rows with them.",
        shorten(entry.name));
  }
}

at::Tensor EmbeddingTables::operator[](const TablePtr& table) const {
  for (const Entry& entry : entries_) {
    if (entry.config == table) {
      return entry.parameters;
    }
  }
  C10_THROW_ERROR(
      ValueError,
      c10::str(
          "[embedding_tables] no feature of this layer uses the table '",
          table == nullptr ? "(null)" : shorten(table->name),
          "' (tables are told apart by object). Pass the TablePtr of a feature "
          "config."));
}

at::Tensor EmbeddingTables::operator[](const std::string& name) const {
  for (const Entry& entry : entries_) {
    if (entry.name == name) {
      return entry.parameters;
    }
  }
  C10_THROW_ERROR(
      ValueError,
      c10::str(
          "[embedding_tables] no table '",
          shorten(name),
          "'. Known: ",
          join_names(entries_, shortened_name),
          "."));
}

}  // namespace tessera
