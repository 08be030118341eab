// SPDX-License-Identifier: Apache-2.0
// expects: \[make_pass\] the step must return a StepResult or the loss
#include <tessera/training/fit.h>

#include <vector>

struct Batch {
  at::Tensor clicks;
};

void train(const std::vector<Batch>& batches) {
  tessera::training::fit(batches, [](const Batch& batch) { return 0.5; }, {});
}
