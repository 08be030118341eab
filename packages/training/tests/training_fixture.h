// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/features/feature_builders.h"
#include "tests/temporary_folder.h"

#include <tessera/layers/dense/concatenate.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adam.h>
#include <tessera/training/checkpoint.h>
#include <tessera/training/fit.h>
#include <torch/nn/modules/dropout.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>

namespace tessera::test {

struct ClickBatch {
  at::Tensor user;
  at::Tensor movie;
  at::Tensor click;
};

/// Returns `count` batches. They depend only on `seed`.
inline std::vector<ClickBatch> click_batches(int64_t count, uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<ClickBatch> batches;
  for (int64_t i = 0; i < count; ++i) {
    const auto user = at::randint(0, 20, {8}, generator, at::kLong);
    const auto movie = at::randint(0, 10, {8}, generator, at::kLong);
    batches.push_back({user, movie, ((user + movie) % 3 == 0).to(at::kFloat)});
  }
  return batches;
}

/// A model with tables, dense weights and dropout.
struct ClickModelImpl : torch::nn::Module {
  /// Makes `layers` embedding layers, or a dense one instead if it is 0.
  explicit ClickModelImpl(int64_t layers = 1) {
    at::manual_seed(3);
    for (int64_t i = 0; i < layers; ++i) {
      embeddings.push_back(register_module(
          "embedding_" + std::to_string(i),
          TPUEmbedding(TPUEmbeddingOptions{
              .features =
                  {{"user", feature_of("users", 20, 4)},
                   {"movie", feature_of("movies", 10, 4)}},
              .optimizer = optim::Adam{.learning_rate = 0.05},
              .seed = static_cast<uint64_t>(i)})));
    }
    if (layers == 0) {
      dense = register_module("dense", torch::nn::Linear(2, 8));
    }
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    tower = register_module("tower", torch::nn::Linear(8, 1));
  }

  at::Tensor forward(const ClickBatch& batch) {
    at::Tensor sum;
    for (auto& embedding : embeddings) {
      const at::Tensor part = join->forward(
          embedding->forward({{"user", batch.user}, {"movie", batch.movie}}));
      sum = sum.defined() ? sum + part : part;
    }
    if (!dense.is_empty()) {
      sum = dense->forward(
          at::stack({batch.user, batch.movie}, 1).to(at::kFloat) * 0.1);
    }
    return tower->forward(dropout->forward(sum)).squeeze(1);
  }

  std::vector<TPUEmbedding> embeddings;
  Concatenate join;
  torch::nn::Linear dense{nullptr};
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(ClickModel);

/// A model with its optimizer, loss and train step.
struct ClickRun {
  explicit ClickRun(int64_t layers = 1) : model(layers) {}

  auto loss_of() {
    return [this](const ClickBatch& batch) {
      const at::Tensor scores = model->forward(batch);
      return training::StepResult{
          .loss = at::binary_cross_entropy_with_logits(scores, batch.click),
          .predictions = scores,
          .labels = batch.click};
    };
  }
  auto train_step() {
    return training::make_train_step(optimizer, loss_of());
  }
  template <class Source>
  training::History train(Source&& source, training::FitOptions options = {}) {
    return training::fit(
        std::forward<Source>(source), train_step(), std::move(options));
  }
  /// A validation of these batches.
  std::shared_ptr<training::Pass> validation(std::vector<ClickBatch> batches) {
    return training::make_pass(std::move(batches), loss_of());
  }
  std::shared_ptr<training::Checkpoint> checkpoint(
      const std::string& directory,
      training::TrainingCheckpointOptions options = {}) {
    return std::make_shared<training::Checkpoint>(
        directory, model.ptr(), optimizer, options);
  }
  /// Returns all tables, slots, dense weights and the optimizer's state.
  std::string bytes() {
    std::ostringstream stream;
    torch::save(model, stream);
    // An optimizer's archive names its parameters by their addresses.
    std::vector<at::Tensor> adam_state;
    for (const at::Tensor& parameter : model->parameters()) {
      const auto found =
          optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found != optimizer.state().end()) {
        const auto& state =
            static_cast<const torch::optim::AdamParamState&>(*found->second);
        adam_state.push_back(at::full({1}, state.step(), at::kLong));
        adam_state.push_back(state.exp_avg());
        adam_state.push_back(state.exp_avg_sq());
      }
    }
    std::ostringstream state;
    torch::save(adam_state, state);
    return stream.str() + state.str();
  }

  ClickModel model;
  torch::optim::Adam optimizer{model->parameters(), 0.01};
};

/// A callback that calls the functions that are set.
class Hooks : public training::Callback {
 public:
  using Hook = std::function<void(training::Training&)>;

  Hook train_begin, epoch_begin, step_end, epoch_end, train_end;

  void on_train_begin(training::Training& training) override {
    call(train_begin, training);
  }
  void on_epoch_begin(training::Training& training) override {
    call(epoch_begin, training);
  }
  void on_step_end(training::Training& training) override {
    call(step_end, training);
  }
  void on_epoch_end(training::Training& training) override {
    call(epoch_end, training);
  }
  void on_train_end(training::Training& training) override {
    call(train_end, training);
  }

 private:
  static void call(const Hook& hook, training::Training& training) {
    if (hook != nullptr) {
      hook(training);
    }
  }
};

/// Calls `act` after the step with this number.
template <class Act>
std::shared_ptr<Hooks> hook_after(int64_t step, Act act) {
  auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [=](training::Training& training) {
    if (training.progress().step == step) {
      act(training);
    }
  };
  return hooks;
}

/// Stops the training after the step with this number.
inline std::shared_ptr<Hooks> stopping_after(
    int64_t step,
    const std::string& reason = "interrupted") {
  return hook_after(step, [=](auto& training) { training.stop(reason); });
}

/// Throws after the step with this number, as a process dies.
inline std::shared_ptr<Hooks> dying_after(int64_t step) {
  return hook_after(step, [](auto&) { throw std::runtime_error("killed"); });
}

/// A step whose loss is the batch itself.
inline at::Tensor own_loss(double batch) {
  return at::full({}, batch, at::kDouble);
}

/// Trains with own_loss(), in batches of some examples.
inline training::History fit_losses(
    const std::vector<double>& losses,
    training::FitOptions options,
    int64_t examples = 4) {
  return training::fit(
      losses,
      [=](double loss) {
        return training::StepResult{
            .loss = own_loss(loss), .examples = examples};
      },
      std::move(options));
}

}  // namespace tessera::test
