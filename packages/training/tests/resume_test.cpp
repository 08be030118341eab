// SPDX-License-Identifier: Apache-2.0
// When fit() refuses to resume, and what a resume keeps.
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/training/early_stopping.h>
#include <tessera/training/history_files.h>
#include <tessera/training/learning_rate_log.h>
#include <tessera/training/learning_rate_scheduler.h>
#include <tessera/training/table_activity.h>
#include <tessera/training/tensorboard.h>

#include "packages/training/tests/event_reader.h"
#include "packages/training/tests/training_fixture.h"

#include <sys/wait.h>
#include <unistd.h>

namespace tessera::training::resume_test {

History train(
    ClickRun& run,
    const std::string& directory,
    FitOptions options = {},
    int64_t batches = 4) {
  options.checkpoint = run.checkpoint(directory, {.keep_last = 1});
  return run.train(click_batches(batches, 1), std::move(options));
}

TEST(TrainingResumeTest, ARefusedResumeLeavesTheModelUnchanged) {
  for (const int64_t layers : {0, 1, 2}) {
    SCOPED_TRACE(layers);
    const TemporaryFolder folder;
    ClickRun first(layers), second(layers);
    train(first, folder / "run", {.callbacks = {stopping_after(3)}});
    const std::string before = second.bytes();
    EXPECT_NE(before, first.bytes());
    EXPECT_VALUE_ERROR(
        train(second, folder / "run", {.metrics = {LogLoss()}}),
        "with the metrics [], but this training has [log_loss]");
    EXPECT_EQ(second.bytes(), before);
    EXPECT_VALUE_ERROR(
        train(second, folder / "run", {.steps_per_epoch = 2}),
        "saved after step 3 of an epoch, but steps_per_epoch is 2");
    EXPECT_EQ(second.bytes(), before);
    if (layers == 2) {
      // Damage a file of the second layer, which is loaded last.
      for (const auto& entry : std::filesystem::recursive_directory_iterator(
               folder / "run/layer_1")) {
        if (entry.path().filename().string().starts_with("table_0")) {
          std::ofstream(entry.path(), std::ios::in | std::ios::out)
              << "damaged";
        }
      }
      EXPECT_VALUE_ERROR(train(second, folder / "run"), "is damaged");
      EXPECT_EQ(second.bytes(), before);
    }
  }
}

TEST(TrainingResumeTest, AStopAtTheStartOfAnEpochIsSaved) {
  const auto batches = click_batches(4, 1);
  const TemporaryFolder folder;
  const auto run_in = [&](ClickRun& run,
                          const std::string& name,
                          std::optional<int64_t> stopped_epoch) {
    const auto hooks = std::make_shared<Hooks>();
    hooks->epoch_begin = [=](Training& training) {
      if (training.progress().epoch == stopped_epoch) {
        training.stop("interrupted");
      }
    };
    at::manual_seed(11);
    fit(
        [&] {  // shuffled by LibTorch's random generator
          std::vector<ClickBatch> shuffled;
          const auto order = at::randperm(4, at::kLong);
          for (int64_t i = 0; i < 4; ++i) {
            shuffled.push_back(batches[order[i].item<int64_t>()]);
          }
          return shuffled;
        },
        run.train_step(),
        {.epochs = 3,
         .callbacks = {hooks},
         .checkpoint = run.checkpoint(folder / name, {.every_epochs = 0})});
  };
  ClickRun uninterrupted, stopped, resumed;
  run_in(uninterrupted, "whole", {});
  run_in(stopped, "parts", 2);
  run_in(resumed, "parts", {});
  EXPECT_EQ(resumed.bytes(), uninterrupted.bytes());
  // It resumed from the step where the other run stopped.
  ClickRun loaded;
  load_weights(*loaded.model, folder / "parts");
  EXPECT_EQ(
      loaded.model->embeddings[0]->iterations(),
      stopped.model->embeddings[0]->iterations());
}

TEST(TrainingResumeTest, ThePreviousStopReasonIsCleared) {
  const TemporaryFolder folder;
  ClickRun first, second;
  const auto stopped = train(
      first, folder / "run", {.epochs = 2, .callbacks = {stopping_after(5)}});
  EXPECT_EQ(stopped.stop_reason, "interrupted");
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [](Training& training) {
    EXPECT_EQ(training.history().stop_reason, "");
  };
  const auto history =
      train(second, folder / "run", {.epochs = 2, .callbacks = {hooks}});
  EXPECT_EQ(history.epochs.size(), 2U);
}

TEST(TrainingResumeTest, SaysThatAFinishedTrainingTrainedNothing) {
  const TemporaryFolder folder;
  Warnings warnings;
  const auto resume = [&](FitOptions options) {
    ClickRun run;
    train(run, folder / "run", std::move(options));
  };
  resume({.epochs = 2});
  EXPECT_TRUE(warnings.texts.empty());
  resume({.epochs = 2});
  ASSERT_EQ(warnings.texts.size(), 1U);
  EXPECT_EQ(
      warnings.texts[0],
      "[fit] nothing was trained: the checkpoint in '" + folder / "run" +
          "' is of a training that has ended after 2 epochs, and "
          "FitOptions::epochs is 2. To go on, set epochs to more than 2. For a "
          "new training, choose another directory.");
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_begin = [](Training& training) { training.stop("a reason"); };
  resume({.epochs = 3, .callbacks = {hooks}});
  ASSERT_EQ(warnings.texts.size(), 2U);
  EXPECT_EQ(
      warnings.texts[1],
      "[fit] nothing was trained: the training stopped before its first step, "
      "because of: a reason.");
  resume({.epochs = 3});
  resume({.epochs = 0});  // fewer than were trained
  EXPECT_EQ(warnings.texts.size(), 3U);
}

TEST(TrainingResumeTest, AnEpochIsSavedWhenItsHistoryFileFails) {
  const TemporaryFolder folder;
  const std::string where = folder / "history";
  int64_t steps = 0, epochs = 0;
  const auto run_in = [&](ClickRun& run, const char* name, bool fails) {
    std::filesystem::create_directories(where);
    const auto before = std::make_shared<Hooks>();
    before->epoch_begin = [&](Training& training) {
      if (fails && training.progress().epoch == 1) {
        std::filesystem::remove_all(where);
      }
    };
    const auto after = std::make_shared<Hooks>();
    after->step_end = [&](Training&) { ++steps; };
    after->epoch_end = [&](Training&) { ++epochs; };
    at::manual_seed(11);
    const History history = train(
        run,
        folder / name,
        {.epochs = 3,
         .callbacks = {before, CsvHistory(where + "/history.csv"), after}});
    EXPECT_EQ(read_text(where + "/history.csv"), to_csv(history));
    return to_csv(history) + run.bytes();
  };
  ClickRun uninterrupted, failed, resumed;
  const std::string expected = run_in(uninterrupted, "whole", false);
  epochs = 0;
  EXPECT_TORCH_ERROR(run_in(failed, "parts", true), "history.csv");
  EXPECT_EQ(epochs, 2);  // later callbacks still see the epoch
  steps = 0;
  EXPECT_EQ(run_in(resumed, "parts", false), expected);
  EXPECT_EQ(steps, 4);
}

// The state that a failed callback saves may lack the epoch.
TEST(TrainingResumeTest, AFailingCallbackWithStateKeepsThePreviousCheckpoint) {
  struct Counting : Hooks {
    std::string state_name() const override {
      return "counting";
    }
  };
  const TemporaryFolder folder;
  const auto counting = std::make_shared<Counting>();
  counting->epoch_end = [](Training& training) {
    if (training.progress().epoch == 1) {
      throw std::runtime_error("enough");
    }
  };
  ClickRun first, second;
  const auto run = [&](ClickRun& clicks) {
    return train(
        clicks, folder / "run", {.epochs = 2, .callbacks = {counting}});
  };
  EXPECT_THROW(run(first), std::runtime_error);
  int64_t steps = 0;
  counting->epoch_end = nullptr;
  counting->step_end = [&](Training&) { ++steps; };
  EXPECT_EQ(run(second).epochs.size(), 2U);
  EXPECT_EQ(steps, 4);
}

TEST(
    TrainingResumeTest,
    LoadsDeleteNothingAndSavesRemoveUnfinishedCheckpoints) {
  const TemporaryFolder folder;
  const std::string second = folder / "run/layer_1";
  ClickRun run(2), loaded(2);
  train(run, folder / "run");
  const std::string complete = list_checkpoints(second).back();
  // Two saves crashed before they had saved the first layer.
  for (const char* orphan : {"checkpoint_000007", "checkpoint_000008"}) {
    std::filesystem::copy(
        second + "/" + complete,
        second + "/" + orphan,
        std::filesystem::copy_options::recursive);
  }
  const auto before = list_checkpoints(second);
  load_weights(*loaded.model, folder / "run");
  EXPECT_EQ(
      loaded.model->embeddings[1]->iterations(),
      run.model->embeddings[1]->iterations());
  EXPECT_EQ(list_checkpoints(second), before);
  train(run, folder / "run", {.epochs = 2});
  const auto after = list_checkpoints(second);
  ASSERT_EQ(after.size(), 2U);
  EXPECT_EQ(after[0], complete);
  EXPECT_EQ(after[1], "checkpoint_000002");
}

TEST(TrainingResumeTest, NoticesASourceWithFewerBatches) {
  // A source of `left` batches. Its skip() returns how many batches it skipped.
  struct Counting {
    int64_t left;
    int64_t skip(int64_t count) {
      const int64_t skipped = std::min(count, left);
      left -= skipped;
      return skipped;
    }
    std::optional<ClickBatch> next() {
      return left-- > 0 ? std::optional(click_batches(1, 1)[0]) : std::nullopt;
    }
  };
  struct Silent {
    Counting counting;
    void skip(int64_t count) {
      counting.skip(count);
    }
    std::optional<ClickBatch> next() {
      return counting.next();
    }
  };
  struct Sized : Silent {
    int64_t size() const {
      return 9;
    }
  };
  const auto resume = [](auto source, int64_t stopped_after) {
    const TemporaryFolder folder;
    ClickRun first, second;
    train(
        first, folder / "run", {.callbacks = {stopping_after(stopped_after)}});
    fit([&] { return source; },
        second.train_step(),
        {.checkpoint = second.checkpoint(folder / "run")});
  };
  const char* message = "saved after 3 batches of epoch 0, but the source has";
  EXPECT_VALUE_ERROR(resume(Counting{2}, 3), message);
  EXPECT_VALUE_ERROR(resume(Silent{{2}}, 3), message);
  EXPECT_VALUE_ERROR(
      resume(Sized{{{3}}}, 3),
      "resumed after 3 of 9 batches, but the source gave no more");
  resume(Counting{3}, 3);
  resume(Silent{{3}}, 3);
  resume(Sized{{{9}}}, 3);
}

class BestOnDiskTest : public testing::Test {
 protected:
  static EarlyStopping first_is_best(
      const ClickRun& clicks,
      const std::string& directory) {
    return EarlyStopping(
        {.monitor = "loss",
         .patience = 9,
         .min_delta = 1e9,
         .restore_best = clicks.model.ptr(),
         .directory = directory});
  }
  // Trains so that the first epoch is the best one.
  void run(int64_t stopped_after, const std::string& best) {
    ClickRun clicks;
    const auto batches = click_batches(4, 1);
    train(
        clicks,
        folder_ / "run",
        {.epochs = 3,
         .callbacks = {
             stopping_after(stopped_after), first_is_best(clicks, best)}});
  }
  TemporaryFolder folder_;
};

TEST_F(BestOnDiskTest, AResumeNeedsTheDirectoryOfItsBestEpoch) {
  run(5, folder_ / "best");
  EXPECT_VALUE_ERROR(
      run(-1, folder_ / "other"),
      "has no best weights, but must have those of epoch 0 with the value");
  ClickRun other;
  const auto batches = click_batches(4, 2);
  other.train(
      batches,
      {.callbacks = {EarlyStopping(
           {.monitor = "loss",
            .restore_best = other.model.ptr(),
            .directory = folder_ / "foreign"})}});
  EXPECT_VALUE_ERROR(
      run(-1, folder_ / "foreign"),
      "has the weights of epoch 0 with the value");
  run(-1, folder_ / "best");
}

TEST_F(BestOnDiskTest, MissingBestWeightsAtTheEndAreAnError) {
  ClickRun clicks;
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [&](Training& training) {
    if (training.progress().epoch == 1) {
      std::filesystem::remove_all(folder_ / "best");
    }
  };
  EXPECT_VALUE_ERROR(
      clicks.train(
          click_batches(2, 1),
          {.epochs = 2,
           .callbacks = {hooks, first_is_best(clicks, folder_ / "best")}}),
      "has no best weights");
}

TEST_F(BestOnDiskTest, RefusesTheDirectoryOfTheCheckpoints) {
  EXPECT_VALUE_ERROR(run(-1, folder_ / "run"), "would both save into");
  EXPECT_VALUE_ERROR(run(-1, folder_ / "x/../run/"), "would both save into");
  EXPECT_TRUE(list_checkpoints(folder_ / "run").empty());
}

/// A model with a table whose keys are not known before.
struct KeyedModelImpl : torch::nn::Module {
  KeyedModelImpl() {
    at::manual_seed(3);
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user", feature_of("users", 20, 4)},
                 {"movie",
                  feature_of(
                      {.name = "movies",
                       .dim = 4,
                       .keys = DynamicKeys{.capacity = 64}})}},
            .optimizer = optim::Adagrad{.learning_rate = 0.05},
            .seed = 1}));
    dropout = register_module("dropout", torch::nn::Dropout(0.2));
    tower = register_module("tower", torch::nn::Linear(8, 1));
  }

  at::Tensor forward(const ClickBatch& batch) {
    return tower
        ->forward(dropout->forward(join->forward(embedding->forward(
            {{"user", batch.user}, {"movie", batch.movie}}))))
        .squeeze(1);
  }

  TPUEmbedding embedding{nullptr};
  Concatenate join;
  torch::nn::Dropout dropout{nullptr};
  torch::nn::Linear tower{nullptr};
};
TORCH_MODULE(KeyedModel);

