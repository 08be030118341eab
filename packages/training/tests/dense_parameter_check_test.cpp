// SPDX-License-Identifier: Apache-2.0
// Gradients of dense parameters that are not finite, in fit().
#include <tessera/layers/combined.h>

#include "packages/training/tests/training_fixture.h"

namespace tessera::training::dense_parameter_check_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// Adds 0 to the loss, with a gradient of NaN for the parameter.
at::Tensor with_nan(const at::Tensor& loss, const at::Tensor& parameter) {
  return loss + 0.0 * at::sqrt(parameter - parameter.detach()).sum();
}

bool is_finite(const ClickRun& run) {
  for (const at::Tensor& parameter : run.model->parameters()) {
    if (!at::isfinite(parameter).all().item<bool>()) {
      return false;
    }
  }
  return true;
}

constexpr const char* kRefused =
    "[fit] the gradients of parameters must be finite, but NaN or infinity is "
    "in that of 'tower.bias' (Float of shape [1]). Nothing was changed. Check "
    "the loss and the data, lower the learning rate, or set "
    "FitOptions::non_finite_gradients to NonFiniteGradients::kApply.";

// A loss whose second call gives the gradient.
auto loss_of(ClickRun& run, std::string& before) {
  return [&, steps = 0](const ClickBatch& batch) mutable {
    StepResult result = run.loss_of()(batch);
    if (++steps == 2) {
      before = run.bytes();
      result.loss = with_nan(result.loss, run.model->tower->bias);
    }
    return result;
  };
}

TEST(DenseParameterCheckTest, AStepIsRefusedBeforeItChangesAnything) {
  for (const int64_t layers : {1, 2, 0}) {
    for (const std::optional<double> max_norm :
         {std::optional<double>(), std::optional<double>(1.0)}) {
      ClickRun run(layers);
      std::string before;
      EXPECT_VALUE_ERROR(
          fit(click_batches(3, 1),
              make_train_step(
                  run.optimizer,
                  loss_of(run, before),
                  {.max_gradient_norm = max_norm}),
              {.model = run.model}),
          kRefused);
      EXPECT_FALSE(before.empty());
      EXPECT_TRUE(run.bytes() == before);
      // The next training is not disturbed.
      run.train(click_batches(3, 1), {.model = run.model});
      EXPECT_TRUE(is_finite(run));
    }
  }
}

TEST(DenseParameterCheckTest, ParametersWithoutANameAreDescribed) {
  ClickRun run;
  std::string before;
  EXPECT_VALUE_ERROR(
      fit(click_batches(2, 1),
          make_train_step(run.optimizer, loss_of(run, before)),
          {}),
      "in that of a parameter (Float of shape [1])");
  EXPECT_TRUE(run.bytes() == before);
}

TEST(DenseParameterCheckTest, TheOptionOfRowsGovernsItToo) {
  ClickRun run;
  std::string before;
  fit(click_batches(2, 1),
      make_train_step(run.optimizer, loss_of(run, before)),
      {.model = run.model, .non_finite_gradients = NonFiniteGradients::kApply});
  EXPECT_FALSE(is_finite(run));
  // Outside of fit(), layers apply such gradients by default.
  ClickRun plain;
  auto step = make_train_step(plain.optimizer, loss_of(plain, before));
  for (const ClickBatch& batch : click_batches(2, 1)) {
    step(batch);
  }
  EXPECT_FALSE(is_finite(plain));
}

TEST(DenseParameterCheckTest, AStepOfYourOwnIsRefusedInBackward) {
  ClickRun run;
  std::string before;
  auto loss = loss_of(run, before);
  EXPECT_VALUE_ERROR(
      fit(click_batches(3, 1),
          [&](const ClickBatch& batch) {
            run.optimizer.zero_grad();
            StepResult result = loss(batch);
            result.loss.backward();
            run.optimizer.step();
            return result;
          },
          {.model = run.model}),
      kRefused);
  EXPECT_TRUE(run.bytes() == before);
}

// The message about rows tells more: it names the feature and the place in the batch.
TEST(DenseParameterCheckTest, RowsAreNamedFirst) {
  ClickRun run;
  EXPECT_VALUE_ERROR(
      fit(click_batches(2, 1),
          make_train_step(
              run.optimizer,
              [&](const ClickBatch& batch) {
                StepResult result = run.loss_of()(batch);
                result.predictions.register_hook(
                    [](const at::Tensor& gradient) { return gradient * kNan; });
                return result;
              }),
          {.model = run.model}),
      "[table 'users', feature 'user'] the gradients of rows must be finite");
}

struct SteppedModelImpl : torch::nn::Module {
  SteppedModelImpl() {
    register_module("embedding", embedding);
    tower = register_module("tower", torch::nn::Linear(1, 1));
  }

  TPUEmbedding embedding = TPUEmbedding(TPUEmbeddingOptions{
      .features = {{"user", feature_of("users", 4, 1)}},
      .optimizer = optim::Adam{},
      .apply = Apply::kOnStep});
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(SteppedModel);

TEST(DenseParameterCheckTest, ACombinedRefusesOrSkips) {
  const auto train = [](SteppedModel& model, NonFinite non_finite) {
    Combined optimizer(
        torch::optim::SGD(model->parameters(), 0.1),
        {model->embedding},
        {.non_finite = non_finite});
    fit(std::vector<at::Tensor>{int64s({1, 2})},
        make_train_step(
            optimizer,
            [&](const at::Tensor& ids) {
              const at::Tensor rows =
                  model->embedding->forward({{"user", ids}})["user"];
              return with_nan(
                  model->tower->forward(rows).sum(), model->tower->bias);
            }),
        {.model = model});
    return optimizer.skipped_steps();
  };
  SteppedModel model;
  const auto bytes = [&] { return bytes_of(model); };
  const std::string before = bytes();
  EXPECT_VALUE_ERROR(train(model, NonFinite::kPass), kRefused);
  EXPECT_VALUE_ERROR(
      train(model, NonFinite::kError),
      "[Combined::step] gradients must be finite");
  EXPECT_EQ(train(model, NonFinite::kSkip), 1);
  EXPECT_TRUE(bytes() == before);
}

}  // namespace tessera::training::dense_parameter_check_test
