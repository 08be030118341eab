// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/collect_sequences.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/example_columns.h"
#include "packages/data/src/row_stage.h"
#include "src/common/check.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <numeric>

namespace tessera::data {

namespace {

constexpr const char* kCollectName = "collect_sequences";

void validate(const detail::CollectOptions& options) {
  check_column_name(kCollectName, "by", options.by);
  check_column_name(kCollectName, "time", options.time);
  TESSERA_CHECK_VALUE(
      options.min_length >= 1,
      "[collect_sequences] min_length must be >= 1, but got {}. Leave it at 1 to keep all sequences.",
      options.min_length);
  TESSERA_CHECK_VALUE(
      !options.max_length || *options.max_length >= 1,
      "[collect_sequences] max_length must be >= 1, but got {}. Leave it unset to keep all examples.",
      options.max_length.value_or(1));
}

// The names of the columns to collect.
std::vector<std::string> values_of(
    const detail::CollectOptions& options,
    const Columns& columns) {
  std::vector<std::string> values = options.values;
  for (const auto& [name, column] : columns.entries()) {
    if (options.values.empty() && name != options.by) {
      values.push_back(name);
    }
  }
  TESSERA_CHECK_VALUE(
      std::ranges::find(values, options.by) == values.end(),
      "[collect_sequences] `values` has the column '{}' of `by`, which the result has anyway. Leave it out.",
      shorten(options.by));
  return values;
}

}  // namespace

Columns collect_sequences(
    const Dataset& examples,
    const detail::CollectOptions& options) {
  validate(options);
  const ExampleColumn by{kCollectName, options.by};
  Times times;
  // The parts keep only the needed columns, to save memory.
  std::vector<RowRange> parts;
  scan_rows(examples, [&](const RowRange& range, int64_t first) {
    times.add({kCollectName, options.time}, range, first);
    by.visit_users(range, first, [](int64_t, const auto&) {});
    auto needed = std::make_shared<Columns>();
    needed->add(options.by, range.columns->at(options.by));
    for (const std::string& name : values_of(options, *range.columns)) {
      needed->add(
          name, find_value_column(*range.columns, name, "[collect_sequences]"));
    }
    parts.push_back(
        {.columns = needed, .first = range.first, .count = range.count});
  });
  TESSERA_CHECK_VALUE(
      !parts.empty(),
      "[collect_sequences] expected a dataset with examples, but got none, so their columns are unknown. Check the files, and the conditions of filter().");
  const RowRange all = owned_range(copy_rows(parts));
  parts.clear();
  std::vector<int64_t> rows(times.values.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  std::vector<int64_t> kept;
  std::vector<int64_t> heads;  // an example of each sequence
  std::vector<int64_t> splits{0};
  visit_values(all.columns->at(options.by), [&](auto users) {
    std::ranges::stable_sort(rows, [&](int64_t a, int64_t b) {
      return users[a] != users[b] ? users[a] < users[b]
                                  : times.values[a] < times.values[b];
    });
    for (auto begin = rows.begin(); begin != rows.end();) {
      const auto end = std::find_if(begin, rows.end(), [&](int64_t row) {
        return users[row] != users[*begin];
      });
      const int64_t length = end - begin;
      if (length >= options.min_length) {
        heads.push_back(*begin);
        begin = end - std::min(length, options.max_length.value_or(length));
        kept.insert(kept.end(), begin, end);
        splits.push_back(std::ssize(kept));
      }
      begin = end;
    }
  });
  const at::Tensor row_splits = at::tensor(splits, at::kLong);
  Columns result;
  result.add(options.by, gather_rows(all, heads).at(options.by));
  const Columns sorted = gather_rows(all, kept);
  for (const std::string& name : values_of(options, sorted)) {
    result.add(
        name, {.values = sorted.at(name).values, .row_splits = row_splits});
  }
  return result;
}

}  // namespace tessera::data
