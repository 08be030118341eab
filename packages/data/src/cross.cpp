// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/prepared_transform.h"

#include "packages/data/src/value_hash.h"
#include "src/common/check.h"

#include <concepts>
#include <utility>
#include <variant>

namespace tessera::data {

namespace {

// 2^26 ids take 512 MiB. Lists that give more are probably a mistake.
constexpr double kMaxCombinations = int64_t{1} << 26;

// The hashes of a column's values, and the position of each example's first hash.
struct HashedColumn {
  std::vector<ValueHash> hashes;
  std::optional<std::span<const int64_t>> row_splits;

  int64_t begin(int64_t example) const {
    return row_splits ? (*row_splits)[example] : example;
  }
};

HashedColumn hash_column(const ColumnView& column, uint64_t seed) {
  HashedColumn hashed;
  hashed.row_splits = column.row_splits;
  std::visit(
      [&]<class T>(std::span<const T> values) {
        if constexpr (std::same_as<T, float>) {
          TESSERA_CHECK(false, "[Cross] got floats");
        } else {
          hashed.hashes.reserve(values.size());
          for (const T& value : values) {
            hashed.hashes.push_back({hash_of(value, seed), is_missing(value)});
          }
        }
      },
      column.values);
  return hashed;
}

double count_combinations(
    const std::vector<HashedColumn>& columns,
    int64_t example) {
  double combinations = 1.0;
  for (const HashedColumn& column : columns) {
    combinations *=
        static_cast<double>(column.begin(example + 1) - column.begin(example));
  }
  return combinations;
}

// Appends to `out` all combinations of `prefix` with values of columns[column] and of the
// columns after it.
void append(
    const std::vector<HashedColumn>& columns,
    size_t column,
    int64_t example,
    ValueHash prefix,
    std::vector<ValueHash>& out) {
  if (column == columns.size()) {
    out.push_back(prefix);
    return;
  }
  const HashedColumn& own = columns[column];
  for (int64_t i = own.begin(example); i < own.begin(example + 1); ++i) {
    const ValueHash& value = own.hashes[i];
    append(
        columns,
        column + 1,
        example,
        {combine_hashes(prefix.hash, value.hash),
         prefix.has_missing || value.has_missing},
        out);
  }
}

}  // namespace

CrossedHashes cross_columns(
    std::span<const ColumnView* const> columns,
    uint64_t seed,
    const std::string& where) {
  const int64_t batch = columns.front()->batch_size();
  bool is_ragged = false;
  std::vector<HashedColumn> hashed;
  for (const ColumnView* column : columns) {
    hashed.push_back(hash_column(*column, seed));
    is_ragged = is_ragged || column->row_splits.has_value();
  }
  double total = 0.0;
  for (int64_t example = 0; example < batch; ++example) {
    total += count_combinations(hashed, example);
  }
  TESSERA_CHECK_VALUE(
      total <= kMaxCombinations,
      "{} expected at most 2^26 combinations of the columns' values in a batch, but got {}. Shorten the lists, or take smaller batches.",
      where,
      total);

  CrossedHashes crossed;
  crossed.hashes.reserve(static_cast<size_t>(total));
  std::vector<int64_t> row_splits{0};
  row_splits.reserve(static_cast<size_t>(batch) + 1);
  for (int64_t example = 0; example < batch; ++example) {
    // If one column has no values, append() would loop over the other columns in vain.
    if (count_combinations(hashed, example) > 0) {
      append(hashed, 0, example, {.hash = seed}, crossed.hashes);
    }
    row_splits.push_back(static_cast<int64_t>(crossed.hashes.size()));
  }
  if (is_ragged) {
    crossed.row_splits = std::move(row_splits);
  }
  return crossed;
}

}  // namespace tessera::data
