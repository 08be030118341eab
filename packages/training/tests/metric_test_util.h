// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/golden_util.h"
#include "tests/test_util.h"

#include <tessera/training/metrics.h>

namespace tessera::test {

inline constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

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
inline training::StepResult slice(
    const training::StepResult& batch,
    int64_t begin,
    int64_t end) {
  const auto rows = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.slice(0, begin, end) : tensor;
  };
  training::StepResult part{
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
    const training::StepResult& batch,
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

/// What each metric of one score per example refuses. Refused batches do not count.
inline void expect_refuses_bad_batches(training::Metric& metric) {
  SCOPED_TRACE(metric.name());
  struct Row {
    at::Tensor predictions, labels, weights;
    const char* text;
  };
  const at::Tensor one = floats({1});
  const at::Tensor state = metric.state();
  for (const Row& row : std::vector<Row>{
           {{}, one, {}, "predictions, but got an undefined"},
           {one, {}, {}, "labels, but got an undefined"},
           {floats({kNan}), one, {}, "some are NaN"},
           {one, floats({kNan}), {}, "some are NaN"},
           {one, floats({2}), {}, "classes 0 to 1, but got 2"},
           {one, floats({1, 1}), {}, "1 predictions and 2"},
           {at::full({1, 3}, 0.5), one, {}, "shape [n"},
           {one, one, floats({-1}), ">= 0, but got -1"},
           {one, one, floats({1, 1}), "but got 2"}}) {
    EXPECT_VALUE_ERROR(
        metric.update_batch(
            {.predictions = row.predictions,
             .labels = row.labels,
             .weights = row.weights,
             .groups = int64s({1})}),
        row.text);
  }
  EXPECT_TRUE(at::equal(metric.state(), state));
  EXPECT_VALUE_ERROR(metric.load_state(floats({1})), "a float64 tensor [n]");
  EXPECT_VALUE_ERROR(
      metric.load_state(at::full({7}, 9.0, at::kDouble)),
      "Resume with the same metrics");
}

}  // namespace tessera::test
