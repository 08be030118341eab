// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tables/table_config.h>

#include "src/features/feature_state.h"
#include "src/features/id_bags.h"
#include "tests/test_headers.h"

namespace tessera::test {

/// The feature 'clicks' of the table 'movies', which has 10 rows of dim 3.
inline FeatureState feature_state(
    FeatureConfig config = {},
    Combiner combiner = Combiner::kSum) {
  config.table = make_table(
      {.name = "movies",
       .vocabulary_size = 10,
       .dim = 3,
       .combiner = combiner});
  FeatureState state{.path = "clicks", .config = std::move(config)};
  state.output_shape = state.config.output_shape;
  return state;
}

/// Checks that the members of `bags` are consistent with each other.
inline void expect_consistent(const IdBags& bags) {
  const auto nnz = static_cast<size_t>(bags.nnz());
  const auto count = static_cast<size_t>(bags.bags);
  if (bags.offsets.empty()) {
    EXPECT_EQ(nnz, count);
  } else {
    ASSERT_EQ(bags.offsets.size(), count + 1);
    EXPECT_EQ(bags.offsets.front(), 0);
    EXPECT_EQ(bags.offsets.back(), bags.nnz());
    EXPECT_TRUE(std::is_sorted(bags.offsets.begin(), bags.offsets.end()));
  }
  EXPECT_TRUE(bags.weights.empty() || bags.weights.size() == nnz);
  EXPECT_TRUE(bags.scales.empty() || bags.scales.size() == count);
  EXPECT_TRUE(bags.kept.empty() || bags.kept.size() == nnz);
  EXPECT_EQ(
      bags.zero_rows, std::count(bags.ids.begin(), bags.ids.end(), kZeroRow));
  EXPECT_EQ(
      std::accumulate(
          bags.batch_shape.begin(),
          bags.batch_shape.end(),
          int64_t{1},
          std::multiplies<>()),
      bags.bags);
}

/// The results of `of(i)` for the ids of each bag. `i` is the index of an id.
template <class T, class Of>
std::vector<std::vector<T>> by_bag(const IdBags& bags, Of of) {
  expect_consistent(bags);
  std::vector<std::vector<T>> result(bags.bags);
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      result[bag].push_back(of(i));
    }
  }
  return result;
}

using Ids = std::vector<std::vector<int64_t>>;

/// The ids of each bag. -1 stands for an id that looks up zeros.
inline Ids ids_of(const IdBags& bags) {
  return by_bag<int64_t>(bags, [&](int64_t i) -> int64_t {
    return bags.ids[i] == kZeroRow ? -1 : int64_t{bags.ids[i]};
  });
}

/// The positions of the ids of each bag in the caller's values.
inline Ids positions_of(const IdBags& bags) {
  return by_bag<int64_t>(bags, [&](int64_t i) { return bags.position(i); });
}

inline std::vector<std::vector<float>> weights_of(const IdBags& bags) {
  return by_bag<float>(bags, [&](int64_t i) { return bags.weights[i]; });
}

}  // namespace tessera::test
