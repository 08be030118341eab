// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/training.h"

#include "examples/common/batches.h"
#include "examples/common/stopwatch.h"

#include <tessera/tessera.h>

#include <memory>
#include <random>
#include <utility>

namespace optim = tessera::optim;
namespace training = tessera::training;

namespace {

tessera::TransformerBlockOptions block_options(const SequenceOptions& options) {
  tessera::TransformerBlockOptions block{
      .num_heads = options.heads,
      .feed_forward_dim = options.feed_forward,
      .activation = tessera::activation_from_string(
          options.activation.value_or(options.gated ? "silu" : "relu")),
      .dropout = options.dropout,
      .norm = tessera::norm_order_from_string(options.norm.value_or("pre")),
      .gated = options.gated,
      .attention_dropout = options.attention_dropout.value_or(0.0)};
  if (options.filter_share) {
    block.filter = {
        .share = *options.filter_share,
        .num_frequencies = options.filter_frequencies,
        .length = options.max_length};
  }
  return block;
}

tessera::SASRecOptions model_options(
    int64_t num_items,
    const SequenceOptions& options,
    int64_t seed) {
  return {
      .num_items = num_items,
      .dim = options.dim,
      .max_length = options.max_length,
      .num_blocks = options.blocks,
      .block = block_options(options),
      .temperature = options.temperature,
      .positions = tessera::sequence_positions_from_string(
          options.positions.value_or("first")),
      .one_target = options.prefixes.value_or(false),
      .embedding_norm = options.embedding_norm.value_or(false),
      .initial_stddev = options.initial_stddev,
      // The Adam of torch::optim, which trains the other weights.
      .optimizer =
          optim::Adam{
              .learning_rate = options.learning_rate,
              .epsilon = 1e-8,
              .lazy_adam = false,
              .sum_inside_sqrt = false,
              .bias_correction = true},
      .seed = static_cast<uint64_t>(seed)};
}

// Ranks the validation items after each epoch, and measures the time of the steps before
// that.
class Validator : public training::Callback {
 public:
  Validator(tessera::SASRec model, const Histories& histories)
      : model_(std::move(model)), histories_(histories) {}

  double seconds() const {
    return seconds_;
  }
  const std::vector<CurvePoint>& curve() const {
    return curve_;
  }

  std::vector<std::string> log_names() const override {
    return {"val_hit_rate", "val_ndcg"};
  }
  void on_epoch_begin(training::Training& /*training*/) override {
    watch_ = {};
  }
  void on_epoch_end(training::Training& training) override {
    seconds_ += watch_.seconds();
    const Ranking ranking =
        ranking_of(model_, histories_, HeldOut::kValidation);
    training.log("val_hit_rate", ranking.hit_rate);
    training.log("val_ndcg", ranking.ndcg);
    curve_.push_back({.seconds = seconds_, .value = ranking.ndcg});
  }

 private:
  tessera::SASRec model_;
  const Histories& histories_;
  Stopwatch watch_;
  double seconds_ = 0.0;
  std::vector<CurvePoint> curve_;
};

}  // namespace

void check_model_options(const SequenceOptions& options) {
  tessera::SASRec(model_options(1, options, 0));
}

training::History train_sasrec(
    const Histories& histories,
    const SequenceOptions& options,
    int64_t seed,
    SequenceRun& run) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  tessera::SASRec model(model_options(histories.num_items(), options, seed));
  torch::optim::Adam optimizer(model->parameters(), options.learning_rate);
  const auto validator = std::make_shared<Validator>(model, histories);
  const auto progress = std::make_shared<training::ProgressBar>();
  const auto stopping =
      std::make_shared<training::EarlyStopping>(training::EarlyStoppingOptions{
          .monitor = "val_ndcg",
          .patience = options.patience,
          .better = training::Better::kHigher,
          .restore_best = model});
  const auto loss_of = [&](const std::vector<Histories::Window>& windows) {
    const auto [sequences, targets] = histories.batch(windows);
    training::StepResult result{.examples = targets.size(0)};
    if (options.loss == "binary") {
      result.loss = model->binary_loss(
          sequences, targets, histories.negatives(windows, random));
    } else if (options.loss == "sampled") {
      result.loss = model->sampled_softmax_loss(
          sequences,
          targets,
          torch::randint(
              histories.num_items(), {options.negatives}, torch::kLong));
    } else {
      result.loss = model->softmax_loss(sequences, targets);
    }
    return result;
  };
  const training::History history = training::fit(
      [&] {
        return in_batches(shuffled(histories.train_windows()), options.batch);
      },
      training::make_train_step(optimizer, loss_of),
      {.epochs = options.epochs,
       .model = model,
       .callbacks = {validator, progress, stopping}});
  if (history.stop_signal() != 0) {
    return history;
  }
  const Stopwatch watch;
  const Ranking test = ranking_of(model, histories, HeldOut::kTest);
  run = {
      .seed = seed,
      .epochs = std::ssize(history.epochs),
      .best_epoch = stopping->best_epoch() + 1,
      .validation_ndcg = stopping->best(),
      .test = test,
      .seconds = validator->seconds(),
      .examples_per_second =
          static_cast<double>(progress->examples()) / validator->seconds(),
      .evaluation_seconds = watch.seconds(),
      .curve = validator->curve()};
  return history;
}
