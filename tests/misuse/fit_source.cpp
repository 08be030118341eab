// SPDX-License-Identifier: Apache-2.0
// expects: \[make_pass\] the source does not provide batches\. Pass a range of batches
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

void train() {
  tessera::training::fit(
      42, [](const Batch& batch) { return batch.clicks; }, {});
}
