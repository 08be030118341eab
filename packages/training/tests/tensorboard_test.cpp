// SPDX-License-Identifier: Apache-2.0
// Event files, read back by a reader of their own. tests/test_tensorboard.py reads
// them with the tensorboard package.
#include <tessera/layers/embedding_engine_module.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/training/history_files.h>
#include <tessera/training/learning_rate_log.h>
#include <tessera/training/tensorboard.h>

#include "packages/training/src/event_file.h"
#include "packages/training/tests/event_reader.h"
#include "packages/training/tests/training_fixture.h"
#include "tests/small_files.h"

#include <fcntl.h>
#include <unistd.h>

namespace tessera::training::tensorboard_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

History train(Callbacks callbacks, std::vector<double> losses = {1, 2, 3, 4}) {
  return fit_losses(
      losses, {.epochs = 2, .callbacks = std::move(callbacks)}, 1);
}

TEST(EventFileTest, FramesRecordsWithMaskedChecksums) {
  ASSERT_EQ(crc32c("123456789"), 0xe3069283U);  // RFC 3720
  const std::string record = framed_record("123456789");
  ASSERT_EQ(record.size(), 8 + 4 + 9 + 4);
  EXPECT_EQ(little_endian<uint64_t>(record), 9);
  EXPECT_EQ(
      little_endian<uint32_t>(record.substr(8)),
      masked(crc32c(record.substr(0, 8))));
  EXPECT_EQ(record.substr(12, 9), "123456789");
  EXPECT_EQ(little_endian<uint32_t>(record.substr(21)), masked(0xe3069283U));
  for (const size_t size : {0, 1, 7, 8, 63, 64, 1000, 100'000}) {
    const std::string bytes(size, 'x');
    EXPECT_EQ(
        little_endian<uint32_t>(framed_record(bytes).substr(12 + size)),
        masked(crc32c(bytes)))
        << size;
  }
}

TEST(EventFileTest, ComesAfterTheOtherFilesOfItsRun) {
  const TemporaryFolder folder;
  folder.write("events.out.tfevents.9900000000.host.1.0", "");
  folder.write("events.out.tfevents.text", "");
  folder.write("notes.txt", "");
  const EventFile first(folder / "", 1, "[Test]");
  const EventFile second(folder / "", 1, "[Test]");
  EXPECT_EQ(
      std::filesystem::path(first.path()).filename(),
      "events.out.tfevents.9900000001.tessera");
  EXPECT_LT(first.path(), second.path());
  EXPECT_TORCH_ERROR(EventFile(folder / "nowhere", 1, "[Test]"), "[Test] /");
}

TEST(EventFileTest, BeginsWithItsVersionAndFirstStep) {
  const TemporaryFolder folder;
  std::string path;
  {
    EventFile file(folder / "", 300, "[Test]");
    path = file.path();
    file.add_scalar("a/b/c", std::numeric_limits<int64_t>::max(), 0.1);
    EXPECT_EQ(read_text(path), "");
  }
  const std::vector<Event> events = read_events(path);
  ASSERT_EQ(events.size(), 3);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_TRUE(events[1].is_start);
  EXPECT_EQ(events[1].step, 300);
  EXPECT_GT(events[1].wall_time, 1.7e9);
  EXPECT_EQ(events[2].tag, "a/b/c");
  EXPECT_EQ(events[2].step, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(events[2].scalar, 0.1F);
}

TEST(EventFileTest, KeepsValuesWhileTheDiskIsFull) {
  EventFile file(
      {FileDescriptor(::open("/dev/full", O_WRONLY)), "/dev/full"},
      1,
      "[Test]");
  file.add_scalar("loss", 1, 0.5);
  EXPECT_FALSE(file.try_flush());
  EXPECT_FALSE(file.try_flush());
  EXPECT_TORCH_ERROR(
      file.flush(),
      "[Test] /dev/full: the file can't be written: No space left on device");
}

TEST(ValueHistogramTest, CountsValuesBetweenItsLimits) {
  ValueHistogram histogram;
  EXPECT_TRUE(histogram.bins().empty());
  const std::vector<double> values{
      -1e30, -2.0, 0.0, 1e-20, 1e-12, 0.5, 0.51, 3.0, 1e19, 1e300};
  for (const double value : values) {
    histogram.add(value);
  }
  for (const double value : {kNan, kInfinity, -kInfinity}) {
    histogram.add(value);
  }
  EXPECT_EQ(histogram.count, 10);
  EXPECT_EQ(histogram.non_finite, 3);
  EXPECT_EQ(histogram.min, -1e30);
  EXPECT_EQ(histogram.max, 1e300);
  double low = -kInfinity;
  double total = 0.0;
  for (const auto& [limit, count] : histogram.bins()) {
    EXPECT_GT(limit, low);
    EXPECT_EQ(
        std::count_if(
            values.begin(),
            values.end(),
            [&](double value) { return value > low && value <= limit; }),
        count)
        << "in (" << low << ", " << limit << "]";
    total += count;
    low = limit;
  }
  EXPECT_EQ(total, 10.0);
}

TEST(TensorBoardTest, WritesStepsAndEpochsOfBothRuns) {
  const TemporaryFolder folder;
  ClickRun run;
  const auto batches = click_batches(5, 1);
  const History history = run.train(
      batches,
      {.epochs = 2,
       .model = run.model.ptr(),
       .metrics = {AUC()},
       .validation = run.validation(click_batches(2, 2)),
       .callbacks =
           {TensorBoard(
                {.directory = folder / "logs",
                 .every_steps = 3,
                 .step_values = [&] { return learning_rates(run.optimizer); }}),
            LearningRateLog(run.optimizer)},
       .log_every_steps = 3});
  const auto train = read_scalars(folder / "logs/train");
  const auto validation = read_scalars(folder / "logs/validation");
  Texts tags;
  for (const auto& [tag, steps] : train) {
    tags.push_back(tag);
  }
  EXPECT_EQ(
      tags,
      listed("epoch/auc, epoch/learning_rate, epoch/loss, step/learning_rate, "
             "step/loss"));
  const auto expected = [](const History& from, const std::string& name) {
    const std::vector<double> values = from[name];
    return Steps{
        {5, static_cast<float>(values[0])},
        {10, static_cast<float>(values[1])}};
  };
  for (const char* name : {"loss", "auc"}) {
    EXPECT_EQ(train.at("epoch/" + std::string(name)), expected(history, name));
    EXPECT_EQ(
        validation.at("epoch/" + std::string(name)),
        expected(history, "val_" + std::string(name)));
  }
  EXPECT_EQ(validation.size(), 2);
  ASSERT_EQ(history.steps.size(), 3);
  Steps losses, rates;
  for (const History::Record& record : history.steps) {
    losses[record.step] = static_cast<float>(record.logs["loss"]);
    rates[record.step] = 0.01F;
  }
  EXPECT_EQ(train.at("step/loss"), losses);
  EXPECT_EQ(train.at("step/learning_rate"), rates);
}

TEST(TensorBoardTest, AStepHasTheMeanLossSinceTheOneBefore) {
  const TemporaryFolder folder;
  train({TensorBoard({.directory = folder / "", .every_steps = 3})});
  const auto scalars = read_scalars(folder / "train");
  EXPECT_EQ(
      scalars.at("step/loss"), (Steps{{3, 2.0F}, {6, (4 + 1 + 2) / 3.0F}}));
  EXPECT_EQ(scalars.at("epoch/loss"), (Steps{{4, 2.5F}, {8, 2.5F}}));
  EXPECT_FALSE(std::filesystem::exists(folder / "validation"));
}

TEST(TensorBoardTest, EpochsAloneHaveNoSteps) {
  const TemporaryFolder folder;
  train({TensorBoard({.directory = folder / "", .every_steps = 0})});
  EXPECT_EQ(read_scalars(folder / "train").size(), 1);
}

TEST(TensorBoardTest, CountsNormsThatAreNotFinite) {
  const TemporaryFolder folder;
  ClickModel model;
  at::Tensor rows = at::full({20, 4}, 0.5);
  rows[3][1] = kNan;
  rows[7][0] = kInfinity;
  model->embeddings[0]->update_embedding_table("users", rows);
  model->embeddings[0]->update_embedding_table(
      "movies", at::full({10, 4}, kNan));
  train({TensorBoard(
      {.directory = folder / "",
       .histograms_of = model.ptr(),
       .histogram_epochs = 2})});
  const auto scalars = read_scalars(folder / "train");
  const std::string prefix = "row_norms/embedding_0/";
  EXPECT_EQ(scalars.at("non_finite/" + prefix + "users"), (Steps{{8, 2.0F}}));
  EXPECT_EQ(scalars.at("non_finite/" + prefix + "movies"), (Steps{{8, 10.0F}}));
  Texts tags;
  for (const Event& event : read_events(files_of(folder / "train").front())) {
    if (event.histogram) {
      tags.push_back(event.tag);
      EXPECT_EQ(event.step, 8);
      EXPECT_EQ(event.histogram->real(3), 18.0);
      EXPECT_EQ(event.histogram->real(1), 1.0);
      EXPECT_EQ(event.histogram->real(2), 1.0);
    }
  }
  EXPECT_EQ(tags, Texts{prefix + "users"});
}

TEST(TensorBoardTest, AnEngineModuleHasHistogramsOfItsTables) {
  const TemporaryFolder folder;
  const TablePtr users =
      make_table({.name = "users", .vocabulary_size = 6, .dim = 4});
  const TablePtr items = make_table(
      {.name = "items", .dim = 4, .keys = DynamicKeys{.capacity = 8}});
  EmbeddingEngineModule engine(EmbeddingEngineOptions{
      .features =
          {{"item", FeatureConfig{.table = items}},
           {"user", FeatureConfig{.table = users}}},
      .optimizer = optim::SGD{}});
  engine->update_embedding_table("users", at::full({6, 4}, 0.5));
  engine->update_embedding_table(
      "items", at::tensor({70, -1, 5}, at::kLong), at::full({3, 4}, 2.0));
  train(
      {TensorBoard({.directory = folder / "", .histograms_of = engine.ptr()})});
  std::map<std::string, std::vector<double>>
      norms;  // smallest, count, by epoch
  for (const Event& event : read_events(files_of(folder / "train").front())) {
    if (event.histogram) {
      norms[event.tag].push_back(event.histogram->real(1));
      norms[event.tag].push_back(event.histogram->real(3));
    }
  }
  EXPECT_EQ(
      norms,
      (std::map<std::string, std::vector<double>>{
          {"row_norms/items", {4, 3, 4, 3}},
          {"row_norms/users", {1, 6, 1, 6}}}));
}

TEST(TensorBoardTest, HistogramsHaveTheNumbersOfTheModel) {
  const TemporaryFolder folder;
  ClickRun run;
  run.train(
      click_batches(3, 1),
      {.model = run.model.ptr(),
       .callbacks = {TensorBoard(
           {.directory = folder / "", .histograms_of = run.model.ptr()})}});
  std::map<std::string, Message> histograms;
  for (const Event& event : read_events(files_of(folder / "train").front())) {
    if (event.histogram) {
      EXPECT_TRUE(histograms.emplace(event.tag, *event.histogram).second);
    }
  }
  const auto expect = [&](const std::string& tag,
                          const std::vector<double>& values) {
    SCOPED_TRACE(tag);
    ASSERT_TRUE(histograms.contains(tag));
    const Message& histogram = histograms.at(tag);
    double sum = 0.0;
    double squares = 0.0;
    for (const double value : values) {
      sum += value;
      squares += value * value;
    }
    EXPECT_NEAR(
        histogram.real(1),
        *std::min_element(values.begin(), values.end()),
        1e-6);
    EXPECT_NEAR(
        histogram.real(2),
        *std::max_element(values.begin(), values.end()),
        1e-6);
    EXPECT_EQ(histogram.real(3), static_cast<double>(values.size()));
    EXPECT_NEAR(histogram.real(4), sum, 1e-5);
    EXPECT_NEAR(histogram.real(5), squares, 1e-5);
    const std::string limits = histogram.text(6);
    const std::string counts = histogram.text(7);
    ASSERT_EQ(limits.size(), counts.size());
    double total = 0.0;
    for (size_t i = 0; i < counts.size(); i += 8) {
      total += little_endian<double>(std::string_view(counts).substr(i));
    }
    EXPECT_EQ(total, static_cast<double>(values.size()));
  };
  for (const char* table : {"users", "movies"}) {
    std::vector<double> norms;
    const at::Tensor rows =
        run.model->embeddings[0]->embedding_tables()[std::string(table)];
    for (int64_t row = 0; row < rows.size(0); ++row) {
      double squares = 0.0;
      for (int64_t i = 0; i < rows.size(1); ++i) {
        squares += std::pow(rows[row][i].item<double>(), 2);
      }
      norms.push_back(std::sqrt(squares));
    }
    expect("row_norms/embedding_0/" + std::string(table), norms);
  }
  for (const auto& item : run.model->tower->named_parameters()) {
    const at::Tensor gradient = item.value().grad().flatten();
    std::vector<double> values;
    for (int64_t i = 0; i < gradient.numel(); ++i) {
      values.push_back(gradient[i].item<double>());
    }
    expect("gradients/tower." + item.key(), values);
  }
  EXPECT_EQ(histograms.size(), 4);
}

// What a training that was resumed has logged, for each step once.
TEST(TensorBoardTest, ResumesInANewFile) {
  const TemporaryFolder folder;
  const auto batches = click_batches(5, 1);
  const auto run_in = [&](const std::string& name, int64_t fail_after) {
    ClickRun run;
    const auto hooks = dying_after(fail_after);
    run.train(
        batches,
        {.epochs = 3,
         .model = run.model.ptr(),
         .validation = run.validation(batches),
         .callbacks =
             {TensorBoard(
                  {.directory = folder / (name + "/logs"), .every_steps = 1}),
              hooks},
         .checkpoint = run.checkpoint(folder / (name + "/checkpoints"))});
  };
  run_in("whole", -1);
  EXPECT_THROW(run_in("parts", 8), std::runtime_error);
  // The steps 6 to 8 come after the checkpoint of the first epoch.
  EXPECT_EQ(read_scalars(folder / "parts/logs/train")["step/loss"].size(), 8);
  run_in("parts", -1);
  EXPECT_EQ(files_of(folder / "parts/logs/train").size(), 2);
  const auto first = read_events(files_of(folder / "parts/logs/train")[1]);
  EXPECT_EQ(first.at(1).step, 6);
  for (const char* part : {"/train", "/validation"}) {
    EXPECT_EQ(
        read_scalars(folder / ("parts/logs" + std::string(part))),
        read_scalars(folder / ("whole/logs" + std::string(part))));
  }
  // Nothing is left to train, so there is no new file.
  run_in("parts", -1);
  EXPECT_EQ(files_of(folder / "parts/logs/train").size(), 2);
}

TEST(TensorBoardTest, ALossSinceTheLastLoggedStepSurvivesAResume) {
  const TemporaryFolder folder;
  const auto run_in = [&](const std::string& name, int64_t fail_after) {
    ClickRun run;
    const auto hooks = dying_after(fail_after);
    run.train(
        click_batches(8, 1),
        {.callbacks =
             {TensorBoard(
                  {.directory = folder / (name + "/logs"), .every_steps = 4}),
              hooks},
         .checkpoint = run.checkpoint(
             folder / (name + "/checkpoints"), {.every_steps = 1})});
    return read_scalars(folder / (name + "/logs/train"));
  };
  const auto whole = run_in("whole", -1);
  // The checkpoint is that of step 6. The value of step 4 must be in a file by then.
  EXPECT_THROW(run_in("parts", 7), std::runtime_error);
  EXPECT_EQ(run_in("parts", -1), whole);
}

TEST(TensorBoardTest, ANewTrainingReplacesTheOneBefore) {
  const TemporaryFolder folder;
  const auto board = std::make_shared<TensorBoard>(
      TensorBoardOptions{.directory = folder / "", .every_steps = 1});
  train({board}, {9, 9, 9, 9, 9, 9});
  train({board}, {1, 2});
  EXPECT_EQ(files_of(folder / "train").size(), 2);
  EXPECT_EQ(
      read_scalars(folder / "train").at("step/loss"),
      (Steps{{1, 1.0F}, {2, 2.0F}, {3, 1.0F}, {4, 2.0F}}));
}

TEST(TensorBoardTest, SkipsARecordThatAProcessDidNotFinish) {
  const TemporaryFolder folder;
  train({TensorBoard({.directory = folder / ""})});
  const std::string path = files_of(folder / "train").front();
  const size_t complete = read_events(path).size();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 3);
  EXPECT_EQ(read_events(path).size(), complete - 1);
}

TEST(TensorBoardTest, WritesStepsWhileAnEpochRuns) {
  for (const double seconds : {0.0, 1000.0}) {
    const TemporaryFolder folder;
    size_t events = 0;
    const auto hooks = hook_after(3, [&](Training&) {
      events = read_events(files_of(folder / "train").front()).size();
    });
    train(
        {TensorBoard(
             {.directory = folder / "",
              .every_steps = 1,
              .flush_seconds = seconds}),
         hooks});
    EXPECT_EQ(events, seconds == 0.0 ? 2 + 3 : 0);
  }
}

TEST(TensorBoardTest, WritesNumbersThatAreNotFinite) {
  const TemporaryFolder folder;
  int64_t calls = 0;
  const std::vector<double> values{0, kNan, kInfinity, -kInfinity, 1e300};
  train({TensorBoard(
      {.directory = folder / "", .every_steps = 1, .step_values = [&] {
         return Logs{{"a/b//c", values[std::min<int64_t>(calls++, 4)]}};
       }})});
  const Steps steps = read_scalars(folder / "train").at("step/a/b//c");
  EXPECT_TRUE(std::isnan(steps.at(1)));
  EXPECT_EQ(steps.at(2), kInfinity);
  EXPECT_EQ(steps.at(3), -kInfinity);
  EXPECT_EQ(steps.at(4), kInfinity);  // above the largest float32
}

TEST(TensorBoardTest, FailsBeforeTrainingIfItCannotWork) {
  const TemporaryFolder folder;
  int64_t steps = 0;
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [&](Training&) { ++steps; };
  const auto run = [&](TensorBoardOptions options) {
    train({hooks, std::make_shared<TensorBoard>(std::move(options))});
  };
  const std::string file = folder.write("file", "text");
  EXPECT_VALUE_ERROR(
      run({.directory = file}), "/file/train: expected a folder");
  EXPECT_VALUE_ERROR(
      run({.directory = file + "/logs"}),
      "expected a folder, but this is a file");
  EXPECT_VALUE_ERROR(run({.directory = "/dev/null"}), "expected a folder");
  EXPECT_TORCH_ERROR(
      run({.directory = "/proc/tessera"}),
      "[TensorBoard] /proc/tessera/train: the folder can't be created: ");
  EXPECT_TORCH_ERROR(
      run({.directory = folder / std::string(300, 'x')}),
      "the folder can't be created: File name too long.");
  if (::geteuid() != 0) {  // root may write everywhere
    const std::string locked = folder / "locked";
    std::filesystem::create_directories(locked + "/train");
    std::filesystem::permissions(
        locked + "/train", std::filesystem::perms::owner_read);
    EXPECT_TORCH_ERROR(run({.directory = locked}), "Permission denied");
  }
  const std::string logs = folder / "logs";
  expect_refusals<std::string>(
      {{"", "must have a name in UTF-8, but got ''"},
       {"\xff", "must have a name in UTF-8"},
       {"loss", "step_values returned 'loss', which is logged already"}},
      [&](const std::string& name) {
        run({.directory = logs, .step_values = [name] {
               return Logs{{name, 1.0}};
             }});
      });
  EXPECT_VALUE_ERROR(TensorBoard({}), "expected the path of a folder");
  EXPECT_VALUE_ERROR(
      TensorBoard({.directory = std::string("a\0b", 3)}), "zero byte");
  EXPECT_VALUE_ERROR(
      TensorBoard({.directory = logs, .every_steps = -1}),
      "every_steps must be >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      TensorBoard({.directory = logs, .histogram_epochs = 0}),
      "histogram_epochs must be >= 1, but got 0");
  EXPECT_VALUE_ERROR(
      TensorBoard({.directory = logs, .flush_seconds = kNan}),
      "flush_seconds must be finite and >= 0");
  EXPECT_EQ(steps, 0);
  EXPECT_FALSE(std::filesystem::exists(logs));
}

TEST(TensorBoardTest, AFullDiskDoesNotLoseTheEpoch) {
  const TemporaryFolder folder;
  std::optional<SmallFiles> limit;
  auto hooks = hook_after(
      2, [&](Training&) { limit.emplace(150); });  // in the middle of a record
  int64_t steps = 0;
  const auto run = [&] {
    const auto counter = std::make_shared<Hooks>();
    counter->step_end = [&](Training&) { ++steps; };
    train(
        {hooks,
         TensorBoard(
             {.directory = folder / "",
              .every_steps = 1,
              .flush_seconds = 0.0}),
         counter});
  };
  EXPECT_TORCH_ERROR(run(), "the file can't be written: File too large");
  EXPECT_EQ(steps, 4);  // the whole epoch
  limit.reset();
  const std::string path = files_of(folder / "train").front();
  EXPECT_LE(std::filesystem::file_size(path), 150);
  EXPECT_EQ(read_events(path).size(), 3);
  hooks->step_end = [&](Training& training) {
    if (training.progress().step == 2) {
      limit.emplace(150);
    } else if (training.progress().step == 4) {
      limit.reset();  // the disk has space again
    }
  };
  run();
  EXPECT_EQ(read_scalars(folder / "train").at("step/loss").size(), 8);
}

// Writes a training for tests/test_tensorboard.py.
TEST(TensorBoardForPython, Write) {
  const char* folder = std::getenv("TESSERA_TENSORBOARD_OUT");
  if (folder == nullptr) {
    GTEST_SKIP() << "tests/test_tensorboard.py sets TESSERA_TENSORBOARD_OUT";
  }
  const std::string path(folder);
  ClickRun run;
  const auto batches = click_batches(40, 1);
  const auto train = [&](int64_t fail_after) {
    const auto hooks = dying_after(fail_after);
    run.train(
        batches,
        {.epochs = 12,
         .model = run.model.ptr(),
         .metrics = {AUC()},
         .validation = run.validation(click_batches(10, 2)),
         .callbacks =
             {LearningRateLog(run.optimizer, run.model->embeddings),
              TensorBoard(
                  {.directory = path + "/logs",
                   .every_steps = 5,
                   .step_values =
                       [&] {
                         return learning_rates(
                             run.optimizer, run.model->embeddings);
                       },
                   .histograms_of = run.model.ptr()}),
              JsonHistory(path + "/history.json"),
              hooks},
         .checkpoint = run.checkpoint(path + "/checkpoints"),
         .log_every_steps = 5});
  };
  // The steps 201 to 210 are logged twice.
  EXPECT_THROW(train(210), std::runtime_error);
  train(-1);
}

}  // namespace tessera::training::tensorboard_test
