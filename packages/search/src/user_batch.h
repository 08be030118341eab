// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/feature_pipeline.h>
#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

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

  std::span<const int64_t> of(int64_t bag) const;
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
