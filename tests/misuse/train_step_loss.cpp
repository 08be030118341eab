// SPDX-License-Identifier: Apache-2.0
// expects: \[make_train_step\] loss_of must return a StepResult or the loss
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

void train(
    const std::vector<Batch>& batches,
    torch::optim::Optimizer& optimizer) {
  tessera::training::fit(
      batches,
      tessera::training::make_train_step(
          optimizer, [](const Batch& batch) { return 0.5; }),
      {});
}
