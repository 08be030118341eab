// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/serving/recommend.h>

#include <cstdint>
#include <optional>
#include <string>

namespace tessera::serving {

// The items that a version recommends. Tables with these names have the numbers that change
// from version to version, and attached files with the other names have what changes only
// with a base. Row i of a table of items is about the item with the i-th id.

inline constexpr const char* kItemTables = "recommend/";  // begins their names
inline constexpr const char* kItemVectors = "recommend/items";  // [items, dim]
/// The float32 vectors from which the others were quantized.
inline constexpr const char* kExactVectors = "recommend/exact_items";
/// [items, 1].
inline constexpr const char* kPopularity = "recommend/popularity";
inline constexpr const char* kUserVectors = "recommend/users";  // [users, dim]
/// The sum of v v^T over the vectors v of all items, and then what float32 leaves of it,
/// [dim, 2 dim].
inline constexpr const char* kItemProducts = "recommend/products";

inline constexpr const char* kItems = "items";  // ItemsFile in JSON
inline constexpr const char* kItemIds = "item_ids";  // [items] int64, ascending
inline constexpr const char* kItemAttributes = "item_attributes";
/// The items that each user has seen, as int64: the number of users, [users + 1] row splits,
/// and then ids.
inline constexpr const char* kSeenItems = "seen_items";
inline constexpr const char* kQueryProgram = "query_program";

struct FoldInFile : PublishedFoldIn {
  TESSERA_FIELDS(regularization, regularization_per_item, catalogue_confidence)
};

/// The file kItems.
struct ItemsFile {
  /// The features with the id of the user, with ids of items, and with the ids of the items
  /// of the user.
  std::string user = {};
  std::string item = {};
  std::string user_items = {};
  /// Ids below these numbers stand for missing and unknown values.
  int64_t num_reserved_users = 0;
  int64_t num_reserved_items = 0;
  /// True if the vectors have length 1. A server then makes that of a user as long.
  bool is_cosine = false;
  std::optional<FoldInFile> fold_in = {};
  /// The number of items that the program of the version scores again. 0: none.
  int64_t num_candidates = 0;

  TESSERA_FIELDS(
      user,
      item,
      user_items,
      num_reserved_users,
      num_reserved_items,
      is_cosine,
      fold_in,
      num_candidates)
};

}  // namespace tessera::serving
