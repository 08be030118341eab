// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/optim/learning_rate.h>

const auto* schedule = tessera::optim::LearningRate(0.1).schedule();
