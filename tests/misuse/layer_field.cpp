// SPDX-License-Identifier: Apache-2.0
// expects: invalid use of brace-enclosed initializer list|call to deleted constructor
#include <tessera/layers/tpu_embedding.h>

tessera::TPUEmbedding layer({.feature = {}});
