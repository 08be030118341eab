// SPDX-License-Identifier: Apache-2.0
// expects: pass a std::shared_ptr
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

// fit() would fill a copy of the metric.
void train(const std::vector<Batch>& batches) {
  tessera::training::AUC auc;
  tessera::training::fit(
      batches,
      [](const Batch& batch) { return batch.clicks; },
      {.metrics = {auc}});
}
