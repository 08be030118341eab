// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/features/feature.h>
#include <tessera/search/recommender.h>

#include "packages/search/src/scan/item_attributes.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
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
  /// Errors:  c10::ValueError if the pipeline does not have the outputs.
  GivenItems(
      std::string where,
      const std::optional<data::FeaturePipeline>& pipeline,
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
  /// Checks that at least one of these items has attributes.
  /// Errors:  c10::ValueError.
  void check_attributes(
      const ItemAttributes& attributes,
      const std::vector<int64_t>& ids) const;

 private:
  std::string where_;
  const std::optional<data::FeaturePipeline>& pipeline_;
  std::string item_;
  int64_t num_reserved_users_ = 0;
  int64_t num_reserved_items_ = 0;
  bool has_texts_ = false;
};

/// "[where] the feature 'name'", with which messages begin.
std::string feature_place(const std::string& where, const std::string& name);

/// The values of an int32 or int64 vector.
/// Errors:  c10::ValueError that begins with `what`.
std::vector<int64_t> integers_of(
    const at::Tensor& tensor,
    const std::string& what);

/// Bags of ids, such as the items of each user.
struct ItemBags {
  std::vector<int64_t> ids = {};
  std::vector<int64_t> splits = {};  // [bags + 1]

  std::span<const int64_t> of(int64_t bag) const {
    const auto begin = static_cast<size_t>(splits[bag]);
    return std::span(ids).subspan(begin, splits[bag + 1] - begin);
  }
};

/// Errors:  c10::ValueError that begins with `what`, also if there are not `num_bags`.
ItemBags bags_of(
    const RaggedFeature& feature,
    int64_t num_bags,
    const std::string& what);
RaggedFeature ragged_of(const ItemBags& bags);

/// The number of users in a batch.
/// Errors:  c10::ValueError that begins with `where` if there are none, and for features
///          that are not a flat map of dense or ragged ones with the same number of rows.
int64_t num_users(const data::PipelineBatch& batch, const std::string& where);

/// The rows of these users.
/// Errors:  c10::ValueError that begins with `where` for wrong row_splits.
data::PipelineBatch select_users(
    const data::PipelineBatch& batch,
    const std::vector<int64_t>& users,
    const std::string& where);

}  // namespace tessera
