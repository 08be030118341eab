// SPDX-License-Identifier: Apache-2.0
#include "src/features/sort_into_bags.h"

#include <cstddef>
#include <utility>

namespace tessera {

// A stable counting sort.
void sort_into_bags(
    const IdValues& values,
    BagIndices bag_indices,
    IdBags& bags) {
  for (size_t i = 0; i < values.is_dropped.size(); ++i) {
    if (values.is_dropped[i] != 0) {
      bag_indices[i] = kNoBag;
    }
  }
  bags.offsets.assign(bags.bags + 1, 0);
  for (const int64_t bag : bag_indices) {
    if (bag != kNoBag) {
      ++bags.offsets[bag + 1];
    }
  }
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    bags.offsets[bag + 1] += bags.offsets[bag];
  }
  const int64_t nnz = bags.offsets.back();
  Buffer<int64_t> next(bags.offsets.begin(), bags.offsets.end());
  Buffer<uint32_t> ids(nnz);
  Buffer<float> weights(values.weights.empty() ? 0 : nnz);
  Buffer<int64_t> kept(nnz);
  int64_t zero_rows = 0;
  for (size_t i = 0; i < bag_indices.size(); ++i) {
    if (bag_indices[i] == kNoBag) {
      continue;
    }
    const int64_t to = next[bag_indices[i]]++;
    ids[to] = values.ids[i];
    kept[to] = static_cast<int64_t>(i);
    zero_rows += values.ids[i] == kZeroRow ? 1 : 0;
    if (!weights.empty()) {
      weights[to] = values.weights[i];
    }
  }
  bags.ids = std::move(ids);
  bags.weights = std::move(weights);
  bags.kept = std::move(kept);
  bags.zero_rows = zero_rows;
}

}  // namespace tessera