// Where a training dies after the checkpoint of a step.
struct Death {
  int64_t step = -1;
  bool is_at_epoch_end = false;  // after the end of the epoch has been logged
};

// fit() does not save the epoch if its on_epoch_end() throws.
struct HooksWithState : Hooks {
  std::string state_name() const override {
    return "hooks";
  }
};

// Trains with all callbacks that log. Every file is in `folder`.
void train_and_log(
    const std::string& folder,
    int64_t epochs = 6,
    const Death& death = {}) {
  KeyedModel model;
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  int64_t step = 0;
  const auto die_if = [&](bool is_at_epoch_end) {
    if (step == death.step && is_at_epoch_end == death.is_at_epoch_end) {
      throw std::runtime_error("killed");
    }
  };
  const auto hooks = std::make_shared<HooksWithState>();
  hooks->step_end = [&](Training& training) {
    step = training.progress().step;
  };
  hooks->epoch_end = [&](Training&) { die_if(true); };
  const auto loss_of = [&](const ClickBatch& batch) {
    die_if(false);
    const at::Tensor scores = model->forward(batch);
    return StepResult{
        .loss = at::binary_cross_entropy_with_logits(scores, batch.click),
        .predictions = scores,
        .labels = batch.click};
  };
  const std::vector<TPUEmbedding> layers{model->embedding};
  std::filesystem::create_directories(folder);
  at::manual_seed(11);
  fit([](int64_t epoch) { return click_batches(7, 100 + epoch); },
      make_train_step(optimizer, loss_of),
      {.epochs = epochs,
       .model = model.ptr(),
       .metrics = {AUC(), Mean()},
       .validation = make_pass(click_batches(3, 2), loss_of),
       .callbacks =
           {std::make_shared<TableActivity>(layers, /*max_rows=*/7),
            LearningRateScheduler(
                optimizer,
                optim::CosineDecay{
                    .initial_learning_rate = 0.02, .decay_steps = 42}),
            LearningRateLog(optimizer, layers),
            EarlyStopping({.patience = 99, .restore_best = model.ptr()}),
            TensorBoard(
                {.directory = folder + "/logs",
                 .every_steps = 3,
                 .step_values = [&] { return learning_rates(optimizer); },
                 .histograms_of = model.ptr()}),
            CsvHistory(folder + "/epochs.csv"),
            CsvHistory(folder + "/steps.csv", HistoryRows::kSteps),
            JsonHistory(folder + "/history.json"),
            hooks},
       .checkpoint = std::make_shared<Checkpoint>(
           folder + "/checkpoints",
           model.ptr(),
           optimizer,
           TrainingCheckpointOptions{.every_steps = 1}),
       .log_every_steps = 3});
  torch::save(model, folder + "/model.pt");
}

