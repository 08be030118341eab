// SPDX-License-Identifier: Apache-2.0
// expects: \[make_train_step\] loss_of can't be called with a batch
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

void train(
    const std::vector<Batch>& batches,
    torch::optim::Optimizer& optimizer) {
  tessera::training::fit(
      batches, tessera::training::make_train_step(optimizer, 1), {});
}
