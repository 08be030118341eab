// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/golden_util.h"
#include "tests/test_util.h"

#include <tessera/training/metrics.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

namespace tessera::test {

/// Reads a flat list of numbers; undefined for null.
inline at::Tensor golden_doubles(const Json& json) {
  return json.is_null()
      ? at::Tensor()
      : at::tensor(json.get<std::vector<double>>(), at::kDouble);
}

inline at::Tensor golden_int64s(const Json& json) {
  return at::tensor(json.get<std::vector<int64_t>>(), at::kLong);
}

/// The examples [begin, end) of a batch.
inline training::MetricBatch slice(
    const training::MetricBatch& batch,
    int64_t begin,
    int64_t end) {
  const auto rows = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, begin, end) : tensor;
  };
  training::MetricBatch part{
      .predictions = rows(batch.predictions),
      .labels = batch.labels,
      .weights = rows(batch.weights),
      .groups = rows(batch.groups)};
  if (batch.label_splits.defined()) {
    const at::Tensor splits = batch.label_splits.slice(0, begin, end + 1);
    part.labels = batch.labels.slice(
        0, splits[0].item<int64_t>(), splits[-1].item<int64_t>());
    part.label_splits = splits.sub(splits[0]);
  } else {
    part.labels = rows(batch.labels);
  }
  return part;
}

/// Expects the same bits of the result for any split into batches, and after a state was
/// saved and loaded. Unless `numbers_lists`, metrics of parts that are merged in any order
/// give the same value. Random orders of ties depend on the numbers of the lists.
inline void expect_independent_of_batches(
    const training::Metric& example,
    const training::MetricBatch& batch,
    bool numbers_lists = false) {
  const auto whole = example.make_empty();
  EXPECT_TRUE(std::isnan(whole->result()));
  EXPECT_EQ(whole->name(), example.name());
  whole->update_batch(batch);
  const int64_t size = batch.predictions.size(0);
  for (const int64_t step : {1, 2, 5}) {
    auto metric = example.make_empty();
    for (int64_t i = 0; i < size; i += step) {
      metric->update_batch(slice(batch, i, std::min(i + step, size)));
      metric->result();  // must not change later results
      auto resumed = example.make_empty();
      resumed->load_state(metric->state());
      metric = std::move(resumed);
    }
    if (!std::isnan(whole->result())) {
      EXPECT_EQ(metric->result(), whole->result()) << "batches of " << step;
    }
    metric->reset();
    EXPECT_TRUE(std::isnan(metric->result()));
    for (const bool is_reversed : {false, true}) {
      const auto merged = example.make_empty();
      for (int64_t i = 0; i < size; i += step) {
        const int64_t begin = is_reversed ? (size - 1 - i) / step * step : i;
        const auto part = example.make_empty();
        part->update_batch(slice(batch, begin, std::min(begin + step, size)));
        merged->merge(part->state());
      }
      merged->merge(example.make_empty()->state());
      if (!std::isnan(whole->result()) && !numbers_lists) {
        EXPECT_NEAR(merged->result(), whole->result(), 1e-12)
            << "merged batches of " << step;
      }
    }
  }
}

}  // namespace tessera::test