// What train_and_log() has left in `folder`.
void expect_same_logs(const std::string& folder, const std::string& whole) {
  for (const char* name :
       {"/epochs.csv", "/steps.csv", "/history.json", "/model.pt"}) {
    EXPECT_EQ(read_text(folder + name), read_text(whole + name)) << name;
  }
  for (const char* run : {"/logs/train", "/logs/validation"}) {
    const auto values = read_bytes(whole + run);
    EXPECT_FALSE(values.empty());
    EXPECT_EQ(read_bytes(folder + run), values) << run;
  }
}

// train_and_log() in a process of its own, which kills itself after `delay`. Returns
// whether it came to its end.
bool train_in_child(
    const std::string& folder,
    std::optional<std::chrono::microseconds> delay) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  ::setenv("TESSERA_KILLED_TRAINING", folder.c_str(), 1);
  ::setenv(
      "TESSERA_KILL_AFTER",
      delay ? std::to_string(delay->count()).c_str() : "",
      1);
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(
        program.c_str(),
        program.c_str(),
        "--gtest_filter=KilledTrainingTest.DISABLED_Train",
        "--gtest_also_run_disabled_tests",
        "--gtest_brief=1",
        nullptr);
    ::_exit(1);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  const bool is_killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  EXPECT_TRUE(is_killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
      << status;
  return !is_killed;
}

