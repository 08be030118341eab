// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/recommend.h>

#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/item_catalogue.h"
#include "packages/search/src/scan/row_scan.h"
#include "packages/serving/src/format/items_file.h"
#include "packages/serving/src/reader/published_table.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

/// What a base says about the items that it recommends. All versions of the base share it.
struct BaseItems {
  /// `read` returns an attached file, or nothing.
  /// Errors:  ValueError beginning with `where` for files that do not fit together.
  BaseItems(
      const std::function<std::string_view(const char* name)>& read,
      const std::string& where);

  /// The items of the published history of a user.
  std::span<const int64_t> seen(int64_t user) const;
  bool has_history() const {
    return !seen_splits.empty();
  }

  ItemsFile file;
  std::span<const int64_t> ids;
  ItemAttributes attributes;
  ItemCatalogue catalogue;
  std::span<const int64_t> seen_splits;
  std::span<const int64_t> seen_ids;
};

/// The items of one version, and how requests find them.
class ItemSearch {
 public:
  /// Keeps pointers to the tables.
  /// Errors:  ValueError beginning with `where` for tables that do not fit the items.
  ItemSearch(
      std::shared_ptr<const BaseItems> items,
      const std::vector<PublishedTable>& tables,
      const std::string& where);

  const std::shared_ptr<const BaseItems>& items() const {
    return items_;
  }
  int64_t dim() const {
    return vectors_->file().dim;
  }

  /// A request that has been checked, with its vector.
  struct Query {
    RecommendRequest request = {};
    RecommendedFrom from = RecommendedFrom::kQuery;
    bool has_history = false;
    std::vector<float> vector = {};  // [dim], or empty for kPopularity
    ItemChoice choice = {};
    std::vector<int64_t> excluded = {};  // rows, ascending
  };
  /// `program` gives the vector of a user who has no other one. nullptr: there is none.
  /// Errors:  ValueError for a request that does not fit the items.
  Query prepare(
      RecommendRequest request,
      const std::function<std::vector<float>()>& program = nullptr) const;

  /// The best rows of each query: `count` or more, or all if there are fewer. Diversity is
  /// ignored.
  std::vector<std::vector<ScoredRow>> search(
      std::span<const Query> queries,
      int64_t count) const;

  /// The result of a query for which search() has found `rows`. If diversity leaves out too
  /// many of them, more rows are searched, unless they are final because a program has
  /// scored them.
  RecommendResult result(
      const Query& query,
      std::vector<ScoredRow> rows,
      bool is_final) const;

 private:
  // Whether the table of users has a row for the user.
  bool has_row(const RecommendRequest& request) const;
  RecommendedFrom from_of(const RecommendRequest& request, bool has_program)
      const;
  std::vector<float> vector_of(const Query& query) const;
  std::vector<float> solve(std::vector<int64_t> rows) const;

  std::shared_ptr<const BaseItems> items_;
  // nullptr: the version has no such table.
  const PublishedTable* vectors_ = nullptr;
  const PublishedTable* exact_vectors_ = nullptr;
  const PublishedTable* popularity_ = nullptr;
  const PublishedTable* users_ = nullptr;
  const PublishedTable* products_ = nullptr;
};

}  // namespace tessera::serving
