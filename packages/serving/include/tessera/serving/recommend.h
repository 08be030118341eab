// SPDX-License-Identifier: Apache-2.0
#pragma once

// This header needs only the standard library.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::serving {

// snippet: packages/serving/tests/recommend_test.cpp RecommendRequest
/// A user for whom Version::recommend() finds items.
///
///   const RecommendRequest request{.user = 7, .k = 2, .where = "genre = 'drama'"};
///   const RecommendResult found = version->recommend({&request, 1}).front();
///   for (const int64_t film : found.ids) {
///     std::cout << film << "\n";  // best first
///   }
struct RecommendRequest {
  /// The id of the user. Unset: the request has none.
  std::optional<int64_t> user = {};
  /// Ids of items that the user has seen, and by which a user without a vector gets one.
  /// Ids that are no items are ignored. Unset: the request has none.
  std::optional<std::vector<int64_t>> items = {};
  /// The vector of the user, as the model gives it. Empty: that of `user`, or one that is
  /// solved from `items`.
  std::vector<float> vector = {};  // [dim]
  /// The number of items, in [1, number of items].
  int64_t k = 10;
  /// Leaves out `items`, and the items of the published history of `user`.
  bool exclude_seen = false;
  /// An expression over attributes, such as "genre = 'drama' and year >= 1990". Empty: all
  /// items.
  std::string where = {};
  /// Ids of items to leave out. Ids that are no items are ignored.
  std::vector<int64_t> exclude = {};
  /// Ids of items to choose from. An id that is no item is an error. Unset: all.
  std::optional<std::vector<int64_t>> choose_from = {};
  /// At most `max_per_value` items may have the same value of this attribute. Items without
  /// a value are not limited. Empty: any number.
  std::string diverse_column = {};
  int64_t max_per_value = 1;
};

// snippet: packages/serving/tests/recommend_test.cpp PublishedFoldIn
/// How servers find the vector of an unknown user from the user's items. See FoldInOptions.
/// The targets are 1, and there are no biases. With ItemScore::kCosine, the vectors of items
/// have length 1.
///
///   items.fold_in = PublishedFoldIn{.catalogue_confidence = 1.0};
struct PublishedFoldIn {
  double regularization = 1.0;  // > 0
  double regularization_per_item = 0.0;  // >= 0
  double catalogue_confidence = 0.0;  // >= 0
};

/// How the items of a user were found.
enum class RecommendedFrom {
  kQuery,  // by the vector of the user
  kFoldIn,  // by a vector that was solved from the user's items
  kPopularity  // nothing is known about the user
};

/// The items for one user, best first.
struct RecommendResult {
  std::vector<int64_t> ids = {};
  /// With RecommendedFrom::kPopularity, the popularity.
  std::vector<float> scores = {};
  RecommendedFrom from = RecommendedFrom::kQuery;
  /// The number of items that `where` and `choose_from` let through.
  int64_t passed = 0;
  /// True if exclude_seen has found the user in the published history.
  bool has_history = false;
};

}  // namespace tessera::serving
