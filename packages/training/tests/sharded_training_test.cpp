// SPDX-License-Identifier: Apache-2.0
// fit() on distributed::sharded_strategy(). The test runs under mpirun with any
// number of ranks.
#include <tessera/layers/dense_parameters.h>
#include <tessera/layers/partial_tpu_embedding.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/training/early_stopping.h>
#include <tessera/training/table_activity.h>
#include <tessera/training/tensorboard.h>
#include <tessera/training/terminate_on_non_finite.h>

#include "packages/distributed/tests/sharded_layers.h"
#include "packages/training/src/model_files.h"
#include "packages/training/tests/training_fixture.h"

#include <signal.h>
#include <torch/nn/modules/embedding.h>

namespace tessera::training::sharded_training_test {

// A model with a sharded table and with tables that every rank has whole.
struct MixedModelImpl : torch::nn::Module {
  MixedModelImpl() {
    at::manual_seed(3);
    register_module("whole", whole);
    register_module("partial", partial);
    tower = register_module("tower", torch::nn::Linear(8, 1));
  }

  at::Tensor forward(const ClickBatch& batch) {
    const auto parts =
        partial->forward({{"user", batch.user}, {"movie", batch.movie}});
    const at::Tensor sum =
        parts["user"] + whole->forward({{"movie", batch.movie}})["movie"];
    return tower->forward(at::cat({sum, parts["movie"]}, 1)).squeeze(1);
  }

  std::vector<at::Tensor> dense() const {
    std::vector<at::Tensor> all = dense_parameters(*this);
    for (const at::Tensor& table : whole->parameters()) {
      all.push_back(table);
    }
    return all;
  }

  TPUEmbedding whole{TPUEmbeddingOptions{
      .features = {{"movie", feature_of("biases", 10, 4)}},
      .strategy = Strategy::host()}};
  PartialTPUEmbedding partial{PartialTPUEmbeddingOptions{
      .features =
          {{"user", feature_of("users", 20, 4)},
           {"movie", feature_of("movies", 10, 4)}},
      .optimizer = optim::Adam{.learning_rate = 0.05},
      .size_threshold = 15,
      .strategy = test::sharded()}};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(MixedModel);

struct ShardedRun {
  auto train_step() {
    return make_train_step(
        optimizer,
        [this](const ClickBatch& batch) {
          const at::Tensor scores = model->forward(batch);
          return StepResult{
              .loss =
                  at::binary_cross_entropy_with_logits(scores, batch.click) /
                  static_cast<double>(ranks()),
              .predictions = scores,
              .labels = batch.click};
        },
        {.strategy = strategy, .dense_parameters = model->dense()});
  }
  std::shared_ptr<Checkpoint> checkpoint(
      const std::string& directory,
      TrainingCheckpointOptions options = {}) {
    return std::make_shared<Checkpoint>(
        directory, model.ptr(), optimizer, options);
  }
  FitOptions options(
      int64_t epochs,
      Callbacks callbacks,
      std::shared_ptr<Checkpoint> checkpoint = {}) {
    return {
        .epochs = epochs,
        .model = model.ptr(),
        .metrics = {Accuracy()},
        .callbacks = std::move(callbacks),
        .checkpoint = std::move(checkpoint),
        .strategy = strategy};
  }
  // Returns all weights as one tensor.
  at::Tensor weights() {
    std::vector<at::Tensor> all{
        model->partial->tpu_embedding()->read_rows("users", 0, 20).flatten()};
    for (const at::Tensor& tensor : model->dense()) {
      all.push_back(tensor.detach().flatten());
    }
    return at::cat(all);
  }

