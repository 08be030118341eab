// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/features/nest.h>

const tessera::Nest<int> nest(1);
const auto leaves = tessera::leaves_like(nest, tessera::Nest<int>(2), "two");
