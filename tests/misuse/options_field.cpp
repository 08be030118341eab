// SPDX-License-Identifier: Apache-2.0
// expects: no non-static data member named .feature|field designator 'feature' does not refer
#include <tessera/layers/tpu_embedding.h>

tessera::TPUEmbedding layer(tessera::TPUEmbeddingOptions{.feature = {}});
