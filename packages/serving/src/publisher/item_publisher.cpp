// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/publisher/item_publisher.h"

#include <tessera/common/json_value.h>
#include <tessera/common/shorten.h>

#include "packages/search/src/scan/item_attributes.h"
#include "packages/search/src/scan/item_catalogue.h"
#include "packages/serving/src/format/items_file.h"
#include "packages/serving/src/publisher/followed_table.h"
#include "src/common/check.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::serving {

namespace {

const PublishedItems& checked(const PublishOptions& options) {
  const PublishedItems& items = *options.items;
  TESSERA_CHECK_VALUE(
      items.items != nullptr,
      "[Publisher] items.items is empty. Set it to a function that gives the vectors of items.");
  TESSERA_CHECK_VALUE(
      items.users || !items.query.empty() || items.fold_in,
      "[Publisher] expected items.users, items.query or items.fold_in, but all are empty, so servers could find items for nobody. Set the one that gives the vectors of users.");
  TESSERA_CHECK_VALUE(
      !items.seen || items.users,
      "[Publisher] items.seen needs items.users, which says how many users there are, but that is empty. Set it, or leave `seen` out.");
  TESSERA_CHECK_VALUE(
      items.score >= ItemScore::kDot && items.score <= ItemScore::kCosine &&
          items.format > RowFormat::kTable && items.format <= RowFormat::kInt4,
      "[Publisher] items.score must be an enumerator of ItemScore, and items.format one of RowFormat but kTable, because the vectors of items are of no table. Correct the options.");
  TESSERA_CHECK_VALUE(
      items.num_candidates >= 0 &&
          (items.num_candidates == 0 || !options.program.empty()),
      "[Publisher] items.num_candidates must be >= 0, and needs options.program if it is not 0, but is {}{}. Correct the options.",
      items.num_candidates,
      options.program.empty() ? " without a program" : "");
  TESSERA_CHECK_VALUE(
      items.every >= 1,
      "[Publisher] items.every must be >= 1, but is {}. Set it to 1, so that the vectors are computed with each version.",
      items.every);
  TESSERA_CHECK_VALUE(
      items.every == 1 || items.query.empty(),
      "[Publisher] items.every must be 1 with items.query, but is {}. The program of items.query uses the weights of each version, which do not fit older vectors of items. Set items.every to 1, or give the vectors of users by items.users.",
      items.every);
  const auto& [plain, per_item, catalogue] =
      items.fold_in.value_or(PublishedFoldIn());
  TESSERA_CHECK_VALUE(
      plain > 0.0 && per_item >= 0.0 && catalogue >= 0.0 &&
          std::isfinite(plain + per_item + catalogue),
      "[Publisher] items.fold_in must have a regularization > 0 and other numbers >= 0, but has {}, {} and {}. Correct the options.",
      plain,
      per_item,
      catalogue);
  return items;
}

// The sum of v v^T over the rows v as float32, and what that leaves of it, [dim, 2 dim].
at::Tensor products_of(const at::Tensor& vectors) {
  constexpr int64_t kRows = 10'000;  // at once, as doubles
  const int64_t dim = vectors.size(1);
  at::Tensor sum = at::zeros({dim, dim}, at::kDouble);
  for (const at::Tensor& part : vectors.split(kRows)) {
    const at::Tensor rows = part.to(at::kDouble);
    sum.addmm_(rows.t(), rows);
  }
  const at::Tensor floats = sum.to(at::kFloat);
  return checked_vectors(
      at::cat({floats, sum.sub(floats).to(at::kFloat)}, 1),
      "[Publisher] the products of items",
      dim,
      2 * dim,
      ItemScore::kDot);
}

// The rows with other bits.
std::vector<uint32_t> changed_rows(
    const at::Tensor& before,
    const at::Tensor& now) {
  const at::Tensor is_other = before.view(at::kInt).ne(now.view(at::kInt));
  const at::Tensor rows = is_other.any(1).nonzero();
  const auto* first = rows.const_data_ptr<int64_t>();
  return {first, first + rows.numel()};
}

}  // namespace

ItemPublisher::ItemPublisher(
    const PublishOptions& options,
    const PublishedModel& model)
    : options_(checked(options)),
      pipeline_(
          options.pipeline.empty()
              ? std::nullopt
              : std::optional(load_pipeline(options.pipeline))),
      given_(
          kPublisher,
          pipeline_ ? &*pipeline_ : nullptr,
          options_.user,
          options_.item) {
  if (!options_.attributes.entries().empty()) {
    attributes_ = given_.attributes(options_.attributes);
  }
  if (!options_.query.empty()) {
    query_ =
        model.check_program(options_.query, "items.query", false).outputs.at(0);
  }
}

