// SPDX-License-Identifier: Apache-2.0
#include "packages/search/src/given_items.h"

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/user_batch.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

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
    const data::FeaturePipeline* pipeline,
    const std::string& user,
    std::string item)
    : where_(std::move(where)), pipeline_(pipeline), item_(std::move(item)) {
  if (pipeline_ == nullptr) {
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
  if (pipeline_ != nullptr) {
    const Features features = pipeline_->apply_present(columns).features;
    const auto& entries = features.entries();
    const auto found = std::ranges::find_if(
        entries, [&](const auto& entry) { return entry.first == item_; });
    TESSERA_CHECK_VALUE(
        found != entries.end() &&
            std::holds_alternative<at::Tensor>(found->second.leaf()),
        "{} must have the columns of the pipeline's output '{}', with one value per row. Add them.",
        what,
        shorten(item_));
    ids = integers_of(std::get<at::Tensor>(found->second.leaf()), what);
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

}  // namespace tessera
