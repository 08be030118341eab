// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/interactions.h"

#include "examples/common/number_lines.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace {

void add_lines(
    const std::string& path,
    std::vector<std::vector<int64_t>>& items,
    int64_t& num_items) {
  for_each_number_line(
      "leaderboard", path, 0, [&](const std::vector<int64_t>& numbers) {
        const auto user = static_cast<size_t>(numbers[0]);
        if (items.size() <= user) {
          items.resize(user + 1);
        }
        for (size_t i = 1; i < numbers.size(); ++i) {
          items[user].push_back(numbers[i]);
          num_items = std::max(num_items, numbers[i] + 1);
        }
      });
}

// A number that looks random, for a pair. Source: the output function of SplitMix64,
// Steele et al. 2014, doi:10.1145/2660193.2660195.
uint64_t mixed(size_t user, int64_t item) {
  uint64_t z = (uint64_t{user} << 32) + static_cast<uint64_t>(item);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

Interactions load_interactions(
    const std::string& train_path,
    const std::string& test_path) {
  Interactions result;
  add_lines(train_path, result.train, result.num_items);
  add_lines(test_path, result.test, result.num_items);
  const size_t users = std::max(result.train.size(), result.test.size());
  result.train.resize(users);
  result.test.resize(users);
  return result;
}

Interactions with_validation(Interactions interactions) {
  for (size_t user = 0; user < interactions.train.size(); ++user) {
    std::vector<int64_t>& items = interactions.train[user];
    std::sort(items.begin(), items.end(), [&](int64_t a, int64_t b) {
      return mixed(user, a) < mixed(user, b);
    });
    const auto kept =
        static_cast<std::ptrdiff_t>(items.size() - items.size() / 10);
    interactions.test[user].assign(items.begin() + kept, items.end());
    items.resize(static_cast<size_t>(kept));
  }
  return interactions;
}