void ItemPublisher::take(
    const RecommenderItems& given,
    const at::Tensor& users) {
  SortedItems items = given_.sort(given, options_.score);
  const int64_t dim = items.vectors.size(1);
  TESSERA_CHECK_VALUE(
      !query_ ||
          (!query_->shape.empty() &&
           query_->shape.back().value_or(dim) == dim &&
           std::all_of(
               query_->shape.begin(),
               query_->shape.end() - 1,
               [](const auto& size) { return size.value_or(1) == 1; })),
      "[Publisher] the first output of items.query must have {} numbers per user, as the vectors of items, but is {} of another shape. Export a model that returns the vector of the user first.",
      dim,
      query_->name);
  taken_ = {.ids = std::move(items.ids)};
  add_table(kItemVectors, items.vectors, options_.format);
  if (options_.exact_scores && options_.format >= RowFormat::kInt8) {
    add_table(kExactVectors, items.vectors, RowFormat::kFloat32);
  }
  if (items.popularity.defined()) {
    add_table(
        kPopularity,
        items.popularity.to(at::kFloat).contiguous().unsqueeze(1),
        RowFormat::kFloat32);
  }
  if (options_.users) {
    const at::Tensor vectors = checked_vectors(
        users, "[Publisher] items.users", std::nullopt, dim, options_.score);
    // They may be the memory of the model, which changes.
    add_table(kUserVectors, vectors.clone(), RowFormat::kFloat32);
  }
  if (options_.fold_in && options_.fold_in->catalogue_confidence > 0.0) {
    add_table(kItemProducts, products_of(items.vectors), RowFormat::kFloat32);
  }
  compare();
  if (needs_base_ && !attributes_.empty()) {
    const ItemAttributes attributes(attributes_, kPublisher);
    TESSERA_CHECK_VALUE(
        ItemCatalogue(taken_.ids, &attributes).has_attributes(),
        "[Publisher] the attributes have no row about an item of the model, whose ids begin with {}. Correct the column of '{}'.",
        taken_.ids.front(),
        shorten(options_.item));
  }
}

void ItemPublisher::keep() {
  taken_ = written_;
  for (Table& table : taken_.tables) {
    table.changed.clear();
  }
  needs_base_ = false;
}

void ItemPublisher::add_table(
    const char* name,
    at::Tensor values,
    RowFormat format) {
  taken_.tables.push_back(
      {.file =
           {.name = name,
            .dim = values.size(1),
            .format = to_string(stored_format(format, at::kFloat)),
            .vocabulary_size = values.size(0)},
       .values = std::move(values)});
}

// Compares what was taken with the last version.
void ItemPublisher::compare() {
  const auto fits = [](const Table& left, const Table& right) {
    return left.file.name == right.file.name &&
        left.values.sizes() == right.values.sizes();
  };
  needs_base_ = taken_.ids != written_.ids ||
      !std::ranges::equal(taken_.tables, written_.tables, fits);
  for (size_t i = 0; i < taken_.tables.size() && !needs_base_; ++i) {
    Table& table = taken_.tables[i];
    table.changed = changed_rows(written_.tables[i].values, table.values);
  }
}

int64_t ItemPublisher::bytes(bool is_base) const {
  int64_t bytes = 0;
  for (const Table& table : taken_.tables) {
    bytes += row_bytes(format_from_string(table.file.format), table.file.dim) *
        (is_base ? table.file.vocabulary_size : std::ssize(table.changed));
  }
  return bytes;
}

void ItemPublisher::add(bool is_base, VersionContent& content) const {
  for (const Table& table : taken_.tables) {
    content.tables.push_back(content_of(
        table.file,
        table.values,
        is_base ? std::nullopt : std::optional(table.changed)));
    content.tables.back().is_copy = true;
  }
  if (!is_base) {
    return;
  }
  ItemsFile file{
      .user = options_.user,
      .item = options_.item,
      .user_items =
          options_.user_items.empty() ? options_.item : options_.user_items,
      .num_reserved_users = given_.num_reserved_users(),
      .num_reserved_items = given_.num_reserved_items(),
      .is_cosine = options_.score == ItemScore::kCosine,
      .num_candidates = options_.num_candidates};
  if (options_.fold_in) {
    file.fold_in = FoldInFile{*options_.fold_in};
  }
  content.files.emplace_back(kItems, write_fields(file).dump());
  content.files.emplace_back(kItemIds, bytes_of(taken_.ids));
  if (!attributes_.empty()) {
    content.files.emplace_back(kItemAttributes, attributes_);
  }
  if (options_.seen) {
    content.files.emplace_back(kSeenItems, seen_items());
  }
}

void ItemPublisher::accept() {
  written_ = std::move(taken_);
  num_to_keep_ = (num_to_keep_ == 0 ? options_.every : num_to_keep_) - 1;
}

// The bytes of the file kSeenItems.
std::string ItemPublisher::seen_items() const {
  constexpr int64_t kUsers = 100'000;  // at once
  const auto users =
      std::ranges::find(taken_.tables, kUserVectors, [](const Table& table) {
        return table.file.name;
      });
  const int64_t end = users->file.vocabulary_size;
  // Users with reserved ids are unknown.
  int64_t first = std::min(given_.num_reserved_users(), end);
  std::vector<int64_t> splits(static_cast<size_t>(first) + 1);
  std::vector<int64_t> ids;
  for (; first < end; first += kUsers) {
    const int64_t count = std::min(kUsers, end - first);
    const ItemBags bags = bags_of(
        options_.seen(at::arange(first, first + count, at::kLong)),
        count,
        "[Publisher] items.seen");
    for (int64_t user = 0; user < count; ++user) {
      for (const int64_t id : bags.of(user)) {
        if (std::ranges::binary_search(taken_.ids, id)) {
          ids.push_back(id);
        }
      }
      splits.push_back(std::ssize(ids));
    }
  }
  return bytes_of(std::vector<int64_t>{end}) + bytes_of(splits) + bytes_of(ids);
}

}  // namespace tessera::serving
