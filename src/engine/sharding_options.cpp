// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/sharding_options.h>

#include "src/common/check.h"

namespace tessera {

std::string to_string(RowSplit split) {
  return split == RowSplit::kDiv ? "div" : "mod";
}

std::string to_string(const TablePlacement& placement) {
  switch (placement.kind) {
    case TablePlacement::Kind::kDataParallel:
      return "data-parallel";
    case TablePlacement::Kind::kTableWise:
      return "table-wise on rank " + std::to_string(placement.rank);
    case TablePlacement::Kind::kRowWise:
      return "row-wise (" + to_string(placement.split) + ")";
  }
  TESSERA_CHECK_VALUE(
      false,
      "[TablePlacement] kind must be Kind::kRowWise, kDataParallel or kTableWise, but got the number {}. Use one of these enumerators.",
      static_cast<int64_t>(placement.kind));
}

}  // namespace tessera
