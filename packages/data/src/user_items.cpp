// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/user_items.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/column_values.h"
#include "src/common/check.h"

#include <ATen/ops/tensor.h>

#include <algorithm>
#include <optional>
#include <span>

namespace tessera::data {

namespace {

constexpr const char* kUserItems = "[UserItems]";

// The values of an integer column, which live as long as the columns.
std::span<const int64_t> integers_of(
    const Columns& columns,
    const std::string& name) {
  const Column& column = find_value_column(columns, name, kUserItems);
  const auto* values = std::get_if<at::Tensor>(&column.values);
  TESSERA_CHECK_TYPE(
      values != nullptr && values->scalar_type() == at::kLong,
      "{} column '{}' must have integers, but it has {}. Convert it to ids with a FeaturePipeline in Dataset::map().",
      kUserItems,
      shorten(name),
      kind_of(column));
  TESSERA_CHECK_VALUE(
      values->is_contiguous(),
      "{} column '{}' must be contiguous. Call contiguous() on it.",
      kUserItems,
      shorten(name));
  const std::span all(
      values->const_data_ptr<int64_t>(), static_cast<size_t>(values->numel()));
  TESSERA_CHECK_VALUE(
      std::none_of(
          all.begin(),
          all.end(),
          [](int64_t value) { return is_missing(value); }),
      "{} column '{}' has missing values. Drop such examples before, with filter().",
      kUserItems,
      shorten(name));
  return all;
}

}  // namespace

UserItems::UserItems(const Dataset& examples, const UserItemsOptions& options) {
  const auto reader = examples.open();
  while (const std::optional<Columns> columns = reader->next()) {
    const auto users = integers_of(*columns, options.user);
    const auto items = integers_of(*columns, options.item);
    for (size_t i = 0; i < users.size(); ++i) {
      items_[users[i]].push_back(items[i]);
    }
  }
}

RaggedFeature UserItems::of(const at::Tensor& users) const {
  TESSERA_CHECK_TYPE(
      users.defined() && users.scalar_type() == at::kLong && users.is_cpu(),
      "{} users must be an int64 tensor on the cpu, but got {}.",
      kUserItems,
      users.defined() ? users.toString() : "an undefined tensor");
  TESSERA_CHECK_VALUE(
      users.dim() == 1,
      "{} users must have the shape [n], but got {}.",
      kUserItems,
      users.sizes());
  const at::Tensor ids = users.contiguous();
  const std::span all(
      ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel()));
  std::vector<int64_t> values;
  std::vector<int64_t> splits{0};
  splits.reserve(all.size() + 1);
  for (const int64_t user : all) {
    if (const auto found = items_.find(user); found != items_.end()) {
      const std::vector<int64_t>& bag = found->second;
      values.insert(values.end(), bag.begin(), bag.end());
    }
    splits.push_back(static_cast<int64_t>(values.size()));
  }
  return {
      .values = at::tensor(values, at::kLong),
      .row_splits = at::tensor(splits, at::kLong)};
}

}  // namespace tessera::data
