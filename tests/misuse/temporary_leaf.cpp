// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted|selected deleted
#include <tessera/features/nest.h>

const tessera::Nest<int> nest{{"a", 1}};
const auto first = *nest.begin();
