// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/training.h"

#include "examples/common/batches.h"
#include "examples/common/learning_rates.h"
#include "examples/movielens/resume_check.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace training = tessera::training;
using torch::Tensor;

namespace {

// The sum of the log probabilities of the ratings. `at_most` has the probabilities of 1 to
// 4 stars or less, [batch, 4].
Tensor log_likelihood(const Tensor& at_most, const Tensor& stars) {
  constexpr double kSmallest = 1e-6;
  const Tensor none = torch::zeros({stars.size(0), 1});
  const Tensor index = stars.to(torch::kLong).unsqueeze(1);
  const Tensor upper = torch::cat({at_most, none + 1.0}, 1);
  const Tensor lower = torch::cat({none, at_most}, 1);
  return (upper - lower).gather(1, index - 1).clamp_min(kSmallest).log().sum();
}

// The examples of a batch that this rank trains on.
Ratings share_of(const Ratings& batch, const Process& process) {
  Ratings share;
  for (size_t i = process.rank; i < batch.size(); i += process.ranks) {
    share.push_back(batch[i]);
  }
  return share;
}

double rmse(const Tensor& predicted, const Tensor& stars) {
  training::RMSE metric;
  metric.update(predicted.clamp(1.0, 5.0), stars);
  return metric.result();
}

}  // namespace

training::History train(
    Rater& model,
    const RatingData& data,
    const Options& options,
    const Process& process,
    Report& report) {
  process.broadcast(*model);
  torch::optim::AdamW optimizer(
      model->parameters(), torch::optim::AdamWOptions().weight_decay(0.1));

  const auto batches_of = [&](int64_t epoch) {
    // The seed is set for each epoch, so that a resumed run has the same batches.
    const int64_t seed = options.seed * 1'000'000 + epoch;
    torch::manual_seed(static_cast<uint64_t>(seed));
    auto batches = in_batches(shuffled(data.train()), options.batch);
    torch::manual_seed(  // of dropout, which differs between ranks
        static_cast<uint64_t>(seed * process.ranks + process.rank));
    return batches;
  };
  const auto loss_of = [&](const Ratings& whole) {
    const RatingBatch batch = data.batch(share_of(whole, process));
    const auto [stars, at_most, penalty] =
        model->rate(batch.features, batch.weights);
    // Half of the squared error, and half of the log loss of the number of stars.
    const Tensor error = 0.5 * (stars - batch.stars).square().sum() -
        0.5 * log_likelihood(at_most, batch.stars);
    const auto size = static_cast<int64_t>(whole.size());
    return training::StepResult{
        // The sum over all ranks is the mean over the whole batch.
        .loss = (error + 0.03 * penalty) / static_cast<double>(size),
        .predictions = stars,
        .labels = batch.stars};
  };

  const auto progress = std::make_shared<training::ProgressBar>();
  training::Callbacks callbacks{
      std::make_shared<training::LearningRateScheduler>(
          optimizer,
          linear_decay_to_zero(3e-4, number_of_steps(data, options))),
      std::make_shared<ResumeCheck>(options)};
  if (process.rank == 0) {
    callbacks.push_back(progress);
  }
  std::shared_ptr<training::Checkpoint> checkpoint;
  if (!options.checkpoint.empty()) {
    checkpoint = std::make_shared<training::Checkpoint>(
        options.checkpoint, model.ptr(), optimizer);
  }
  training::History history = training::fit(
      batches_of,
      training::make_train_step(optimizer, loss_of),
      {.epochs = options.epochs,
       .model = model,
       .metrics = {std::make_shared<training::RMSE>()},
       .callbacks = std::move(callbacks),
       .checkpoint = checkpoint,
       .strategy = process.strategy});
  report.seconds = progress->seconds();
  report.examples = progress->examples();
  return history;
}

Tensor predict(Rater& model, const RatingData& data, const Ratings& ratings) {
  model->eval();
  const auto pass =
      training::make_pass(in_batches(ratings, 1000), [&](const Ratings& part) {
        const RatingBatch batch = data.batch(part);
        return training::StepResult{
            .predictions = model->forward(batch.features, batch.weights)};
      });
  return training::predict(*pass).predictions;
}

void evaluate(const Tensor& predicted, const RatingData& data, Report& report) {
  const Tensor stars = data.batch(data.test()).stars;
  report.test_ratings = data.test().size();
  report.is_u1 = data.is_u1();
  report.rmse_mean = rmse(torch::full_like(stars, data.mean()), stars);
  std::vector<double> by_biases;
  for (const MovieLens::Rating& rating : data.test()) {
    by_biases.push_back(data.by_biases(rating));
  }
  report.rmse_biases = rmse(torch::tensor(by_biases, torch::kFloat), stars);
  report.rmse = rmse(predicted, stars);
}
