// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/profile.h>

#include <tessera/common/json_value.h>
#include <tessera/common/profile_scope.h>
#include <tessera/data/criteo_reader.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/layers/prefetch.h>

#include "packages/training/tests/training_fixture.h"

#include <ATen/record_function.h>

#include <regex>

namespace tessera::training::profile_test {

constexpr bool kForeground = false;
constexpr bool kBackground = true;

// Trains two steps, each of which calls `work`.
void train(
    const std::shared_ptr<Profile>& profile,
    const std::function<void()>& work) {
  fit(std::vector<double>{1, 2},
      [&](double batch) {
        work();
        return own_loss(batch);
      },
      {.callbacks = {profile}});
}

// Measures the time between its construction and seconds().
class Stopwatch {
 public:
  double seconds() const {
    return std::chrono::duration<double>(Clock::now() - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

// Sleeps, and returns for how many seconds.
double pause() {
  const Stopwatch stopwatch;
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return stopwatch.seconds();
}

Texts phases_of(const std::vector<Profile::Row>& rows, bool is_background) {
  Texts phases;
  for (const Profile::Row& row : rows) {
    if (row.is_background == is_background) {
      phases.push_back(row.phase);
    }
  }
  return phases;
}

// Returns a row without calls if there is no such phase.
Profile::Row row_of(
    const Profile& profile,
    const std::string& phase,
    bool is_background = kForeground) {
  for (const Profile::Row& row : profile.result()) {
    if (row.phase == phase && row.is_background == is_background) {
      return row;
    }
  }
  return {};
}

// Expects that the times of the phases add up to the time of the training.
void expect_consistent(const Profile& profile) {
  double seconds = 0.0;
  double shares = 0.0;
  for (const Profile::Row& row : profile.result()) {
    EXPECT_GE(row.seconds, 0.0) << row.phase;
    EXPECT_NEAR(
        row.microseconds_per_step * static_cast<double>(profile.steps()),
        1e6 * row.seconds,
        1e-3)
        << row.phase;
    if (row.is_background) {
      EXPECT_EQ(row.share, 0.0) << row.phase;
      continue;
    }
    EXPECT_NEAR(row.share, row.seconds / profile.seconds(), 1e-9) << row.phase;
    seconds += row.seconds;
    shares += row.share;
  }
  EXPECT_NEAR(seconds, profile.seconds(), 1e-9 * (1.0 + profile.seconds()));
  EXPECT_NEAR(shares, 1.0, 1e-9);
}

TEST(ProfileTest, ShowsAllPhasesOfATraining) {
  const auto batches = click_batches(5, 1);
  const TemporaryFolder folder;
  ClickRun run;
  const auto profile = std::make_shared<Profile>();
  const Stopwatch stopwatch;
  run.train(
      batches,
      {.epochs = 2,
       .model = run.model.ptr(),
       .metrics = {LogLoss(ScoreMetricOptions{.scores = ScoreKind::kLogits})},
       .validation = run.validation(batches),
       .callbacks = {profile},
       .checkpoint = run.checkpoint(folder / "checkpoints")});
  EXPECT_LE(profile->seconds(), stopwatch.seconds());
  EXPECT_EQ(profile->steps(), 10);
  expect_consistent(*profile);
  const std::vector<Profile::Row> rows = profile->result();
  EXPECT_EQ(
      phases_of(rows, kForeground),
      listed("next batch, checking ids, lookup, dense forward, dense backward, "
             "table update, optimizer, step, metrics, callbacks, checkpoint, "
             "validation, other"));
  EXPECT_EQ(phases_of(rows, kBackground), Texts());
  // The lookups of the validation belong to the validation.
  for (const std::string& phase :
       listed("checking ids, lookup, dense forward, dense backward, "
              "table update, optimizer, step")) {
    EXPECT_EQ(row_of(*profile, phase).calls, 10) << phase;
  }
  EXPECT_EQ(row_of(*profile, "next batch").calls, 12);  // and two ends
  EXPECT_EQ(row_of(*profile, "checkpoint").calls, 3);  // the first one looks
  EXPECT_EQ(row_of(*profile, "validation").calls, 2);
  EXPECT_EQ(row_of(*profile, "other").calls, 0);
  EXPECT_EQ(row_of(*profile, "lookup").scope, "tessera::lookup");
  EXPECT_EQ(row_of(*profile, "other").scope, "");
}

TEST(ProfileTest, AScopeDoesNotContainTheTimeOfScopesWithinIt) {
  const auto profile = std::make_shared<Profile>();
  double all = 0.0;
  double paused = 0.0;
  train(profile, [&] {
    const Stopwatch stopwatch;
    {
      const ProfileScope outer("outer");
      const ProfileScope inner("inner");
      paused += pause();
      const ProfileScope again("inner");  // within a scope of the same name
      paused += pause();
    }
    all += stopwatch.seconds();
  });
  const Profile::Row outer = row_of(*profile, "outer");
  const Profile::Row inner = row_of(*profile, "inner");
  EXPECT_EQ(outer.calls, 2);
  EXPECT_EQ(inner.calls, 4);
  EXPECT_EQ(inner.scope, "inner");
  EXPECT_GE(inner.seconds, paused);
  EXPECT_LE(inner.seconds + outer.seconds, all);
  expect_consistent(*profile);
  // A user's phases come after those of Tessera, in the order of their first ends.
  const Texts phases = phases_of(profile->result(), kForeground);
  ASSERT_GE(phases.size(), 3U);
  EXPECT_EQ(
      Texts(phases.end() - 3, phases.end()),
      (Texts{"inner", "outer", "other"}));
}

TEST(ProfileTest, CallbacksContainTheTimeOfScopesWithinThem) {
  const auto profile = std::make_shared<Profile>();
  const auto hooks = std::make_shared<Hooks>();
  double paused = 0.0;
  hooks->step_end = [&](Training&) {
    const ProfileScope scope("in a callback");
    const ProfileScope within("within it");
    paused += pause();
  };
  fit(std::vector<double>{1, 2}, own_loss, {.callbacks = {profile, hooks}});
  EXPECT_EQ(row_of(*profile, "in a callback").calls, 0);
  EXPECT_EQ(row_of(*profile, "within it").calls, 0);
  EXPECT_GE(row_of(*profile, "callbacks").seconds, paused);
  expect_consistent(*profile);
}

TEST(ProfileTest, TheWorkOfOtherThreadsIsInTheBackground) {
  const auto profile = std::make_shared<Profile>();
  train(profile, [] {
    const ProfileScope scope("work");
    std::thread([] {
      const ProfileScope scope("work");
      pause();
    }).join();
  });
  const Profile::Row foreground = row_of(*profile, "work");
  const Profile::Row background = row_of(*profile, "work", kBackground);
  EXPECT_EQ(foreground.calls, 2);
  EXPECT_EQ(background.calls, 2);
  EXPECT_GT(background.seconds, 0.0);
  EXPECT_GE(foreground.seconds, background.seconds);  // it waits for the thread
  EXPECT_TRUE(profile->result().back().is_background);
  expect_consistent(*profile);
  EXPECT_CONTAINS(profile->text(), "work (background)");
  EXPECT_CONTAINS(profile->text(), "\n(background): ");
}

// The batches of a click log, as a pipeline converts them.
class Clicks {
 public:
  Clicks(const std::string& path, const data::FeaturePipeline& pipeline)
      : reader_({.files = {path}, .batch_size = 8}), pipeline_(pipeline) {}

  std::optional<data::PipelineBatch> next() {
    const auto batch = reader_.next();
    if (!batch) {
      return std::nullopt;
    }
    return pipeline_.apply(data::to_columns(*batch));
  }

 private:
  data::CriteoReader reader_;
  data::FeaturePipeline pipeline_;
};

TEST(ProfileTest, ShowsReadingAndPipeline) {
  std::string line = "1";
  for (int64_t i = 0; i < data::kCriteoIntegers; ++i) {
    line += "\t7";
  }
  for (int64_t i = 0; i < data::kCriteoCategories; ++i) {
    line += "\tabc";
  }
  std::string text;
  for (int i = 0; i < 24; ++i) {
    text += line + "\n";
  }
  const TemporaryFolder folder;
  const std::string path = folder.write("clicks.txt", text);
  std::vector<data::PipelineOutput> outputs;
  outputs.push_back(
      {.name = "site",
       .columns = {"C1"},
       .transform = data::transforms::Hash{.num_bins = 10}});
  const data::FeaturePipeline pipeline(std::move(outputs));
  const auto profile = std::make_shared<Profile>();
  fit([&] { return Clicks(path, pipeline); },
      [](const data::PipelineBatch&) { return at::tensor(1.0, at::kDouble); },
      {.callbacks = {profile}});
  EXPECT_EQ(profile->steps(), 3);
  const std::vector<Profile::Row> rows = profile->result();
  EXPECT_EQ(
      phases_of(rows, kForeground),
      listed("next batch, reading, pipeline, step, metrics, callbacks, other"));
  EXPECT_EQ(
      phases_of(rows, kBackground), (Texts{"reading files", "parsing lines"}));
  EXPECT_EQ(
      row_of(*profile, "reading").calls, 4);  // the last one finds the end
  EXPECT_EQ(row_of(*profile, "pipeline").calls, 3);
  expect_consistent(*profile);
}

TEST(ProfileTest, ShowsLookupsInTheBackground) {
  const auto batches = click_batches(4, 1);
  ClickRun run;
  const TPUEmbedding embedding = run.model->embeddings[0];
  const auto features_of = [](const ClickBatch& batch) -> Features {
    return {{"user", batch.user}, {"movie", batch.movie}};
  };
  const auto profile = std::make_shared<Profile>();
  fit([&] { return prefetch(batches, embedding, features_of); },
      [](auto& item) {
        const at::Tensor loss =
            item.activations["user"].sum() + item.activations["movie"].sum();
        loss.backward();
        return loss.detach();
      },
      {.callbacks = {profile}});
  EXPECT_EQ(profile->steps(), 4);
  EXPECT_EQ(row_of(*profile, "lookup", kBackground).calls, 4);
  EXPECT_EQ(row_of(*profile, "lookup", kForeground).calls, 0);
  EXPECT_EQ(row_of(*profile, "waiting for lookups").calls, 4);
  EXPECT_EQ(row_of(*profile, "table update").calls, 4);
  expect_consistent(*profile);
}

TEST(ProfileTest, StopsAtTheEndAndAfterAnException) {
  ASSERT_FALSE(at::hasGlobalCallbacks());
  const auto profile = std::make_shared<Profile>();
  bool is_installed = false;
  train(profile, [&] { is_installed = at::hasGlobalCallbacks(); });
  EXPECT_TRUE(is_installed);
  EXPECT_FALSE(at::hasGlobalCallbacks());
  EXPECT_EQ(profile->steps(), 2);
  const double seconds = profile->seconds();
  pause();
  EXPECT_EQ(profile->seconds(), seconds);

  int64_t calls = 0;
  const auto throw_in_second_step = [&] { TORCH_CHECK(++calls != 2, "mine"); };
  EXPECT_THROW(train(profile, throw_in_second_step), c10::Error);
  EXPECT_FALSE(at::hasGlobalCallbacks());
  EXPECT_EQ(profile->steps(), 1);
  EXPECT_EQ(row_of(*profile, "next batch").calls, 2);
  expect_consistent(*profile);

  const auto hooks = std::make_shared<Hooks>();
  hooks->train_begin = [](Training&) { throw std::runtime_error("mine"); };
  EXPECT_THROW(
      fit(std::vector<double>{1}, own_loss, {.callbacks = {profile, hooks}}),
      std::runtime_error);
  EXPECT_FALSE(at::hasGlobalCallbacks());
  EXPECT_TRUE(profile->result().empty());
}

TEST(ProfileTest, RefusesASecondTrainingAtTheSameTime) {
  const std::string error =
      "[Profile] expected no other training with a Profile to run in this "
      "process, but one does.";
  const auto profile = std::make_shared<Profile>();
  const auto other = std::make_shared<Profile>();
  train(profile, [&] {
    EXPECT_TORCH_ERROR(train(other, [] {}), error);
    EXPECT_TORCH_ERROR(train(profile, [] {}), error);
  });
  EXPECT_EQ(profile->steps(), 2);
  EXPECT_EQ(other->steps(), 0);
  expect_consistent(*profile);
  const auto train_with_both = [&] {
    fit(std::vector<double>{1}, own_loss, {.callbacks = {profile, other}});
  };
  EXPECT_TORCH_ERROR(train_with_both(), error);
  EXPECT_FALSE(at::hasGlobalCallbacks());
  train(other, [] {});
  EXPECT_EQ(other->steps(), 2);
}

TEST(ProfileTest, IsEmptyUntilAStepHasEnded) {
  const auto profile = std::make_shared<Profile>();
  const auto expect_empty = [&] {
    EXPECT_TRUE(profile->result().empty());
    EXPECT_EQ(profile->text(), "no step has been profiled\n");
    EXPECT_EQ(profile->steps(), 0);
  };
  expect_empty();
  EXPECT_EQ(profile->seconds(), 0.0);
  bool is_first_step = true;
  train(profile, [&] {
    if (is_first_step) {
      expect_empty();
      EXPECT_GT(profile->seconds(), 0.0);
    } else {
      EXPECT_EQ(row_of(*profile, "step").calls, 1);
    }
    is_first_step = false;
  });
  fit(std::vector<double>{1}, own_loss, {.epochs = 0, .callbacks = {profile}});
  expect_empty();
}

TEST(ProfileTest, PrintsATableAndIsWrittenAsJson) {
  const auto profile = std::make_shared<Profile>();
  train(profile, [] { const ProfileScope scope("work"); });
  const std::string text = profile->text();
  const std::vector<Profile::Row> rows = profile->result();
  EXPECT_TRUE(std::regex_search(
      text,
      std::regex("^steps: 2, seconds: [0-9]+\\.[0-9]{3}\n"
                 "phase +seconds +share +calls +us per step\n")))
      << text;
  EXPECT_TRUE(std::regex_search(
      text,
      std::regex("\nwork +[0-9]+\\.[0-9]{3} +[0-9]+\\.[0-9]% +2 +[0-9]+\\.[0-9]"
                 "\n")))
      << text;
  EXPECT_EQ(
      std::count(text.begin(), text.end(), '\n'),
      static_cast<int64_t>(rows.size()) + 2)
      << text;
  const Json json = JsonValue<std::vector<Profile::Row>>::write(rows);
  EXPECT_EQ(json.at(0).at("phase"), "next batch");
  EXPECT_EQ(json.at(0).at("calls"), 3);
  EXPECT_EQ(JsonValue<std::vector<Profile::Row>>::read(json, "profile"), rows);
}

}  // namespace tessera::training::profile_test
