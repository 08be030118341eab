// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/strategy.h>

namespace tessera {

/// Whether it is so on any rank; without shards, here. All ranks call it.
bool on_any_rank(bool is_so, const Strategy& strategy);

}  // namespace tessera
