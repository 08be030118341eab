// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/predict.h>

#include "packages/training/tests/training_fixture.h"

namespace tessera::training::predict_test {

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
  const auto predicted = [](auto tensor_of) {
    return [=](int64_t n) { return StepResult{.predictions = tensor_of(n)}; };
  };
  expect_refusals<std::function<StepResult(int64_t)>>(
      {{predicted([](int64_t) { return at::ones({}); }),
        "the predictions of batch 0 must have the shape [batch, ...]"},
       {predicted([](int64_t n) {
          return at::ones({2, n});
        }),
        "the predictions of all batches must have the same device, dtype and "
        "shape, except for the number of rows, but batch 1 has"},
       {predicted([](int64_t n) { return at::ones({n}).to_sparse(); }),
        "the predictions of batch 0 must be a dense tensor, but got Float of "
        "shape [2] in Sparse layout. Return a dense tensor from the step."},
       {[](int64_t n) {
          return StepResult{
              .predictions = at::ones({n}), .labels = at::ones({5 - n})};
        },
        "batch 0 has 2 predictions but 3 labels"},
       {[](int64_t n) {
          return StepResult{
              .predictions = at::ones({n}),
              .labels = n == 2 ? at::ones({n}) : at::ones({n, 1})};
        },
        "the labels of all batches must have the same device, dtype and "
        "shape"}},
      [](const auto& step) {
        predict(*make_pass(std::vector<int64_t>{2, 3}, step));
      });
}

}  // namespace tessera::training::predict_test
