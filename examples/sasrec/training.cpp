// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/training.h"

#include "examples/common/batches.h"
#include "examples/common/stopwatch.h"

#include <tessera/tessera.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

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
      .dtype = tessera::dtype_from_string(options.dtype.value_or("float32")),
      .slot_dtype =
          tessera::dtype_from_string(options.slot_dtype.value_or("float32")),
      .seed = static_cast<uint64_t>(seed)};
}

// A moving average of all weights of a model, in float32.
class WeightAverage {
 public:
  WeightAverage(const tessera::SASRec& model, double momentum)
      : items_(model->items),
        weights_(model->parameters()),
        row_average_(rows().clone()),
        momentum_(momentum) {
    for (const at::Tensor& weight : weights_) {
      averages_.push_back(weight.detach().clone());
    }
  }

  void update() {
    const torch::NoGradGuard no_grad;
    ++updates_;
    // A smaller momentum at first forgets the initial weights.
    const double momentum = std::min(momentum_, updates_ / (updates_ + 10.0));
    for (size_t i = 0; i < weights_.size(); ++i) {
      averages_[i].lerp_(weights_[i], 1.0 - momentum);
    }
    row_average_.lerp_(rows(), 1.0 - momentum);
  }

  // The model gets the averages, and a second call gives it its own weights again. Rows of 8
  // bits are rounded by each call.
  void swap() {
    const torch::NoGradGuard no_grad;
    for (size_t i = 0; i < weights_.size(); ++i) {
      const at::Tensor kept = weights_[i].clone();
      weights_[i].copy_(averages_[i]);
      averages_[i].copy_(kept);
    }
    const at::Tensor kept = rows().clone();
    items_->update_embedding_table("items", row_average_);
    row_average_ = kept;
  }

 private:
  // The rows of the items. Those of float32 share the memory of the model.
  at::Tensor rows() const {
    return items_->embedding_tables()["items"].to(at::kFloat);
  }

  tessera::TPUEmbedding items_;
  std::vector<at::Tensor> weights_;  // share the memory of the model
  at::Tensor row_average_;
  std::vector<at::Tensor> averages_;
  double momentum_;
  double updates_ = 0.0;
};

// Ranks the validation items after each epoch, and measures the time of the steps before
// that. With an average, the model has the averages when an epoch ends, so that the callbacks
// after this one keep them, and its own weights again when the next epoch begins.
class Validator : public training::Callback {
 public:
  Validator(
      tessera::SASRec model,
      const Histories& histories,
      std::optional<double> momentum)
      : model_(std::move(model)), histories_(histories) {
    if (momentum) {
      average_.emplace(model_, *momentum);
    }
  }

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
    if (average_ && !curve_.empty()) {
      average_->swap();
    }
    watch_ = {};
  }
  void on_step_end(training::Training& /*training*/) override {
    if (average_) {
      average_->update();
    }
  }
  void on_epoch_end(training::Training& training) override {
    seconds_ += watch_.seconds();
    if (average_) {
      average_->swap();
    }
    const Ranking ranking =
        ranking_of(model_, histories_, HeldOut::kValidation);
    training.log("val_hit_rate", ranking.hit_rate);
    training.log("val_ndcg", ranking.ndcg);
    curve_.push_back({.seconds = seconds_, .value = ranking.ndcg});
  }

 private:
  tessera::SASRec model_;
  const Histories& histories_;
  std::optional<WeightAverage> average_;
  Stopwatch watch_;
  double seconds_ = 0.0;
  std::vector<CurvePoint> curve_;
};

// The scores of all items by a trained model, for histories of any length.
ItemScores scores_of(tessera::SASRec model, int64_t max_length) {
  return [model = std::move(model),
          max_length](const tessera::RaggedFeature& histories) mutable {
    const at::Tensor ends = histories.row_splits.slice(0, 1);
    const at::Tensor lengths =
        histories.row_splits.diff().clamp_max(max_length);
    const at::Tensor splits = torch::constant_pad_nd(lengths.cumsum(0), {1, 0});
    // These are the places of the last items in `histories`.
    const at::Tensor places = torch::arange(splits[-1].item<int64_t>()) +
        (ends - splits.slice(0, 1)).repeat_interleave(lengths);
    const at::Tensor queries = model->queries(
        {.values = histories.values.index_select(0, places),
         .row_splits = splits});
    return queries.matmul(model->item_vectors().t());
  };
}

}  // namespace

void check_model_options(const SequenceOptions& options) {
  TORCH_CHECK_VALUE(
      !options.averaging ||
          (*options.averaging > 0.0 && *options.averaging < 1.0),
      "[sasrec] averaging: expected a momentum between 0 and 1, but got ",
      *options.averaging,
      ". Set 0.999, or leave it out.");
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
  const auto validator =
      std::make_shared<Validator>(model, histories, options.averaging);
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
      .curve = validator->curve(),
      .scores = scores_of(model, options.max_length)};
  return history;
}
