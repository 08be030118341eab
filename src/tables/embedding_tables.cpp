// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/embedding_tables.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/tensor_text.h"

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
  const auto found = std::ranges::find(entries_, table, &Entry::config);
  TESSERA_CHECK_VALUE(
      found != entries_.end(),
      "[embedding_tables] no feature of this layer uses the table '{}' (tables are told apart by object). Pass the TablePtr of a feature config.",
      table == nullptr ? "(null)" : shorten(table->name));
  return found->parameters;
}

at::Tensor EmbeddingTables::operator[](const std::string& name) const {
  const auto found = std::ranges::find(entries_, name, &Entry::name);
  TESSERA_CHECK_VALUE(
      found != entries_.end(),
      "[embedding_tables] no table '{}'. Known: {}.",
      shorten(name),
      join_names(entries_, shortened_name));
  return found->parameters;
}

}  // namespace tessera
