// SPDX-License-Identifier: Apache-2.0
// expects: \[make_pass\] the step can't be called with a batch
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

void train(const std::vector<Batch>& batches) {
  tessera::training::fit(batches, 3.0, {});
}
