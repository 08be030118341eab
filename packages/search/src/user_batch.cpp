// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/user_batch.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

namespace tessera {

std::string feature_place(const std::string& where, const std::string& name) {
  return fmt::format("{} the feature '{}'", where, shorten(name));
}

std::vector<int64_t> integers_of(
    const at::Tensor& tensor,
    const std::string& what) {
  TESSERA_CHECK_VALUE(
      tensor.defined() && tensor.dim() == 1 && tensor.device().is_cpu() &&
          tensor.layout() == at::kStrided &&
          (tensor.scalar_type() == at::kLong ||
           tensor.scalar_type() == at::kInt),
      "{} must be int32 or int64 of one dimension, dense and on the CPU, but got {}. Convert it.",
      what,
      describe(tensor));
  const at::Tensor values = tensor.to(at::kLong).contiguous();
  const int64_t* begin = values.const_data_ptr<int64_t>();
  return {begin, begin + values.numel()};
}

std::span<const int64_t> ItemBags::of(int64_t bag) const {
  const auto begin = static_cast<size_t>(splits[static_cast<size_t>(bag)]);
  const auto end = static_cast<size_t>(splits[static_cast<size_t>(bag) + 1]);
  return std::span(ids).subspan(begin, end - begin);
}

ItemBags bags_of(
    const RaggedFeature& feature,
    int64_t num_bags,
    const std::string& what) {
  ItemBags bags{
      .ids = integers_of(feature.values, what),
      .splits = integers_of(feature.row_splits, what)};
  TESSERA_CHECK_VALUE(
      std::ssize(bags.splits) == num_bags + 1 && bags.splits.front() == 0 &&
          bags.splits.back() == std::ssize(bags.ids) &&
          std::ranges::is_sorted(bags.splits),
      "{} must have {} row_splits that ascend from 0 to {}. Make it with RaggedFeature::from_lengths().",
      what,
      num_bags + 1,
      bags.ids.size());
  return bags;
}

RaggedFeature ragged_of(const ItemBags& bags) {
  return {
      .values = at::tensor(bags.ids, at::kLong),
      .row_splits = at::tensor(bags.splits, at::kLong)};
}

int64_t num_users(const data::PipelineBatch& batch, const std::string& where) {
  int64_t count = batch.dense.defined() ? batch.dense.size(0) : -1;
  TESSERA_CHECK_VALUE(
      batch.features.is_map(),
      "{} the features of users must be a map from names to features. Name each feature.",
      where);
  for (const auto& [name, nest] : batch.features.entries()) {
    TESSERA_CHECK_VALUE(
        nest.is_leaf() && !std::holds_alternative<SparseFeature>(nest.leaf()),
        "{} must be dense or ragged, and no map or list. Convert it.",
        feature_place(where, name));
    const auto* ragged = std::get_if<RaggedFeature>(&nest.leaf());
    const at::Tensor& tensor = ragged != nullptr
        ? ragged->row_splits
        : std::get<at::Tensor>(nest.leaf());
    TESSERA_CHECK_VALUE(
        tensor.defined() && tensor.dim() >= 1 &&
            tensor.layout() == at::kStrided,
        "{} must have one row per user, but got {}. Correct its shape.",
        feature_place(where, name),
        describe(tensor));
    const int64_t rows = tensor.size(0) - (ragged == nullptr ? 0 : 1);
    TESSERA_CHECK_VALUE(
        rows == (count < 0 ? rows : count),
        "{} has {} rows, but others have {}. Pass one row per user.",
        feature_place(where, name),
        rows,
        count);
    count = rows;
  }
  TESSERA_CHECK_VALUE(
      count > 0,
      "{} expected one or more users, but got none. Pass a feature with one row per user.",
      where);
  return count;
}

data::PipelineBatch select_users(
    const data::PipelineBatch& batch,
    const std::vector<int64_t>& users,
    const std::string& where) {
  const at::Tensor rows = at::tensor(users, at::kLong);
  data::PipelineBatch selected;
  if (batch.dense.defined()) {
    selected.dense = batch.dense.index_select(0, rows);
  }
  Features::Map features;
  for (const auto& [name, nest] : batch.features.entries()) {
    if (const auto* dense = std::get_if<at::Tensor>(&nest.leaf())) {
      features.emplace_back(name, Feature(dense->index_select(0, rows)));
      continue;
    }
    const auto& ragged = std::get<RaggedFeature>(nest.leaf());
    const ItemBags bags = bags_of(
        ragged, ragged.row_splits.size(0) - 1, feature_place(where, name));
    ItemBags chosen{.splits = {0}};
    for (const int64_t user : users) {
      const auto ids = bags.of(user);
      chosen.ids.insert(chosen.ids.end(), ids.begin(), ids.end());
      chosen.splits.push_back(std::ssize(chosen.ids));
    }
    features.emplace_back(name, Feature(ragged_of(chosen)));
  }
  selected.features = Features::map(std::move(features));
  return selected;
}

}  // namespace tessera
