// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

struct Batch {
  tessera::Features features;  // user, item, history
  at::Tensor labels;  // [batch, columns] float32: stars, click, like
};

struct ClickData {
  int64_t users = 0;
  int64_t items = 0;
  std::vector<Batch> training = {};
  std::vector<Batch> test = {};
};

/// The columns of the labels.
enum Label : int64_t { kStars, kClick, kLike };

/// The longest history of an example.
inline constexpr int64_t kHistory = 8;

/// Generates examples whose structure is known. Each user has a taste, and each item has
/// a popularity, properties and one of 10 categories.
///
///   stars   3.5 + bias of the user + popularity + taste * properties + noise
///   click   likely if the item is popular, and if its category is in the history
///   like    likely if taste * properties is high
///
/// A linear model finds the popularity alone.
ClickData generate_clicks(int64_t seed);

/// The ratings of MovieLens 100K with empty histories. A random tenth is for the test.
/// Their only label is kStars.
/// Errors:  c10::ValueError if a file is missing or damaged.
ClickData read_ratings(const std::string& folder, int64_t seed);
