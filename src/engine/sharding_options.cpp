// SPDX-License-Identifier: Apache-2.0
#include <tessera/engine/sharding_options.h>

namespace tessera {

std::string to_string(RowSplit split) {
  return split == RowSplit::kDiv ? "div" : "mod";
}

std::string to_string(const TablePlacement& placement) {
  switch (placement.kind) {
    case TablePlacement::Kind::kReplicated:
      return "replicated";
    case TablePlacement::Kind::kWhole:
      return "whole on rank " + std::to_string(placement.rank);
    default:
      return "rows (" + to_string(placement.split) + ")";
  }
}

}  // namespace tessera
