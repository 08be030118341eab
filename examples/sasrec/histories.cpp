// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/histories.h"

#include "examples/common/movielens_data.h"
#include "examples/common/movielens_features.h"
#include "examples/common/number_lines.h"

#include <c10/util/Exception.h>
#include <tessera/data/collect_sequences.h>
#include <torch/types.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <utility>
#include <variant>

using torch::Tensor;

namespace {

Histories read_lines(
    const std::string& path,
    int64_t max_length,
    bool windows,
    bool prefixes) {
  std::vector<std::vector<int64_t>> items;
  int64_t num_items = 0;
  int64_t count = 0;
  for_each_number_line(
      "histories", path, 1, [&](const std::vector<int64_t>& numbers) {
        std::vector<int64_t>& own = items.emplace_back();
        for (size_t i = 1; i < numbers.size(); ++i) {  // the first is the user
          own.push_back(numbers[i] - 1);
          num_items = std::max(num_items, numbers[i]);
          ++count;
        }
      });
  // Each number up to the largest one has a row in the table.
  constexpr int64_t kMostPerItem = 100;
  TORCH_CHECK_VALUE(
      num_items <= kMostPerItem * count,
      "[histories] ",
      path,
      ": the largest item is ",
      num_items,
      ", but the users have only ",
      count,
      " items. Number the items from 1, without large gaps.");
  return {std::move(items), num_items, max_length, windows, prefixes};
}

Histories read_movielens(
    const std::string& folder,
    int64_t max_length,
    bool windows,
    bool prefixes) {
  const MovieLens data = load_movielens(folder);
  std::vector<int64_t> users;
  std::vector<int64_t> movies;
  std::vector<int64_t> seconds;
  for (const MovieLens::Rating& rating : data.ratings) {
    users.push_back(rating.user);
    movies.push_back(rating.movie);
    seconds.push_back(rating.seconds);
  }
  tessera::data::Columns log;
  log.add("user", {.values = int64_tensor(users)});
  log.add("movie", {.values = int64_tensor(movies)});
  log.add("seconds", {.values = int64_tensor(seconds)});
  const tessera::data::Columns histories = tessera::data::collect_sequences(
      tessera::data::Dataset(log),
      {.by = "user", .time = "seconds", .values = {"movie"}});
  const auto& [values, splits] = histories.at("movie");
  std::vector<std::vector<int64_t>> items;
  const auto* own = std::get<Tensor>(values).const_data_ptr<int64_t>();
  const auto* ends = splits.const_data_ptr<int64_t>();
  for (int64_t i = 0; i + 1 < splits.numel(); ++i) {
    items.emplace_back(own + ends[i], own + ends[i + 1]);
  }
  return {
      std::move(items), std::ssize(data.movies), max_length, windows, prefixes};
}

}  // namespace

Histories load_histories(
    const std::string& path,
    int64_t max_length,
    bool windows,
    bool prefixes) {
  return std::filesystem::is_regular_file(path)
      ? read_lines(path, max_length, windows, prefixes)
      : read_movielens(path, max_length, windows, prefixes);
}

Histories::Histories(
    std::vector<std::vector<int64_t>> items,
    int64_t num_items,
    int64_t max_length,
    bool windows,
    bool prefixes)
    : max_length_(static_cast<size_t>(max_length)),
      num_items_(num_items),
      prefixes_(prefixes) {
  for (std::vector<int64_t>& own : items) {
    if (own.size() < 3) {
      continue;
    }
    // The target of the last input is the last item for training.
    for (size_t end = own.size() - 3; end > 0;) {
      const size_t begin = end - std::min(end, max_length_);
      train_windows_.push_back(
          {.user = items_.size(), .begin = begin, .end = end});
      end = prefixes ? end - 1 : windows ? begin : 0;
    }
    items_.push_back(std::move(own));
  }
  TORCH_CHECK_VALUE(
      !train_windows_.empty(),
      "[histories] expected users with four items or more, but no user has as many. Check the file.");
}

Histories::Batch Histories::batch(const std::vector<Window>& windows) const {
  Bags sequences;
  std::vector<int64_t> targets;
  for (const Window& window : windows) {
    const std::vector<int64_t>& items = items_[window.user];
    for (size_t i = window.begin; i < window.end; ++i) {
      sequences.add(items[i]);
      if (!prefixes_ || i + 1 == window.end) {
        targets.push_back(items[i + 1]);
      }
    }
    sequences.end_bag();
  }
  return {.sequences = sequences.feature(), .targets = int64_tensor(targets)};
}

Tensor Histories::negatives(
    const std::vector<Window>& windows,
    std::mt19937_64& random) const {
  std::uniform_int_distribution<int64_t> any(0, num_items_ - 1);
  std::vector<int64_t> negatives;
  std::vector<bool> is_own(static_cast<size_t>(num_items_));
  for (const Window& window : windows) {
    const std::vector<int64_t> items = seen(window.user, HeldOut::kValidation);
    for (const int64_t item : items) {
      is_own[item] = true;
    }
    TORCH_CHECK_VALUE(
        std::find(is_own.begin(), is_own.end(), false) != is_own.end(),
        "[histories] a user has all items, so there is no negative for the binary loss. Choose another loss.");
    for (size_t i = prefixes_ ? window.end - 1 : window.begin; i < window.end;
         ++i) {
      int64_t negative = any(random);
      while (is_own[negative]) {
        negative = any(random);
      }
      negatives.push_back(negative);
    }
    for (const int64_t item : items) {
      is_own[item] = false;
    }
  }
  return int64_tensor(negatives);
}

Tensor Histories::held_out(HeldOut which) const {
  std::vector<int64_t> result;
  for (size_t user = 0; user < items_.size(); ++user) {
    result.push_back(held_out(user, which));
  }
  return int64_tensor(result);
}

std::vector<int64_t> Histories::seen(size_t user, HeldOut which) const {
  const auto begin = items_[user].begin();
  return {begin, begin + static_cast<std::ptrdiff_t>(end_of(user, which))};
}

tessera::RaggedFeature Histories::bags(HeldOut which, size_t max_length) const {
  Bags result;
  for (size_t user = 0; user < items_.size(); ++user) {
    const size_t end = end_of(user, which);
    for (size_t i = end - std::min(end, max_length); i < end; ++i) {
      result.add(items_[user][i]);
    }
    result.end_bag();
  }
  return result.feature();
}

tessera::RaggedFeature Histories::seen(HeldOut which) const {
  return bags(which, std::numeric_limits<size_t>::max());
}

tessera::RaggedFeature Histories::latest(HeldOut which) const {
  return bags(which, max_length_);
}
