// SPDX-License-Identifier: Apache-2.0
// expects: \[prefetch\] features_of must return Features
#include <tessera/layers/prefetch.h>

#include "tests/misuse/batch.h"

void train(
    const std::vector<Batch>& batches,
    const tessera::TPUEmbedding& layer) {
  for (auto& [batch, activations] :
       tessera::prefetch(batches, layer, [](const Batch&) { return 42; })) {
  }
}
