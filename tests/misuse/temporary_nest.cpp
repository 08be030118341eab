// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/features/nest.h>

const auto first = tessera::Nest<int>{{"a", 1}}.begin();
