// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/engine/embedding_engine.h>

const auto& options = tessera::EmbeddingEngine({}).options();
