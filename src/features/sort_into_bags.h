// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/id_bags.h"
#include "src/features/id_values.h"

namespace tessera {

/// Fills `bags` with the values that are not dropped. Within a bag they keep their order.
/// IdBags::bags must be set.
void sort_into_bags(
    const IdValues& values,
    BagIndices bag_indices,
    IdBags& bags);

}  // namespace tessera
