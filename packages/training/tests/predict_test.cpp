// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/predict.h>

#include "packages/training/tests/training_fixture.h"
#include "tests/test_util.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <vector>

namespace tessera::training {
namespace predict_test {

using test::click_batches;
using test::ClickBatch;
using test::ClickRun;
using test::floats;

TEST(PredictTest, GivesAllExamplesInOrderWithoutGradient) {
  const auto batches = click_batches(3, 1);
  ClickRun run;
  run.model->eval();
  std::vector<at::Tensor> scores, clicks;
  for (const ClickBatch& batch : batches) {
    scores.push_back(run.model->forward(batch));
    clicks.push_back(batch.click);
  }
  const Predictions found = predict(*make_pass(batches, run.loss_of()));
  EXPECT_TRUE(found.predictions.equal(at::cat(scores)));
  EXPECT_TRUE(found.labels.equal(at::cat(clicks)));
  EXPECT_FALSE(found.predictions.requires_grad());
}

TEST(PredictTest, NeedsNeitherLossNorLabels) {
  const std::vector<float> batches{1.0F, 2.0F};
  const Predictions found = predict(*make_pass(batches, [](float number) {
    return StepResult{.predictions = floats({number, -number})};
  }));
  EXPECT_TRUE(found.predictions.equal(floats({1, -1, 2, -2})));
  EXPECT_FALSE(found.labels.defined());
}

TEST(PredictTest, RefusesMissingBatchesPredictionsAndLabels) {
  const std::vector<float> none;
  const std::vector<float> batches{1.0F, 2.0F};
  EXPECT_VALUE_ERROR(
      predict(*make_pass(none, [](float) { return StepResult{}; })),
      "[predict] expected batches, but the source gave none. Pass a source");
  EXPECT_VALUE_ERROR(
      predict(*make_pass(batches, [](float) { return floats({1}); })),
      "batch 0 has no predictions");
  EXPECT_VALUE_ERROR(
      predict(*make_pass(
          batches,
          [](float number) {
            return StepResult{
                .predictions = floats({number}),
                .labels = number > 1.0F ? floats({0}) : at::Tensor()};
          })),
      "labels for all 2 batches or for none, but got them for 1");
}

TEST(PredictTest, RefusesTensorsThatDoNotFitTogether) {
  const std::vector<int64_t> batches{2, 3};
  const auto error_of = [&](const auto& step) {
    return [&batches, step] { predict(*make_pass(batches, step)); };
  };
  EXPECT_VALUE_ERROR(
      error_of(
          [](int64_t) { return StepResult{.predictions = at::ones({})}; })(),
      "the predictions of batch 0 must have the shape [batch, ...]");
  EXPECT_VALUE_ERROR(
      error_of([](int64_t n) {
        return StepResult{.predictions = at::ones({2, n})};
      })(),
      "the predictions of all batches must have the same device, dtype and "
      "shape, except for the number of rows, but batch 1 has");
  EXPECT_VALUE_ERROR(
      error_of([](int64_t n) {
        return StepResult{.predictions = at::ones({n}).to_sparse()};
      })(),
      "the predictions of batch 0 must be a dense tensor, but got Float of "
      "shape [2] in Sparse layout. Return a dense tensor from the step.");
  EXPECT_VALUE_ERROR(
      error_of([](int64_t n) {
        return StepResult{
            .predictions = at::ones({n}), .labels = at::ones({5 - n})};
      })(),
      "batch 0 has 2 predictions but 3 labels");
  EXPECT_VALUE_ERROR(
      error_of([](int64_t n) {
        return StepResult{
            .predictions = at::ones({n}),
            .labels = n == 2 ? at::ones({n}) : at::ones({n, 1})};
      })(),
      "the labels of all batches must have the same device, dtype and shape");
}

}  // namespace predict_test
}  // namespace tessera::training
