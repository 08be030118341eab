// SPDX-License-Identifier: Apache-2.0
// The warning of fit() about an apply_gradients() that a step forgets.
#include <tessera/layers/embedding_engine_module.h>
#include <tessera/optim/optimizers/sgd.h>

#include "packages/training/tests/training_fixture.h"

namespace tessera::training::update_check_test {

struct ModelOptions {
  Pipelining pipelining = Pipelining::kOff;
  int64_t replicas = 1;
  bool trainable = true;
  int64_t accumulation = 1;
};

struct Model : torch::nn::Module {
  explicit Model(ModelOptions options = {})
      : engine(register_module(
            "engine",
            EmbeddingEngineModule(EmbeddingEngineOptions{
                .features =
                    {{"user",
                      feature_of(
                          {.name = "users",
                           .vocabulary_size = 4,
                           .dim = 2,
                           .trainable = options.trainable})}},
                .optimizer =
                    optim::SGD{
                        .learning_rate = 0.1,
                        .gradient_accumulation_steps = options.accumulation},
                .pipelining = options.pipelining,
                .replicas = options.replicas}))) {}

  void enqueue(const EnqueueOptions& options = {}) {
    engine->enqueue({{"user", int64s({1, 2})}}, {}, options);
  }
  at::Tensor backward(const std::string& name = {}, int64_t replica = 0) {
    const at::Tensor loss = engine->dequeue(name, replica)["user"].sum();
    if (loss.requires_grad()) {
      loss.backward();
    }
    return loss.detach();
  }

  EmbeddingEngineModule engine;
};

// Runs the step several times, and returns the warnings.
Texts warnings_of(
    const std::shared_ptr<Model>& model,
    const std::function<at::Tensor()>& step,
    int64_t steps = 3,
    bool warning = true) {
  Warnings warnings;
  fit(std::vector<int>(steps, 0),
      [&](int) { return StepResult{.loss = step(), .examples = 2}; },
      {.model = model, .movement_warning = warning});
  return warnings.texts;
}

void expect_none(const auto&... of) {
  EXPECT_EQ(warnings_of(of...), Texts{});
}

TEST(UpdateCheckTest, AForgottenApplyGradientsIsNoticedAfterTwoSteps) {
  for (const int64_t steps : {2, 3}) {
    const auto model = std::make_shared<Model>();
    const auto step = [&] {
      model->enqueue();
      return model->backward();
    };
    const auto texts = warnings_of(model, step, steps);
    ASSERT_EQ(texts.size(), 1);
    for (const char* part :
         {"[fit] the step has dequeued a training batch of 'engine', but did "
          "not pass its gradients on, so the tables do not learn.",
          "Call apply_gradients() after backward()",
          "training = false",
          "FitOptions::movement_warning"}) {
      EXPECT_CONTAINS(texts[0], part);
    }
  }
}

TEST(UpdateCheckTest, StepsThatPassTheirGradientsOnGiveNoWarning) {
  const auto model = std::make_shared<Model>();
  expect_none(model, [&] {
    model->enqueue();
    const at::Tensor loss = model->backward();
    model->engine->apply_gradients();
    return loss;
  });
  // Each step passes the gradients of the step before on.
  const auto late = std::make_shared<Model>();
  bool is_first = true;
  expect_none(late, [&] {
    if (!std::exchange(is_first, false)) {
      late->engine->apply_gradients();
    }
    late->enqueue();
    return late->backward();
  });
  // The first pass of two makes no update yet.
  const auto slow = std::make_shared<Model>(ModelOptions{.accumulation = 2});
  expect_none(slow, [&] {
    slow->enqueue();
    const at::Tensor loss = slow->backward();
    slow->engine->apply_gradients();
    return loss;
  });
  // The next batch is enqueued, and even dequeued, before the gradients of this one.
  const auto ahead =
      std::make_shared<Model>(ModelOptions{.pipelining = Pipelining::kOn});
  std::string name = "0";
  ahead->enqueue({.name = name});
  at::Tensor loss = ahead->backward(name);
  expect_none(ahead, [&] {
    const std::string next_name = name == "0" ? "1" : "0";
    ahead->enqueue({.name = next_name});
    const at::Tensor next = ahead->backward(next_name);
    ahead->engine->apply_gradients({}, std::exchange(name, next_name));
    return std::exchange(loss, next);
  });
}

TEST(UpdateCheckTest, BatchesThatTrainNothingGiveNoWarning) {
  const auto model = std::make_shared<Model>();
  expect_none(model, [&] {
    model->enqueue({.training = false});
    return model->backward();
  });
  expect_none(model, [&] {
    model->enqueue({.name = "dropped"});
    const at::Tensor loss = model->backward("dropped");
    model->engine->drop("dropped");
    return loss;
  });
  const auto frozen = std::make_shared<Model>(ModelOptions{.trainable = false});
  const auto forgotten = [](const std::shared_ptr<Model>& of) {
    return [of] {
      of->enqueue();
      return of->backward();
    };
  };
  expect_none(frozen, forgotten(frozen));
  expect_none(model, forgotten(model), 1, /*warning=*/false);
}

TEST(UpdateCheckTest, OtherThreadsMayStillComputeTheirGradients) {
  const auto model = std::make_shared<Model>(ModelOptions{.replicas = 2});
  expect_none(
      model,
      [&] {
        std::thread other([&] {
          model->enqueue({.replica = 1});
          model->backward({}, 1);
        });
        model->enqueue();
        other.join();
        const at::Tensor loss = model->backward();
        model->engine->apply_gradients();
        return loss;
      },
      1);
}

}  // namespace tessera::training::update_check_test
