// SPDX-License-Identifier: Apache-2.0
// expects: \[make_pass\] the step must return a StepResult or the loss
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

void train(const std::vector<Batch>& batches) {
  tessera::training::fit(batches, [](const Batch& batch) { return 0.5; }, {});
}
