// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/sharding_options.h>

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
      break;
  }
  return "row-wise (" + to_string(placement.split) + ")";
}

}  // namespace tessera
