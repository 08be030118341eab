// SPDX-License-Identifier: Apache-2.0
// A Dataset as the source of fit(), evaluate(), predict() and prefetch().
#include <tessera/data/dataset.h>
#include <tessera/data/negative_sampling.h>
#include <tessera/layers/prefetch.h>
#include <tessera/training/predict.h>

#include "packages/data/tests/column_builders.h"
#include "packages/training/tests/training_fixture.h"

namespace tessera::training::dataset_fit_test {

using data::Batches;
using data::Columns;
using data::Dataset;
constexpr int64_t kExamples = 100;
constexpr int64_t kBatch = 8;
constexpr int64_t kSteps = 13;  // in an epoch

const at::Tensor& values_of(const Columns& columns, const char* name) {
  return std::get<at::Tensor>(columns.at(name).values);
}

Dataset clicks() {
  std::vector<int64_t> ids;
  std::vector<int64_t> users;
  std::vector<int64_t> movies;
  std::vector<float> clicked;
  for (int64_t i = 0; i < kExamples; ++i) {
    ids.push_back(i);
    users.push_back(i * 7 % 20);
    movies.push_back(i * 3 % 10);
    clicked.push_back(i % 3 == 0 ? 1.0F : 0.0F);
  }
  return Dataset(columns_of(
      {{"id", integers(ids)},
       {"user", integers(users)},
       {"movie", integers(movies)},
       {"click", numbers(clicked)}}));
}

ClickBatch to_click_batch(const Columns& columns) {
  return {
      .user = values_of(columns, "user"),
      .movie = values_of(columns, "movie"),
      .click = values_of(columns, "click")};
}

// Each step trains on the batch, and on its negatives in place of the movies.
History train(
    ClickRun& run,
    const Batches& batches,
    const std::string& directory,
    int64_t stop_after,
    std::vector<std::vector<int64_t>>& ids) {
  const auto hooks = stopping_after(stop_after);
  const auto loss_of = run.loss_of();
  at::manual_seed(11);
  return fit(
      batches,
      make_train_step(
          run.optimizer,
          [&](const Columns& columns) {
            ids.push_back(to_vector(values_of(columns, "id")));
            ClickBatch batch = to_click_batch(columns);
            batch.movie =
                at::cat({batch.movie, values_of(columns, "negatives")});
            batch.user = at::cat({batch.user, batch.user});
            batch.click = at::cat({batch.click, batch.click});
            return loss_of(batch);
          }),
      {.epochs = 3,
       .model = run.model.ptr(),
       .callbacks = {hooks},
       .checkpoint = run.checkpoint(directory)});
}

void expect_resumes(const Batches& batches) {
  const TemporaryFolder folder;
  ClickRun uninterrupted;
  std::vector<std::vector<int64_t>> expected;
  train(uninterrupted, batches, folder / "whole", -1, expected);
  ASSERT_EQ(expected.size(), 3 * kSteps);
  EXPECT_NE(expected[0], expected[kSteps]);
  // In the middle of an epoch, at its end, and in the last one.
  for (const int64_t stop_after : {5, 13, 38}) {
    SCOPED_TRACE("stopped after step " + std::to_string(stop_after));
    const std::string directory = folder / std::to_string(stop_after);
    std::vector<std::vector<int64_t>> found;
    ClickRun first;
    EXPECT_EQ(
        train(first, batches, directory, stop_after, found).stop_reason,
        "interrupted");
    ASSERT_EQ(static_cast<int64_t>(found.size()), stop_after);
    ClickRun second;
    train(second, batches, directory, -1, found);
    EXPECT_EQ(found, expected);
    EXPECT_EQ(second.bytes(), uninterrupted.bytes());
  }
}

TEST(DatasetFitTest, ResumesInTheMiddleOfAnEpoch) {
  const Dataset dataset = clicks();
  const data::NegativeSampler negatives(dataset, {.item = "movie"});
  expect_resumes(dataset.shuffle({.buffer = 40, .seed = 1})
                     .batch({.size = kBatch})
                     .map(negatives)
                     .prefetch(3));
}

TEST(DatasetFitTest, ResumesWhenTheNumberOfBatchesIsUnknown) {
  const Dataset dataset = clicks();
  const data::NegativeSampler negatives(dataset, {.item = "movie"});
  const Batches batches = dataset
                              .filter([](const Columns& columns) {
                                return values_of(columns, "id").ge(0);
                              })
                              .shuffle({.buffer = 1000})
                              .map(negatives)
                              .batch({.size = kBatch});
  EXPECT_FALSE(batches.size().has_value());
  expect_resumes(batches);
}

TEST(DatasetFitTest, EvaluatesAndPredictsInOrder) {
  ClickRun run;
  run.model->eval();
  const auto loss_of = [&](const Columns& columns) {
    return run.loss_of()(to_click_batch(columns));
  };
  const Batches batches = clicks().batch({.size = 16}).prefetch(1);
  const Predictions found = predict(*make_pass(batches, loss_of));
  const Columns all = *clicks().batch({.size = kExamples})(0).next();
  EXPECT_TRUE(at::equal(found.labels, values_of(all, "click")));
  const StepResult expected = loss_of(all);
  test::expect_close(found.predictions, expected.predictions);
  const Logs logs = evaluate(*make_pass(batches, loss_of));
  EXPECT_NEAR(logs["loss"], expected.loss.item<double>(), 1e-6);
  EXPECT_VALUE_ERROR(
      evaluate(*make_pass(clicks().take(0).batch({.size = 1}), loss_of)),
      "batch");
}

TEST(DatasetFitTest, TensorsOfTheBackgroundThreadHaveTheModeOfTheCaller) {
  ClickRun run;
  std::vector<bool> modes;
  const Batches batches = clicks()
                              .batch({.size = kExamples})
                              .map([&](Columns columns) {
                                modes.push_back(c10::GradMode::is_enabled());
                                return columns;
                              })
                              .prefetch(1);
  evaluate(*make_pass(batches, [&](const Columns& columns) {
    return run.loss_of()(to_click_batch(columns));
  }));
  batches(0).next();
  EXPECT_EQ(modes, (std::vector<bool>{false, true}));
}

TEST(DatasetFitTest, PrefetchReadsAnEpoch) {
  ClickRun run;
  const c10::AutoGradMode mode(false);
  const auto features_of = [](const Columns& columns) {
    return Features{
        {"user", values_of(columns, "user")},
        {"movie", values_of(columns, "movie")}};
  };
  std::vector<int64_t> ids;
  for (auto& [batch, activations] : prefetch(
           clicks().batch({.size = kBatch})(0),
           run.model->embeddings[0],
           features_of)) {
    EXPECT_EQ(activations["user"].size(0), batch.batch_size());
    const auto some = to_vector(values_of(batch, "id"));
    ids.insert(ids.end(), some.begin(), some.end());
  }
  EXPECT_EQ(static_cast<int64_t>(ids.size()), kExamples);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
}

}  // namespace tessera::training::dataset_fit_test
