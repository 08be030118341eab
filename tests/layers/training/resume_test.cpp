// SPDX-License-Identifier: Apache-2.0
// What a resume refuses, and what it leaves alone.
#include <tessera/layers/training/checkpoint.h>
#include <tessera/layers/training/early_stopping.h>
#include <tessera/layers/training/fit.h>
#include <tessera/layers/training/history_files.h>
#include <tessera/serialization/checkpoint.h>

#include "tests/layers/training/training_fixture.h"
#include "tests/test_util.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tessera::training {
namespace resume_test {

using test::click_batches;
using test::ClickBatch;
using test::ClickRun;
using test::Hooks;
using test::TemporaryFolder;

std::shared_ptr<Hooks> stop_after(int64_t step) {
  auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [step](Training& training) {
    if (training.progress().step == step) {
      training.stop("interrupted");
    }
  };
  return hooks;
}

History train(
    ClickRun& run,
    const std::string& directory,
    FitOptions options = {},
    int64_t batches = 4) {
  options.checkpoint = std::make_shared<Checkpoint>(
      directory,
      run.model.ptr(),
      run.optimizer,
      TrainingCheckpointOptions{.keep_last = 1});
  return fit(click_batches(batches, 1), run.train_step(), std::move(options));
}

TEST(TrainingResumeTest, ARefusedOneLeavesTheModelAsItIs) {
  for (const int64_t layers : {0, 1, 2}) {
    SCOPED_TRACE(layers);
    const TemporaryFolder folder;
    ClickRun first(layers), second(layers);
    train(first, folder / "run", {.callbacks = {stop_after(3)}});
    const std::string before = second.bytes();
    EXPECT_NE(before, first.bytes());
    EXPECT_VALUE_ERROR(
        train(
            second, folder / "run", {.metrics = {std::make_shared<LogLoss>()}}),
        "with the metrics [], but this training has [log_loss]");
    EXPECT_EQ(second.bytes(), before);
    EXPECT_VALUE_ERROR(
        train(second, folder / "run", {.steps_per_epoch = 2}),
        "made after step 3 of an epoch, but steps_per_epoch is 2");
    EXPECT_EQ(second.bytes(), before);
    if (layers == 2) {
      // Of the second layer, which is loaded last.
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

TEST(TrainingResumeTest, AStopWhenAnEpochBeginsIsSaved) {
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
        [&] {  // in an order from LibTorch's generator
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
         .checkpoint = std::make_shared<Checkpoint>(
             folder / name,
             run.model.ptr(),
             run.optimizer,
             TrainingCheckpointOptions{.every_epochs = 0})});
  };
  ClickRun straight, stopped, resumed;
  run_in(straight, "straight", {});
  run_in(stopped, "parts", 2);
  run_in(resumed, "parts", {});
  EXPECT_EQ(resumed.bytes(), straight.bytes());
  // It went on where the other had stopped.
  ClickRun loaded;
  load_weights(*loaded.model, folder / "parts");
  EXPECT_EQ(
      loaded.model->embeddings[0]->iterations(),
      stopped.model->embeddings[0]->iterations());
}

TEST(TrainingResumeTest, TheReasonOfTheStopBeforeIsGone) {
  const TemporaryFolder folder;
  ClickRun first, second;
  const auto until =
      train(first, folder / "run", {.epochs = 2, .callbacks = {stop_after(5)}});
  EXPECT_EQ(until.stop_reason, "interrupted");
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [](Training& training) {
    EXPECT_EQ(training.history().stop_reason, "");
  };
  const auto history =
      train(second, folder / "run", {.epochs = 2, .callbacks = {hooks}});
  EXPECT_EQ(history.epochs.size(), 2U);
}

TEST(TrainingResumeTest, AFileThatFailsAtAnEpochsEndDoesNotCostTheEpoch) {
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
         .callbacks = {
             before,
             std::make_shared<CsvHistory>(where + "/history.csv"),
             after}});
    EXPECT_EQ(test::read_text(where + "/history.csv"), to_csv(history));
    return to_csv(history) + run.bytes();
  };
  ClickRun straight, failed, resumed;
  const std::string expected = run_in(straight, "straight", false);
  epochs = 0;
  EXPECT_TORCH_ERROR(run_in(failed, "parts", true), "history.csv");
  EXPECT_EQ(epochs, 2);  // the callbacks behind it saw the epoch, too
  steps = 0;
  EXPECT_EQ(run_in(resumed, "parts", false), expected);
  EXPECT_EQ(steps, 4);
}

