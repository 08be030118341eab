// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/data/src/row_stage.h"

#include <tessera/data/batches.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace tessera::data {

/// Reads the batches of one epoch. Returns the next one, or nullopt at the end, also if it
/// is called again.
using BatchStageReader = std::function<std::optional<Columns>()>;

/// One step of Batches. Several threads may use it at the same time.
class BatchStage {
 public:
  virtual ~BatchStage() = default;

  /// A reader from the batch `first` >= 0 of the epoch. The stage must outlive it.
  virtual BatchStageReader open(int64_t epoch, int64_t first) const = 0;
  virtual std::optional<int64_t> size() const = 0;
  /// The number of examples in each batch but the last, before any map().
  virtual int64_t batch_size() const = 0;
};

using BatchStagePtr = std::shared_ptr<const BatchStage>;

BatchStagePtr batch_stage(RowStagePtr rows, const BatchOptions& options);

}  // namespace tessera::data
