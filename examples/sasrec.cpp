// SPDX-License-Identifier: Apache-2.0
// Teaches a sequence model which item comes next for a user, given the items so far in
// their order: which movie of MovieLens 100K, or which product of a file as the authors of
// S3-Rec publish them.
//
// SASRec is a transformer over the latest items of a user. Its sequences are jagged:
// they lie one after the other, and no padding is computed. Each position is trained to
// predict the next item, with a softmax over all items. --loss sampled takes the softmax
// over some random items, which many items need. --loss binary is the loss of the paper,
// with one random negative for each position, which ranks less well here.
//
// Each user's last item is the test, and the one before it the validation. The training
// stops when the validation no longer improves. All items that a user does not have are
// candidates. Popularity and item-kNN are simple methods that a model should beat.
//
// The data is in sasrec/histories.cpp, and the evaluation with the simple methods is in
// sasrec/ranking.cpp.
#include "examples/common/batches.h"
#include "examples/common/command_line.h"
#include "examples/common/outputs.h"
#include "examples/sasrec/histories.h"
#include "examples/sasrec/options.h"
#include "examples/sasrec/ranking.h"
#include "examples/sasrec/report.h"

#include <tessera/tessera.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace optim = tessera::optim;
namespace training = tessera::training;

namespace {

tessera::SASRecOptions model_options(
    const Histories& histories,
    const Options& options,
    int64_t seed) {
  return {
      .num_items = histories.num_items(),
      .dim = options.dim,
      .max_length = options.max_length,
      .num_blocks = options.blocks,
      .block = {.num_heads = options.heads, .dropout = options.dropout},
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

  std::vector<std::string> log_names() const override {
    return {"val_hit_rate", "val_ndcg"};
  }
  void on_epoch_begin(training::Training& /*training*/) override {
    start_ = std::chrono::steady_clock::now();
  }
  void on_epoch_end(training::Training& training) override {
    const std::chrono::duration<double> passed =
        std::chrono::steady_clock::now() - start_;
    seconds_ += passed.count();
    const Ranking ranking =
        ranking_of(model_, histories_, HeldOut::kValidation);
    training.log("val_hit_rate", ranking.hit_rate);
    training.log("val_ndcg", ranking.ndcg);
  }

 private:
  tessera::SASRec model_;
  const Histories& histories_;
  std::chrono::steady_clock::time_point start_ = {};
  double seconds_ = 0.0;
};

// Adds a run to the report. Returns the exit status, which is not 0 if a signal stopped the
// training.
int train(
    const Histories& histories,
    const Options& options,
    int64_t seed,
    Report& report) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  std::mt19937_64 random(static_cast<uint64_t>(seed));
  tessera::SASRec model(model_options(histories, options, seed));
  if (report.runs.empty() && !options.json) {
    std::cout << model->summary() << std::flush;
  }
  torch::optim::Adam optimizer(model->parameters(), options.learning_rate);
  const auto validator = std::make_shared<Validator>(model, histories);
  const auto progress = std::make_shared<training::ProgressBar>();
  const auto stopping =
      std::make_shared<training::EarlyStopping>(training::EarlyStoppingOptions{
          .monitor = "val_ndcg",
          .patience = options.patience,
          .better = training::Better::kHigher,
          .restore_best = model});
  const auto loss_of = [&](const std::vector<size_t>& users) {
    const auto [sequences, targets] = histories.batch(users);
    training::StepResult result{.examples = targets.size(0)};
    if (options.loss == "binary") {
      result.loss = model->binary_loss(
          sequences, targets, histories.negatives(users, random));
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
        return in_batches(shuffled(histories.train_users()), options.batch);
      },
      training::make_train_step(optimizer, loss_of),
      {.epochs = options.epochs,
       .model = model,
       .callbacks = {validator, progress, stopping}});
  if (history.stop_signal() != 0) {
    return report_stop(history, "");
  }
  report.runs.push_back(
      {.seed = seed,
       .epochs = std::ssize(history.epochs),
       .best_epoch = stopping->best_epoch() + 1,
       .validation_ndcg = stopping->best(),
       .test = ranking_of(model, histories, HeldOut::kTest),
       .seconds = validator->seconds(),
       .examples_per_second =
           static_cast<double>(progress->examples()) / validator->seconds()});
  return 0;
}

// Returns the exit status.
int run(const Options& options) {
  const Histories histories = load_histories(options.data, options.max_length);
  Report report{
      .users = histories.users(),
      .items = histories.num_items(),
      .popularity = ranking_by_popularity(histories),
      .neighbors = ranking_by_neighbors(histories)};
  for (int64_t i = 0; i < options.runs; ++i) {
    const int status = train(histories, options, options.seed + i, report);
    if (status != 0) {
      return status;
    }
  }
  print_report(report, options);
  finish_report("sasrec");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  Options options;
  if (const auto status = parse_arguments(argc, argv, options)) {
    return *status;
  }
  return run_program("sasrec", [&] { return run(options); });
}
