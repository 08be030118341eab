// SPDX-License-Identifier: Apache-2.0
// expects: \[prefetch\] the source is no range
#include <tessera/layers/prefetch.h>

#include "tests/misuse/batch.h"

void train(const tessera::TPUEmbedding& layer) {
  const auto features_of = [](const Batch& batch) {
    return tessera::Features{{"user", batch.users}};
  };
  for (auto& [batch, activations] : tessera::prefetch(42, layer, features_of)) {
  }
}