// What such a one would save of itself may lack the epoch.
TEST(
    TrainingResumeTest,
    ACallbackWithAStateThatFailsLeavesTheCheckpointBefore) {
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

TEST(TrainingResumeTest, LoadsDeleteNothingAndSavesRemoveWhatWasNotFinished) {
  const TemporaryFolder folder;
  const std::string second = folder / "run/layer_1";
  ClickRun run(2), loaded(2);
  train(run, folder / "run");
  const std::string named = list_checkpoints(second).back();
  // What two saves that died before the first layer's have left.
  for (const char* orphan : {"checkpoint_000007", "checkpoint_000008"}) {
    std::filesystem::copy(
        second + "/" + named,
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
  EXPECT_EQ(after[0], named);
  EXPECT_EQ(after[1], "checkpoint_000002");
}

TEST(TrainingResumeTest, OtherDataIsNoticed) {
  // A source of `left` batches after the skipped ones; skip() says `Count`.
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
    train(first, folder / "run", {.callbacks = {stop_after(stopped_after)}});
    fit([&] { return source; },
        second.train_step(),
        {.checkpoint = std::make_shared<Checkpoint>(
             folder / "run", second.model.ptr(), second.optimizer)});
  };
  const char* message = "made after 3 batches of epoch 0, but the source has";
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
  // The first epoch is the best.
  void run(int64_t stopped_after, const std::string& best) {
    ClickRun clicks;
    const auto batches = click_batches(4, 1);
    train(
        clicks,
        folder_ / "run",
        {.epochs = 3,
         .callbacks = {
             stop_after(stopped_after),
             std::make_shared<EarlyStopping>(EarlyStoppingOptions{
                 .monitor = "loss",
                 .patience = 9,
                 .min_delta = 1e9,
                 .restore_best = clicks.model.ptr(),
                 .directory = best})}});
  }
  TemporaryFolder folder_;
};

TEST_F(BestOnDiskTest, AResumeNeedsTheDirectoryOfItsBestEpoch) {
  run(5, folder_ / "best");
  EXPECT_VALUE_ERROR(
      run(-1, folder_ / "other"),
      "has no best weights, but the best are those");
  ClickRun other;
  const auto batches = click_batches(4, 2);
  fit(batches,
      other.train_step(),
      {.callbacks = {std::make_shared<EarlyStopping>(EarlyStoppingOptions{
           .monitor = "loss",
           .restore_best = other.model.ptr(),
           .directory = folder_ / "anothers"})}});
  EXPECT_VALUE_ERROR(
      run(-1, folder_ / "anothers"), "has the weights of epoch 0");
  run(-1, folder_ / "best");
}

TEST_F(BestOnDiskTest, OneThatIsGoneAtTheEndIsAnError) {
  ClickRun clicks;
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [&](Training& training) {
    if (training.progress().epoch == 1) {
      std::filesystem::remove_all(folder_ / "best");
    }
  };
  EXPECT_VALUE_ERROR(
      fit(click_batches(2, 1),
          clicks.train_step(),
          {.epochs = 2,
           .callbacks =
               {hooks,
                std::make_shared<EarlyStopping>(EarlyStoppingOptions{
                    .monitor = "loss",
                    .patience = 9,
                    .min_delta = 1e9,
                    .restore_best = clicks.model.ptr(),
                    .directory = folder_ / "best"})}}),
      "has no best weights");
}

TEST_F(BestOnDiskTest, TheCheckpointsDirectoryIsRefused) {
  EXPECT_VALUE_ERROR(run(-1, folder_ / "run"), "would both save into");
  EXPECT_VALUE_ERROR(run(-1, folder_ / "x/../run/"), "would both save into");
  EXPECT_TRUE(list_checkpoints(folder_ / "run").empty());
}

}  // namespace resume_test
}  // namespace tessera::training
