// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// The items of each user, without an order, for training and for a test.
struct Interactions {
  int64_t num_items = 0;
  std::vector<std::vector<int64_t>> train = {};  // of each user
  std::vector<std::vector<int64_t>> test = {};  // of each user

  int64_t num_users() const {
    return static_cast<int64_t>(train.size());
  }
};

/// Reads two text or gzip files with one line for each user, `user item item ...`, with
/// numbers from 0.
/// Errors:  c10::ValueError naming file and line.
Interactions load_interactions(
    const std::string& train_path,
    const std::string& test_path);

/// Takes a tenth of each user's training items as the test, in place of the test items.
/// Settings are chosen with it. The order by which it takes them looks random, but is the
/// same everywhere.
Interactions with_validation(Interactions interactions);
