// SPDX-License-Identifier: Apache-2.0
// expects: cannot bind|cannot be bound|invalid initialization|rvalue|temporary
#include <tessera/features/nest.h>

int& leaf = tessera::Nest<int>(1).leaf();
