// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/given_items.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <variant>

namespace tessera {

at::Tensor checked_vectors(
    const at::Tensor& vectors,
    const std::string& what,
    std::optional<int64_t> rows,
    std::optional<int64_t> dim,
    ItemScore score) {
  TESSERA_CHECK_VALUE(
      vectors.defined() && vectors.dim() == 2 && vectors.size(0) > 0 &&
          vectors.size(0) == rows.value_or(vectors.size(0)) &&
          vectors.size(1) == dim.value_or(vectors.size(1)) &&
          vectors.size(1) > 0 && vectors.is_floating_point() &&
          vectors.layout() == at::kStrided && vectors.device().is_cpu(),
      "{} must give floats [{}, {}], dense and on the CPU, but got {}. Correct the function.",
      what,
      rows ? std::to_string(*rows) : "1 or more",
      dim ? std::to_string(*dim) : "dim",
      describe(vectors));
  at::Tensor result = vectors.detach();
  if (score == ItemScore::kCosine) {
    const at::Tensor doubles = result.to(at::kDouble);
    result = doubles.div(doubles.norm(2, 1, /*keepdim=*/true).clamp_min(1e-12));
  }
  result = result.to(at::kFloat).contiguous();
  TESSERA_CHECK_VALUE(
      result.isfinite().all().item<bool>(),
      "{} gave NaN or infinity, which have no order. Correct the model.",
      what);
  return result;
}

GivenItems::GivenItems(
    std::string where,
    const std::optional<data::FeaturePipeline>& pipeline,
    const std::string& user,
    std::string item)
    : where_(std::move(where)), pipeline_(pipeline), item_(std::move(item)) {
  if (!pipeline_) {
    return;
  }
  num_reserved_items_ = pipeline_->num_reserved_ids(item_);
  const auto& outputs = pipeline_->outputs();
  const bool has_user =
      std::ranges::find(outputs, user, &data::PipelineOutput::name) !=
      outputs.end();
  TESSERA_CHECK_VALUE(
      has_user || user == RecommenderOptions().user,
      "{} the pipeline has no output '{}', which the option `user` names. Correct the name.",
      where_,
      shorten(user));
  num_reserved_users_ = has_user ? pipeline_->num_reserved_ids(user) : 0;
  try {
    pipeline_->to_text(item_, at::zeros({0}, at::kLong));
    has_texts_ = true;
  } catch (const c10::ValueError&) {
    has_texts_ = false;  // such as Hash
  }
}

SortedItems GivenItems::sort(const RecommenderItems& given, ItemScore score)
    const {
  const at::Tensor vectors = checked_vectors(
      given.vectors,
      where_ + " items.vectors",
      std::nullopt,
      std::nullopt,
      score);
  const int64_t size = vectors.size(0);
  const std::vector<int64_t> ids = integers_of(
      given.ids.defined() ? given.ids : at::arange(size, at::kLong),
      where_ + " items.ids");
  TESSERA_CHECK_VALUE(
      std::ssize(ids) == size,
      "{} items.ids must have one id per vector, {}, but has {}.",
      where_,
      size,
      ids.size());
  std::vector<int64_t> order(ids.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  std::ranges::sort(order, {}, [&](int64_t i) { return ids[i]; });
  SortedItems items{.num_given = size};
  for (const int64_t i : order) {
    TESSERA_CHECK_VALUE(
        ids[i] >= 0 && (items.ids.empty() || items.ids.back() != ids[i]),
        "{} items.ids must be >= 0 and different, but has {}{}. Give each item its own id.",
        where_,
        ids[i],
        ids[i] < 0 ? "" : " twice");
    if (ids[i] >= num_reserved_items_) {
      items.ids.push_back(ids[i]);
      items.given_rows.push_back(i);
    }
  }
  if (has_texts_) {
    const int64_t end = pipeline_->vocabulary_size(item_);
    TESSERA_CHECK_VALUE(
        ids[order.back()] < end,
        "{} items.ids has {}, but the pipeline gives items ids in [0, {}). Correct the ids.",
        where_,
        ids[order.back()],
        end);
    TESSERA_CHECK_VALUE(
        given.ids.defined() || size == end,
        "{} there are {} vectors without items.ids, but the pipeline gives items ids in [0, {}). Set items.ids.",
        where_,
        size,
        end);
  }
  TESSERA_CHECK_VALUE(
      !items.ids.empty(),
      "{} all items.ids are below {}, and stand for missing and unknown values in the pipeline. Pass the ids of items.",
      where_,
      num_reserved_items_);
  const at::Tensor rows = at::tensor(items.given_rows, at::kLong);
  items.vectors = vectors.index_select(0, rows);
  if (given.popularity.defined()) {
    const at::Tensor& popularity = given.popularity;
    TESSERA_CHECK_VALUE(
        popularity.dim() == 1 && popularity.size(0) == size &&
            popularity.layout() == at::kStrided &&
            popularity.device().is_cpu() &&
            popularity.to(at::kFloat).isfinite().all().item<bool>(),
        "{} items.popularity must have one finite number per item, [{}], dense and on the CPU, but got {}. Correct it.",
        where_,
        size,
        describe(popularity));
    items.popularity = popularity.detach().index_select(0, rows);
  }
  return items;
}

std::string GivenItems::attributes(const data::Columns& columns) const {
  const std::string what = where_ + " attributes";
  std::vector<int64_t> ids;
  if (pipeline_) {
    const Features features = pipeline_->apply_present(columns).features;
    TESSERA_CHECK_VALUE(
        features.contains(item_) &&
            std::holds_alternative<at::Tensor>(features.at(item_).leaf()),
        "{} must have the columns of the pipeline's output '{}', with one value per row. Add them.",
        what,
        shorten(item_));
    ids = integers_of(std::get<at::Tensor>(features.at(item_).leaf()), what);
  } else {
    TESSERA_CHECK_VALUE(
        columns.contains(item_) &&
            std::holds_alternative<at::Tensor>(columns.at(item_).values) &&
            !columns.at(item_).row_splits.defined(),
        "{} must have the column '{}' with one id per row, as integers. Add it, or set a pipeline, which converts text.",
        what,
        shorten(item_));
    ids = integers_of(columns.tensor(item_), what);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < num_reserved_items_) {
      // Not an item of the model. No item has a negative id.
      ids[i] = -1 - static_cast<int64_t>(i);
    }
  }
  std::vector<int64_t> sorted = ids;
  std::ranges::sort(sorted);
  const auto twice = std::ranges::adjacent_find(sorted);
  TESSERA_CHECK_VALUE(
      twice == sorted.end(),
      "{} have two rows about the item with the id {}{}. Keep one.",
      what,
      *twice,
      has_texts_ ? ", " +
              shorten(pipeline_->to_text(item_, at::tensor({*twice})).front())
                 : "");
  std::vector<at::Tensor> kept;
  std::vector<std::pair<std::string, data::ColumnView>> views;
  for (const auto& [name, column] : columns.entries()) {
    views.emplace_back(name, data::view_of(column, kept));
  }
  return write_item_attributes(views, ids);
}

void GivenItems::check_attributes(
    const ItemAttributes& attributes,
    const std::vector<int64_t>& ids) const {
  TESSERA_CHECK_VALUE(
      std::ranges::any_of(
          ids,
          [&](int64_t id) {
            return attributes.row_of(id) + 1 < attributes.num_rows();
          }),
      "{} the attributes have no row about an item of the model, whose ids begin with {}. Correct the column of '{}'.",
      where_,
      ids.front(),
      shorten(item_));
}

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
