// SPDX-License-Identifier: Apache-2.0
// expects: \[prefetch\] the layer has no begin_forward
#include <tessera/layers/prefetch.h>

#include "tests/misuse/batch.h"

void train(const std::vector<Batch>& batches) {
  const auto features_of = [](const Batch& batch) {
    return tessera::Features{{"user", batch.users}};
  };
  for (auto& [batch, activations] :
       tessera::prefetch(batches, 42, features_of)) {
  }
}