  Strategy strategy = test::sharded();
  MixedModel model;
  torch::optim::Adam optimizer{model->parameters(), 0.01};
};

std::vector<ClickBatch> own_batches() {
  return click_batches(4, 10 + rank());
}

// Calls `act` on the last rank after the given step.
template <class Act>
std::shared_ptr<Hooks> on_last_after(int64_t step, Act act) {
  return hook_after(step, [=](Training& training) {
    if (is_last()) {
      act(training);
    }
  });
}

// Calls `act` on the last rank after step 6, which stops all ranks. Then checks
// that a resumed training gives the weights of an uninterrupted one.
template <class Act>
void expect_resumes(Act act, const std::string& reason) {
  const SharedFolder folder;
  const auto train =
      [&](ShardedRun& run, const char* name, Callbacks callbacks) {
        return fit(
            own_batches(),
            run.train_step(),
            run.options(3, callbacks, run.checkpoint(folder / name)));
      };
  ShardedRun uninterrupted, stopped, resumed;
  train(uninterrupted, "whole", {});
  const History interrupted = train(stopped, "parts", {on_last_after(6, act)});
  EXPECT_EQ(interrupted.epochs.size(), 1U);
  EXPECT_EQ(interrupted.stop_reason, is_last() ? reason : "another rank");
  const History history = train(resumed, "parts", {});
  EXPECT_EQ(history.epochs.size(), 3U);
  EXPECT_EQ(history.stop_reason, "");
  EXPECT_TRUE(at::equal(resumed.weights(), uninterrupted.weights()));
  EXPECT_FALSE(at::equal(resumed.weights(), stopped.weights()));
  ShardedRun loaded;
  load_weights(*loaded.model, folder / "parts");
  EXPECT_TRUE(at::equal(loaded.weights(), uninterrupted.weights()));
  ShardedRun copied;
  EXPECT_FALSE(has_weights(*copied.model, folder / "copy"));
  save_weights(*loaded.model, folder / "copy", {.extra = [](auto& archive) {
    archive.write("mine", c10::IValue(int64_t{7}));
  }});
  EXPECT_TRUE(has_weights(*copied.model, folder / "copy"));
  c10::IValue mine;
  load_weights(*copied.model, folder / "copy", [&](auto& archive) {
    archive.read("mine", mine);
  });
  EXPECT_EQ(mine.toInt(), 7);
  EXPECT_TRUE(at::equal(copied.weights(), uninterrupted.weights()));
}

TEST(ShardedTrainingTest, AStopOnOneRankIsResumedBitForBit) {
  expect_resumes([](Training& training) { training.stop("mine"); }, "mine");
}

TEST(ShardedTrainingTest, ASignalOnOneRankIsResumedBitForBit) {
  expect_resumes([](Training&) { ::raise(SIGINT); }, "SIGINT");
}

TEST(ShardedTrainingTest, EachRankResumesTheMovementOfItsRows) {
  const SharedFolder folder;
  const auto train =
      [&](ShardedRun& run, const char* name, Callbacks callbacks) {
        callbacks.push_back(std::make_shared<TableActivity>(
            std::vector<TPUEmbedding>{run.model->partial->tpu_embedding()},
            /*max_rows=*/2));
        return fit(
            own_batches(),
            run.train_step(),
            run.options(3, callbacks, run.checkpoint(folder / name)));
      };
  ShardedRun uninterrupted, stopped, resumed;
  const History whole = train(uninterrupted, "whole", {});
  train(stopped, "parts", {on_last_after(6, [](Training& training) {
          training.stop("mine");
        })});
  const History history = train(resumed, "parts", {});
  // The epochs before the resume are those of rank 0.
  for (const size_t epoch : {size_t{1}, size_t{2}}) {
    const double expected = whole["moved_users"][epoch];
    const double found = history["moved_users"][epoch];
    EXPECT_TRUE(found == expected || std::isnan(expected))
        << epoch << ": " << found << " and not " << expected;
  }
}

TEST(ShardedTrainingTest, AnEpochIsSavedWhenACallbackOfOneRankFails) {
  const SharedFolder folder;
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [](Training& training) {
    if (is_last() && training.progress().epoch == 1) {
      throw std::runtime_error("enough");
    }
  };
  const auto train = [&](ShardedRun& run, const char* name) {
    // It would restore the first epoch on all ranks at the end of training.
    const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{
        .monitor = "loss",
        .patience = 9,
        .min_delta = 1e9,
        .restore_best = run.model.ptr(),
        .directory = folder / (std::string(name) + "_best")});
    fit(own_batches(),
        run.train_step(),
        run.options(3, {hooks, stopping}, run.checkpoint(folder / name)));
  };
  ShardedRun uninterrupted, failed, resumed;
  if (is_last()) {
    EXPECT_THROW(train(failed, "parts"), std::runtime_error);
  } else {
    EXPECT_TORCH_ERROR(
        train(failed, "parts"),
        "[fit] a callback of another rank failed at the end of epoch 1.");
  }
  int64_t steps = 0;
  hooks->epoch_end = nullptr;
  hooks->step_end = [&](Training&) { ++steps; };
  train(resumed, "parts");
  const int64_t resumed_steps = steps;
  train(uninterrupted, "whole");
  EXPECT_EQ(3 * resumed_steps, steps - resumed_steps);
  EXPECT_TRUE(at::equal(resumed.weights(), uninterrupted.weights()));
}

TEST(ShardedTrainingTest, AllRanksFailWhenTheDirectoryIsInUse) {
  NEEDS_TWO_RANKS();
  const SharedFolder folder;
  std::shared_ptr<void> lock;
  if (is_last()) {
    lock = lock_for_training(ranks_of(Strategy::fused()), folder / "");
  }
  ShardedRun run;  // its constructor waits for all ranks
  EXPECT_TORCH_ERROR(
      fit(own_batches(),
          run.train_step(),
          run.options(1, {}, run.checkpoint(folder / ""))),
      rank() == 0 ? "it is in use" : "stops in fit(), since rank 0 raised");
}

TEST(ShardedTrainingTest, ANonFiniteLossOnOneRankStopsAllRanks) {
  const SharedFolder folder;
  ShardedRun run;
  auto batches = own_batches();
  if (is_last()) {
    batches[2].click.fill_(std::numeric_limits<float>::infinity());
  }
  const History history =
      fit(batches,
          run.train_step(),
          run.options(
              1,
              {TerminateOnNonFinite()},
              run.checkpoint(folder / "run", {.every_steps = 1})));
  EXPECT_EQ(history.stop_reason.find("the loss of step 3 is"), 0U)
      << history.stop_reason;
  // The checkpoint is that of step 2.
  ShardedRun loaded;
  load_weights(*loaded.model, folder / "run");
  EXPECT_EQ(loaded.model->partial->tpu_embedding()->iterations(), 2);
  EXPECT_TRUE(at::equal(loaded.weights(), run.weights()));
}

TEST(ShardedTrainingTest, ANonFiniteDenseGradientOnOneRankIsRefusedOnAll) {
  ShardedRun run;
  const at::Tensor before = run.weights();
  const at::Tensor& bias = run.model->tower->bias;
  const std::string text =
      "[fit] the gradients of parameters must be finite, but NaN or infinity "
      "is in that of 'tower.bias' (Float of shape [1]). Nothing was changed.";
  EXPECT_VALUE_ERROR(
      fit(own_batches(),
          make_train_step(
              run.optimizer,
              [&](const ClickBatch& batch) {
                at::Tensor loss = run.model->forward(batch).sum();
                if (is_last()) {
                  loss = loss + 0.0 * at::sqrt(bias - bias.detach()).sum();
                }
                return loss;
              },
              {.strategy = run.strategy,
               .dense_parameters = run.model->dense()}),
          {.model = run.model, .strategy = run.strategy}),
      reported(text));
  EXPECT_TRUE(at::equal(run.weights(), before));
}

// The loss of one rank is NaN at step 2. Training goes on, but no rank saves
// that step.
TEST(ShardedTrainingTest, AllRanksSkipTheSameSave) {
  const SharedFolder folder;
  ShardedRun run;
  int64_t step = 0;
  auto train_step = run.train_step();
  fit(
      own_batches(),
      [&](const ClickBatch& batch) {
        StepResult result = train_step(batch);
        if (++step == 2 && is_last()) {
          result.loss.fill_(std::numeric_limits<double>::quiet_NaN());
        }
        return result;
      },
      run.options(
          1,
          {},
          run.checkpoint(
              folder / "run",
              {.every_steps = 1, .every_epochs = 0, .keep_last = 9})));
  EXPECT_EQ(list_checkpoints(folder / "run").size(), 3U);
}

TEST(ShardedTrainingTest, TheBestEpochOfAllRanksTogetherIsRestored) {
  const SharedFolder folder;
  ShardedRun run;
  std::vector<at::Tensor> after;
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [&](Training&) { after.push_back(run.weights()); };
  int64_t step = 0;
  auto train_step = run.train_step();
  const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{
      .monitor = "loss",
      .patience = 2,
      .restore_best = run.model.ptr(),
      .directory = folder / "best"});
  const History history = fit(
      own_batches(),
      [&](const ClickBatch& batch) {
        StepResult result = train_step(batch);
        // The sum of the losses is lowest in epoch 1. The loss of ranks but 0 falls.
        const double epoch = static_cast<double>(step++ / 4);
        result.loss = at::tensor(
            rank() == 0 ? 99.0 * (epoch - 1.0) * (epoch - 1.0) : 9.0 - epoch,
            at::kDouble);
        return result;
      },
      run.options(9, {hooks, stopping}));
  EXPECT_EQ(history.epochs.size(), 4U);
  EXPECT_EQ(stopping->best_epoch(), 1);
  ASSERT_EQ(after.size(), 4U);
  EXPECT_TRUE(at::equal(run.weights(), after[1]));
  EXPECT_FALSE(at::equal(run.weights(), after[3]));
}

