// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/user_items.h>

#include "packages/data/src/example_columns.h"
#include "packages/data/src/row_stage.h"
#include "src/common/check.h"

#include <ATen/ops/tensor.h>

#include <span>

namespace tessera::data {

namespace {

std::vector<int64_t> integers_of(
    const RowRange& range,
    int64_t first,
    const std::string& name) {
  std::vector<int64_t> integers;
  const ExampleColumn column{
      "UserItems",
      name,
      "Convert it to ids with a FeaturePipeline in Dataset::map()."};
  column.visit<int64_t>(range, first, "integers", [&](int64_t, int64_t value) {
    integers.push_back(value);
  });
  return integers;
}

}  // namespace

UserItems::UserItems(
    const Dataset& examples,
    const detail::UserItemsOptions& options) {
  scan_rows(examples, [&](const RowRange& range, int64_t first) {
    const std::vector<int64_t> users = integers_of(range, first, options.user);
    const std::vector<int64_t> items = integers_of(range, first, options.item);
    for (size_t i = 0; i < users.size(); ++i) {
      items_[users[i]].push_back(items[i]);
    }
  });
}

RaggedFeature UserItems::of(const at::Tensor& users) const {
  TESSERA_CHECK_TYPE(
      users.defined() && users.scalar_type() == at::kLong && users.is_cpu(),
      "[UserItems] users must be an int64 tensor on the cpu, but got {}.",
      users.defined() ? users.toString() : "an undefined tensor");
  TESSERA_CHECK_VALUE(
      users.dim() == 1,
      "[UserItems] users must have the shape [n], but got {}.",
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
    splits.push_back(std::ssize(values));
  }
  return {
      .values = at::tensor(values, at::kLong),
      .row_splits = at::tensor(splits, at::kLong)};
}

}  // namespace tessera::data
