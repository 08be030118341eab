// SPDX-License-Identifier: Apache-2.0
// The example in the docstring of packages/training/include/tessera/training/tensorboard.h, which
// check_docs.cmake compares with it.
#include <tessera/tessera.h>

#include "tests/docs/pages_fixture.h"
#include "tests/test_util.h"

namespace tessera::training::reference_tensorboard_test {

class TensorBoardReferenceTest : public test::PagesTest {};

TEST_F(TensorBoardReferenceTest, TensorBoard) {
  TPUEmbedding embedding(
      {{"user",
        FeatureConfig{
            .table = make_table(
                {.name = "users", .vocabulary_size = 20, .dim = 4})}}},
      optim::Adagrad{.learning_rate = 0.5});
  torch::nn::Sequential model(
      embedding, Concatenate(), torch::nn::Linear(4, 1));
  torch::optim::Adam optimizer(model->parameters(), 0.05);
  const std::vector<Features> batches(4, Features{{"user", torch::arange(8)}});
  const auto step = make_train_step(optimizer, [&](const Features& features) {
    return StepResult{
        .loss = model->forward(features).square().mean(), .examples = 8};
  });
  // snippet: TensorBoard
  const auto board = std::make_shared<TensorBoard>(TensorBoardOptions{
      .directory = "run/logs",
      .every_steps = 2,
      .step_values = [&] { return learning_rates(optimizer, {embedding}); },
      .histograms_of = model});
  fit(batches, step, {.epochs = 3, .callbacks = {board}});
  // end snippet
  EXPECT_FALSE(std::filesystem::is_empty("run/logs/train"));
}

}  // namespace tessera::training::reference_tensorboard_test
