// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/data/src/row_range.h"

#include <tessera/data/dataset.h>

#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace tessera::data {

/// Reads the examples of one epoch. Each call returns the next examples, between 1 and
/// `max_rows`. After the last example, every call returns nullopt. All ranges of a reader
/// have the same columns.
using RowReader = std::function<std::optional<RowRange>(int64_t max_rows)>;

/// One step of a Dataset. Several threads may use it at the same time.
class RowStage {
 public:
  /// Returns a reader from the row `first` >= 0 of the epoch. The stage must outlive it.
  std::function<RowReader(int64_t epoch, int64_t first)> open;
  std::function<std::optional<int64_t>()> size;
  /// Whether each epoch has the same examples in the same order.
  bool has_fixed_order;
};

using RowStagePtr = std::shared_ptr<const RowStage>;

inline RowStagePtr make_stage(RowStage stage) {
  return std::make_shared<const RowStage>(std::move(stage));
}

/// The number of rows that a scan of an epoch asks for at once.
inline constexpr int64_t kScanRows = 65536;

/// Reads columns in memory from the row `first` on.
RowReader read_columns(std::shared_ptr<Columns> columns, int64_t first);

/// Appends `count` rows to `ranges`, or fewer at the end. Returns their number.
int64_t read_ranges(
    const RowReader& rows,
    int64_t count,
    std::vector<RowRange>& ranges);

/// Different rows of a range, by their numbers in it.
struct PickedRows {
  RowRange range = {};
  std::vector<int64_t> rows = {};
};

/// Reads the rows that `pick` returns, without the first `skipped` ones. `pick` reads up to
/// `max_rows` rows to pick from, or as many as it needs, and returns nullopt at the end.
RowReader picked_rows(
    std::function<std::optional<PickedRows>(int64_t max_rows)> pick,
    int64_t skipped);

/// The batches of the rows of a stage.
std::shared_ptr<const BatchStage> batch_stage(
    RowStagePtr rows,
    const detail::BatchOptions& options);

/// Calls `use` for each range of rows of epoch 0, with the number of its first row.
/// Errors:  those of the dataset.
void scan_rows(
    const Dataset& dataset,
    c10::function_ref<void(const RowRange&, int64_t)> use);

/// The stage of a Dataset, for other files of this folder.
struct DatasetAccess {
  static Dataset make(RowStagePtr stage) {
    return Dataset(std::move(stage));
  }
  static const RowStagePtr& stage(const Dataset& dataset) {
    return dataset.stage_;
  }
};

}  // namespace tessera::data
