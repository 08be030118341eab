// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/dataset.h>
#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

namespace tessera::data {

namespace detail {

/// The names of the columns that UserItems reads.
struct UserItemsOptions {
  /// The column with the user, one integer per example.
  std::string user = "user";
  /// The column with the item, one integer per example.
  std::string item = "item";

  bool operator==(const UserItemsOptions&) const = default;
};

}  // namespace detail

// snippet: tests/docs/reference_dataset_test.cpp UserItems
/// The items of each user, such as those that a search must leave out because the user
/// has seen them.
///
///   const UserItems seen(train, {.user = "user", .item = "item"});
///   const TopK found = index->search(user_vectors, 2, seen.of(users));
///
/// The constructor reads the dataset once. Thread safe.
/// Memory:  8 to 16 bytes per example, and about 64 bytes per user.
/// Errors:  c10::ValueError for columns that are missing or have lists, and for missing
///          values; c10::TypeError for columns that are not integers.
class UserItems {
 public:
  explicit UserItems(
      const Dataset& examples,
      const detail::UserItemsOptions& options = {});

  /// The items of each of the users, in the order of the dataset. A user without examples
  /// has none.
  /// Shapes:  users [n] int64; the result has n bags.
  /// Errors:  c10::ValueError or c10::TypeError for another tensor.
  RaggedFeature of(const at::Tensor& users) const;

 private:
  std::unordered_map<int64_t, std::vector<int64_t>> items_;
};

}  // namespace tessera::data