// A model without shards: every rank has all weights.
struct ReplicatedModelImpl : torch::nn::Module {
  explicit ReplicatedModelImpl(bool has_layer) {
    at::manual_seed(3);
    if (has_layer) {
      layer = register_module(
          "layer",
          TPUEmbedding(TPUEmbeddingOptions{
              .features = {{"movie", feature_of("movies", 10, 4)}},
              .strategy = Strategy::host()}));
    } else {
      rows = register_module("rows", torch::nn::Embedding(10, 4));
    }
    tower = register_module("tower", torch::nn::Linear(4, 1));
  }

  at::Tensor forward(const ClickBatch& batch) {
    const at::Tensor movie = layer.is_empty()
        ? rows->forward(batch.movie)
        : layer->forward({{"movie", batch.movie}})["movie"];
    return tower->forward(movie).squeeze(1);
  }

  TPUEmbedding layer{nullptr};
  torch::nn::Embedding rows{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(ReplicatedModel);

// Counts the checkpoints that this rank writes.
struct Saves : Callback {
  std::string state_name() const override {
    return "saves";
  }
  void save_state(torch::serialize::OutputArchive& /*archive*/) const override {
    ++count;
  }
  mutable int count = 0;
};

// Trains a ReplicatedModel, resumed from the directory if it has a checkpoint,
// and returns its weights.
at::Tensor train_replicated(
    const std::string& directory,
    bool has_layer,
    int64_t epochs) {
  const Strategy strategy = test::sharded();
  ReplicatedModel model(has_layer);
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  const auto loss_of = [&](const ClickBatch& batch) {
    return at::binary_cross_entropy_with_logits(
               model->forward(batch), batch.click) /
        static_cast<double>(ranks());
  };
  const auto saves = std::make_shared<Saves>();
  fit(own_batches(),
      make_train_step(
          optimizer,
          loss_of,
          {.strategy = strategy, .dense_parameters = model->parameters()}),
      {.epochs = epochs,
       .model = model.ptr(),
       .callbacks =
           {EarlyStopping(
                {.monitor = "loss",
                 .patience = 9,
                 .restore_best = model.ptr()}),
            saves},
       .checkpoint =
           std::make_shared<Checkpoint>(directory, model.ptr(), optimizer),
       .strategy = strategy});
  EXPECT_EQ(saves->count > 0, rank() == 0);
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : model->parameters()) {
    weights.push_back(parameter.detach().flatten());
  }
  return at::cat(weights);
}

TEST(ShardedTrainingTest, AModelWithoutShardsIsSavedByRankZero) {
  const SharedFolder folder;
  for (const bool has_layer : {false, true}) {
    SCOPED_TRACE(has_layer);
    const std::string kind = has_layer ? "layer_" : "dense_";
    const at::Tensor uninterrupted =
        train_replicated(folder / (kind + "whole"), has_layer, 3);
    const at::Tensor stopped =
        train_replicated(folder / (kind + "parts"), has_layer, 1);
    EXPECT_FALSE(at::equal(stopped, uninterrupted));
    EXPECT_TRUE(at::equal(
        train_replicated(folder / (kind + "parts"), has_layer, 3),
        uninterrupted));
  }
}

TEST(ShardedTrainingTest, OnlyRankZeroWritesForTensorBoard) {
  const SharedFolder folder;
  ShardedRun run;
  int64_t calls = 0;
  fit(own_batches(),
      run.train_step(),
      run.options(
          2,
          {TensorBoard(
              {.directory = folder / "logs",
               .every_steps = 1,
               .step_values =
                   [&] {
                     ++calls;
                     return Logs{{"rank", static_cast<double>(rank())}};
                   },
               .histograms_of = run.model.ptr()})}));
  EXPECT_EQ(calls > 0, rank() == 0);
  if (rank() == 0) {
    Texts files;
    for (const auto& file :
         std::filesystem::directory_iterator(folder / "logs/train")) {
      files.push_back(file.path().string());
    }
    ASSERT_EQ(files.size(), 1);
    const std::string text = read_text(files[0]);
    for (const char* tag :
         {"step/rank",
          "row_norms/partial.",
          "/users",
          "row_norms/whole/biases",
          "gradients/tower.weight"}) {
      EXPECT_CONTAINS(text, tag);
    }
  }
}

TEST(ShardedTrainingTest, RefusesBadOptionsBeforeTraining) {
  ShardedRun run;
  FitOptions options = run.options(1, {});
  options.strategy = Strategy::fused();
  EXPECT_VALUE_ERROR(
      fit(own_batches(), run.train_step(), options),
      "the model has sharded tables, but FitOptions::strategy is fused");
  EXPECT_VALUE_ERROR(
      fit(own_batches(),
          run.train_step(),
          run.options(
              1,
              {EarlyStopping(
                  {.monitor = "loss", .restore_best = run.model.ptr()})})),
      "Set EarlyStoppingOptions::directory");
  EXPECT_EQ(run.model->partial->tpu_embedding()->iterations(), 0);
}

}  // namespace tessera::training::sharded_training_test
