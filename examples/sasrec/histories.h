// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

/// The item of each user that is held out.
enum class HeldOut {
  kValidation,  // the one before the last
  kTest  // the last one
};

/// The items of each user in the order of time. The last two are not for training.
class Histories {
 public:
  /// The items begin to end - 1 of a user. The targets are the items that follow them, or
  /// with `prefixes` only the item after the last one.
  struct Window {
    size_t user = 0;
    size_t begin = 0;
    size_t end = 0;
  };
  /// The inputs of a training step.
  struct Batch {
    tessera::RaggedFeature sequences = {};
    at::Tensor targets = {};  // [nnz], or with `prefixes` [sequences]
  };

  /// A sequence has at most `max_length` items. With `windows`, a longer history is cut into
  /// several sequences for training, from its end, so that each item but the first is a
  /// target. With `prefixes`, each beginning of the history is a sequence, which ends with
  /// its latest items. Otherwise, the latest items are one. Users with fewer than three items
  /// are left out. Items have the ids 0 to num_items - 1.
  /// Errors:  c10::ValueError if no user has four items.
  Histories(
      std::vector<std::vector<int64_t>> items,
      int64_t num_items,
      int64_t max_length,
      bool windows,
      bool prefixes = false);

  int64_t num_items() const {
    return num_items_;
  }
  /// The sequences for training.
  const std::vector<Window>& train_windows() const {
    return train_windows_;
  }
  size_t users() const {
    return items_.size();
  }

  Batch batch(const std::vector<Window>& windows) const;
  /// A random item for each target of batch(), which the user does not have.
  at::Tensor negatives(
      const std::vector<Window>& windows,
      std::mt19937_64& random) const;

  /// The held-out item of each user, [users].
  at::Tensor held_out(HeldOut which) const;
  int64_t held_out(size_t user, HeldOut which) const {
    return items_[user][end_of(user, which)];
  }
  /// All items before the held-out one. With kValidation, these are those for training.
  std::vector<int64_t> seen(size_t user, HeldOut which) const;
  tessera::RaggedFeature seen(HeldOut which) const;
  /// The latest of these items, at most max_length.
  tessera::RaggedFeature latest(HeldOut which) const;

 private:
  size_t end_of(size_t user, HeldOut which) const {
    return items_[user].size() - (which == HeldOut::kTest ? 1 : 2);
  }
  tessera::RaggedFeature bags(HeldOut which, size_t max_length) const;

  size_t max_length_;
  int64_t num_items_;
  bool prefixes_ = false;
  std::vector<std::vector<int64_t>> items_;  // of each user
  std::vector<Window> train_windows_;
};

/// Reads the folder of MovieLens 100K, or a text or gzip file with one line for each user,
/// `user item item ...` in the order of time, with items from 1 as S3-Rec publishes them.
/// Errors:  c10::ValueError naming file and line.
Histories load_histories(
    const std::string& path,
    int64_t max_length,
    bool windows,
    bool prefixes = false);
