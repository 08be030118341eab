// SPDX-License-Identifier: Apache-2.0
// expects: FitOptions\{\.\.\.\} names the field
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

void train(const std::vector<Batch>& batches) {
  tessera::training::fit(
      batches, [](const Batch& batch) { return batch.clicks; }, {.epochz = 3});
}
