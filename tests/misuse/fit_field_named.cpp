// SPDX-License-Identifier: Apache-2.0
// expects: no non-static data member named .epochz|field designator 'epochz' does not refer
#include <tessera/training/fit.h>

#include "tests/misuse/batch.h"

void train(const std::vector<Batch>& batches) {
  namespace training = tessera::training;
  training::fit(
      batches,
      [](const Batch& batch) { return batch.clicks; },
      training::FitOptions{.epochz = 3});
}
