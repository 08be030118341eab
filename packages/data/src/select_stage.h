// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/data/src/row_stage.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::data {

/// The part of each row of a stage.
using RowParts = std::vector<uint8_t>;

/// The rows of one part, in their order. `input` has as many rows as `parts`.
RowStagePtr select_stage(
    RowStagePtr input,
    std::shared_ptr<const RowParts> parts,
    uint8_t part);

}  // namespace tessera::data
