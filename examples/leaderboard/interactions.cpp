// SPDX-License-Identifier: Apache-2.0
#include "examples/leaderboard/interactions.h"

#include "examples/common/number_lines.h"

#include <algorithm>
#include <cstddef>
#include <random>
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
  std::mt19937_64 random(0);
  for (size_t user = 0; user < interactions.train.size(); ++user) {
    std::vector<int64_t>& items = interactions.train[user];
    std::shuffle(items.begin(), items.end(), random);
    const auto kept =
        static_cast<std::ptrdiff_t>(items.size() - items.size() / 10);
    interactions.test[user].assign(items.begin() + kept, items.end());
    items.resize(static_cast<size_t>(kept));
  }
  return interactions;
}
