// SPDX-License-Identifier: Apache-2.0
// expects: The layer has no constructor with these arguments
#include <tessera/layers/tpu_embedding.h>

tessera::TPUEmbedding layer(42);
