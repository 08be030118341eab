// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/search/recommender.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Checks that vectors are finite floats [rows, dim], and returns them as contiguous float32.
/// For cosines, their length is made 1. `what` is where they come from.
at::Tensor checked_vectors(
    const at::Tensor& vectors,
    const std::string& what,
    std::optional<int64_t> rows,
    std::optional<int64_t> dim,
    ItemScore score);

/// Items sorted by id. Row i has the id ids[i].
struct SortedItems {
  at::Tensor vectors = {};  // [items, dim] float32
  std::vector<int64_t> ids = {};
  std::vector<int64_t> given_rows = {};  // [items], of RecommenderItems
  int64_t num_given = 0;  // the number of RecommenderItems
  at::Tensor popularity = {};  // [items], or undefined
};

/// Reads the items of a Recommender or a Publisher.
class GivenItems {
 public:
  /// Messages begin with `where`, such as "[Recommender]". `pipeline` stays in memory.
  /// nullptr: there is none.
  /// Errors:  c10::ValueError if the pipeline does not have the outputs.
  GivenItems(
      std::string where,
      const data::FeaturePipeline* pipeline,
      const std::string& user,
      std::string item);

  int64_t num_reserved_users() const {
    return num_reserved_users_;
  }
  int64_t num_reserved_items() const {
    return num_reserved_items_;
  }
  /// True if the pipeline can convert ids of items to text.
  bool has_texts() const {
    return has_texts_;
  }

  /// Checks and sorts the items. Items with reserved ids are left out.
  /// Errors:  c10::ValueError.
  SortedItems sort(const RecommenderItems& given, ItemScore score) const;

  /// The bytes of ItemAttributes.
  /// Errors:  c10::ValueError for columns without ids, or with two rows about an item.
  std::string attributes(const data::Columns& columns) const;

 private:
  std::string where_;
  const data::FeaturePipeline* pipeline_;
  std::string item_;
  int64_t num_reserved_users_ = 0;
  int64_t num_reserved_items_ = 0;
  bool has_texts_ = false;
};

}  // namespace tessera
