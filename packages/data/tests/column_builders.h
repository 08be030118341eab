// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/feature_pipeline.h>

#include "tests/test_util.h"

namespace tessera::test {

inline data::Column integers(std::vector<int64_t> values) {
  return {.values = at::tensor(values, at::kLong)};
}

inline data::Column numbers(std::vector<float> values) {
  return {.values = at::tensor(values, at::kFloat)};
}

inline data::Column text(std::vector<std::string> values) {
  return {.values = std::move(values)};
}

inline data::Column ragged(
    data::Column column,
    std::vector<int64_t> row_splits) {
  column.row_splits = at::tensor(row_splits, at::kLong);
  return column;
}

inline data::Columns columns_of(
    std::vector<std::pair<std::string, data::Column>> entries) {
  data::Columns columns;
  for (auto& [name, column] : entries) {
    columns.add(name, std::move(column));
  }
  return columns;
}

inline std::vector<int64_t> to_vector(const at::Tensor& tensor) {
  const at::Tensor values = tensor.contiguous();
  const int64_t* begin = values.const_data_ptr<int64_t>();
  return {begin, begin + values.numel()};
}

using Ids = std::vector<int64_t>;

inline Feature feature_of(
    const data::Transform& transform,
    const std::vector<data::Column>& inputs,
    int64_t max_length = 0) {
  data::Columns columns;
  data::PipelineOutput output{
      .name = "f", .transform = transform, .max_length = max_length};
  for (const data::Column& input : inputs) {
    output.columns.push_back(c10::str("c", output.columns.size()));
    columns.add(output.columns.back(), input);
  }
  return data::FeaturePipeline({output}).apply(columns).features["f"];
}

/// The ids of a column with one value per example.
inline Ids ids_of(
    const data::Transform& transform,
    const std::vector<data::Column>& inputs) {
  return to_vector(std::get<at::Tensor>(feature_of(transform, inputs)));
}

/// The ids of each example. The feature must be ragged.
inline std::vector<Ids> bags_of(
    const data::Transform& transform,
    const std::vector<data::Column>& inputs,
    int64_t max_length = 0) {
  const auto feature =
      std::get<RaggedFeature>(feature_of(transform, inputs, max_length));
  const Ids values = to_vector(feature.values);
  const Ids splits = to_vector(feature.row_splits);
  EXPECT_EQ(splits.front(), 0);
  EXPECT_EQ(splits.back(), static_cast<int64_t>(values.size()));
  std::vector<Ids> bags;
  for (size_t i = 0; i + 1 < splits.size(); ++i) {
    bags.emplace_back(
        values.begin() + splits[i], values.begin() + splits[i + 1]);
  }
  return bags;
}

/// The numbers of one column.
inline at::Tensor dense_of(
    const data::Transform& transform,
    const data::Column& input) {
  data::Columns columns;
  columns.add("c", input);
  return data::FeaturePipeline(
             {{.name = "f", .columns = {"c"}, .transform = transform}})
      .apply(columns)
      .dense;
}

}  // namespace tessera::test
