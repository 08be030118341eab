// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/tables/embedding_tables.h>

const auto first = tessera::EmbeddingTables({}).begin();