TEST(KilledTrainingTest, DISABLED_Train) {
  const char* folder = std::getenv("TESSERA_KILLED_TRAINING");
  if (folder == nullptr) {
    GTEST_SKIP() << "the next test sets TESSERA_KILLED_TRAINING";
  }
  const std::string delay = std::getenv("TESSERA_KILL_AFTER");
  if (!delay.empty()) {
    std::thread([wait = std::chrono::microseconds(std::stoll(delay))] {
      std::this_thread::sleep_for(wait);
      ::kill(::getpid(), SIGKILL);
    }).detach();
  }
  const auto begin = std::chrono::steady_clock::now();
  train_and_log(folder);
  std::ofstream(std::string(folder) + "/microseconds")
      << std::chrono::duration_cast<std::chrono::microseconds>(
             std::chrono::steady_clock::now() - begin)
             .count();
}

// TESSERA_KILLS=100 makes a longer test of it.
TEST(KilledTrainingTest, LogsWhatAnUninterruptedTrainingLogs) {
  constexpr int64_t kKillsOfATraining = 5;
  const char* count = std::getenv("TESSERA_KILLS");
  const int64_t kills = count == nullptr ? 3 : std::stoll(count);
  const TemporaryFolder folder;
  const std::string whole = folder / "whole";
  ASSERT_TRUE(train_in_child(whole, {}));
  const int64_t time = std::stoll(read_text(whole + "/microseconds"));
  std::mt19937 generator(1);
  std::uniform_int_distribution<int64_t> delay(0, time / 2);
  int64_t killed = 0;
  int64_t trainings = 0;
  while (killed < kills && !HasFailure()) {
    const std::string parts = folder / ("parts_" + std::to_string(trainings));
    ++trainings;
    bool has_ended = false;
    for (int64_t i = 0; i < kKillsOfATraining && killed < kills && !has_ended;
         ++i) {
      has_ended =
          train_in_child(parts, std::chrono::microseconds(delay(generator)));
      killed += has_ended ? 0 : 1;
    }
    ASSERT_TRUE(has_ended || train_in_child(parts, {}));
    expect_same_logs(parts, whole);
  }
  std::cout << killed << " kills of " << trainings << " trainings\n";
}

// The cases that a kill at a random time finds seldom. An epoch has 7 steps.
TEST(KilledTrainingTest, LogsTheSameAfterADeathAtASelectedStep) {
  constexpr int64_t kEpochs = 2;
  const TemporaryFolder folder;
  const std::string whole = folder / "whole";
  train_and_log(whole, kEpochs);
  const auto expect_same = [&](const Death& death) {
    SCOPED_TRACE(death.step);
    SCOPED_TRACE(death.is_at_epoch_end);
    const std::string parts = folder /
        (std::to_string(death.step) + (death.is_at_epoch_end ? "_end" : ""));
    EXPECT_THROW(train_and_log(parts, kEpochs, death), std::runtime_error);
    train_and_log(parts, kEpochs);
    expect_same_logs(parts, whole);
  };
  for (const int64_t step : {1, 3, 7, 8}) {
    expect_same({.step = step});
  }
  expect_same({.step = 7, .is_at_epoch_end = true});
}

}  // namespace tessera::training::resume_test
