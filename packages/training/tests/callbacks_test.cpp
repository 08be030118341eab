// SPDX-License-Identifier: Apache-2.0
// The output of callbacks: progress bars, history files and learning curves.
#include <tessera/common/json_text.h>
#include <tessera/training/early_stopping.h>
#include <tessera/training/history_files.h>
#include <tessera/training/learning_curves.h>
#include <tessera/training/progress_bar.h>

#include "packages/training/src/display_text.h"
#include "packages/training/tests/training_fixture.h"
#include "tests/grouping_locale.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <regex>

namespace tessera::training::callbacks_test {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

History train(Callbacks callbacks, int64_t epochs = 2) {
  return fit_losses(
      {1, 2, 3}, {.epochs = epochs, .callbacks = std::move(callbacks)});
}

ProgressBarOptions redrawn_on(std::FILE* stream) {
  return {
      .stream = stream,
      .style = ProgressBarOptions::Style::kRedrawn,
      .interval = 0.0};
}

// Returns what `print` writes to a stream.
std::string printed(const std::function<void(std::FILE*)>& print) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* stream = ::open_memstream(&text, &size);
  print(stream);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

int64_t count(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t position = text.find(part); position != std::string::npos;
       position = text.find(part, position + 1)) {
    ++found;
  }
  return found;
}

void expect_count(
    const std::string& text,
    const std::string& part,
    int64_t expected) {
  EXPECT_EQ(count(text, part), expected) << part << " in\n" << text;
}

TEST(ProgressBarTest, PrintsALinePerEpochIfItCannotRedraw) {
  const std::string text = printed([](std::FILE* stream) {
    train({ProgressBar({.stream = stream, .interval = 0.0})});
  });
  expect_count(text, "\n", 2);
  expect_count(text, "\r", 0);
  EXPECT_TRUE(std::regex_search(
      text, std::regex("^epoch 1/2  3 steps  [0-9:]+  ETA [0-9:]+  ")))
      << text;
  expect_count(text, "examples/s  loss 2.000\n", 2);
}

TEST(ProgressBarTest, PrintsLinesDuringALongEpoch) {
  const std::string text = printed([](std::FILE* stream) {
    train({ProgressBar({.stream = stream, .plain_interval = 0.0})});
  });
  expect_count(text, "\n", 8);
  expect_count(text, "\r", 0);
  EXPECT_EQ(
      text.find("epoch 1/2  [========>...............]  1/3  ETA 0:00  "), 0U)
      << text;
}

TEST(ProgressBarTest, RedrawsItsLineAndKeepsTheLastOneOfAnEpoch) {
  const std::string text = printed(
      [](std::FILE* stream) { train({ProgressBar(redrawn_on(stream))}); });
  expect_count(text, "\n", 2);
  expect_count(text, "\r", 8);
  expect_count(text, "epoch 2/2  [========>...............]  1/3  ETA", 1);
  expect_count(text, "epoch 2/2  [========================]  3/3  ETA", 1);
}

TEST(ProgressBarTest, CountsTheExamplesOfItsTraining) {
  const auto bar = std::make_shared<ProgressBar>(
      ProgressBarOptions{.plain_interval = 1000.0});
  EXPECT_EQ(bar->examples(), 0);
  train({bar});
  EXPECT_EQ(bar->examples(), 2 * 3 * 4);
  train({bar});
  EXPECT_EQ(bar->examples(), 2 * 3 * 4);
}

TEST(ProgressBarTest, WorksWithoutFitAndWithoutANumberOfSteps) {
  const std::string text = printed([](std::FILE* stream) {
    ProgressBar bar(redrawn_on(stream));
    bar.show(
        {.epochs = 12, .step_in_epoch = 1, .step = 1},
        {{"loss", 0.123456}, {"auc", kNan}});
  });
  EXPECT_EQ(text.find("\repoch  1/12  step 1  "), 0U) << text;
  expect_count(text, "steps/s  loss 0.1235  auc nan", 1);
  expect_count(text, "ETA", 0);
  EXPECT_EQ(text.back(), '\n');  // the destructor ends the line
}

TEST(ProgressBarTest, DrawsAnyNumberOfSteps) {
  constexpr int64_t kLeast = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  const std::string none = "[>.......................]";
  const std::string all = "[========================]";
  for (const auto& [done, expected] :
       {std::pair{int64_t{-1}, none},
        {kLeast, none},
        {20, all},
        {kMost, all}}) {
    const std::string text = printed([&](std::FILE* stream) {
      ProgressBar bar(redrawn_on(stream));
      bar.show(
          {.epochs = 2,
           .steps_per_epoch = 10,
           .step_in_epoch = done,
           .step = 3},
          {});
    });
    expect_count(text, expected, 1);
  }
  EXPECT_VALUE_ERROR(
      ProgressBar({.stream = nullptr}), "[ProgressBar] stream must be");
  EXPECT_VALUE_ERROR(
      ProgressBar({.interval = -1.0}),
      "[ProgressBar] interval must be a number of seconds >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      ProgressBar({.plain_interval = kNan}), "plain_interval must be");
}

// A terminal of some columns, which the test reads.
class Terminal {
 public:
  explicit Terminal(int columns) : columns_(columns) {
    master_ = ::posix_openpt(O_RDWR | O_NOCTTY);
    ::grantpt(master_);
    ::unlockpt(master_);
    const int slave = ::open(::ptsname(master_), O_RDWR | O_NOCTTY);
    termios settings{};
    ::tcgetattr(slave, &settings);
    ::cfmakeraw(&settings);
    ::tcsetattr(slave, TCSANOW, &settings);
    resize(columns);
    stream_ = ::fdopen(slave, "w");
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ~Terminal() {
    ::close(master_);
  }

  std::FILE* stream() const {
    return stream_;
  }
  void resize(int columns) const {
    winsize size{};
    size.ws_row = 24;
    size.ws_col = static_cast<unsigned short>(columns);
    ::ioctl(master_, TIOCSWINSZ, &size);
  }

  // Closes the stream, and returns the lines that stay on the screen.
  Texts lines() {
    std::fclose(stream_);
    std::string text;
    std::string part(4096, ' ');
    for (ssize_t size = 0;
         (size = ::read(master_, part.data(), part.size())) > 0;) {
      text.append(part, 0, static_cast<size_t>(size));
    }
    text = std::regex_replace(text, std::regex("\xe2\x80\xa6"), "~");
    Texts screen(1);
    size_t column = 0;
    for (const char character : text) {
      if (character == '\r') {
        column = 0;
      } else if (character == '\n') {
        screen.emplace_back();
        column = 0;
      } else {
        std::string& line = screen.back();
        line.resize(std::max(line.size(), column + 1), ' ');
        line[column++] = character;
        EXPECT_LT(column, static_cast<size_t>(columns_)) << "the line wraps";
      }
    }
    EXPECT_EQ(screen.back(), "");
    screen.pop_back();
    for (std::string& line : screen) {
      line.erase(line.find_last_not_of(' ') + 1);
    }
    return screen;
  }

 private:
  int columns_;
  int master_ = -1;
  std::FILE* stream_ = nullptr;
};

// Three epochs of a loop with many values.
Texts shown_on(Terminal& terminal) {
  {
    ProgressBar bar({.stream = terminal.stream(), .interval = 0.0});
    Progress progress{.epochs = 10, .steps_per_epoch = 2};
    const std::map<std::string, std::vector<double>> values{
        {"loss", {0.69, 12.34, 0.05}},
        {"auc", {0.5, 0.81234, 0.99}},
        {"val_loss", {0.7, 0.5, 0.041}},
        {"val_auc", {0.49, 0.8, 0.9996}},
        {"learning_rate", {1e-3, 5e-4, 2.5e-4}}};
    for (; progress.epoch < 3; ++progress.epoch) {
      progress.step_in_epoch = 0;
      while (progress.step_in_epoch < 2) {
        ++progress.step;
        ++progress.step_in_epoch;
        progress.examples += 10;
        // The speed is below 10,000 examples/s, however fast the machine is.
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
        bar.show(progress, {{"loss", 0.5}});
      }
      Logs logs;
      for (const char* name :
           {"loss", "auc", "val_loss", "val_auc", "learning_rate"}) {
        logs.set(name, values.at(name)[progress.epoch]);
      }
      bar.end_epoch(progress, logs);
    }
  }
  return terminal.lines();
}

TEST(ProgressBarTest, FitsTheWidthOfATerminal) {
  for (
      const auto& [columns, pattern] : std::map<int, std::string>{
          {20, "epoch  1/10 ~"},
          {40, "epoch  1/10  loss 0\\.6900  auc 0\\.5000 ~"},
          {80,
           "epoch  1/10 +[0-9:]+  loss 0\\.6900  auc 0\\.5000  val_loss "
           "0\\.7000  val_auc 0\\.4900 ~|epoch  1/10  loss 0\\.6900.*"},
          {200,
           "epoch  1/10  2 steps +[0-9:]+  ETA +[0-9:]+ +[0-9,]+ examples/s  loss "
           "0\\.6900  auc 0\\.5000  val_loss 0\\.7000  val_auc "
           "0\\.4900  learning_rate 0\\.001000"}}) {
    SCOPED_TRACE(columns);
    Terminal terminal(columns);
    const Texts lines = shown_on(terminal);
    ASSERT_EQ(lines.size(), 3);
    EXPECT_TRUE(std::regex_match(lines[0], std::regex(pattern))) << lines[0];
    for (size_t epoch = 0; epoch < lines.size(); ++epoch) {
      EXPECT_EQ(
          lines[epoch].find("epoch  " + std::to_string(epoch + 1) + "/10"), 0);
    }
    // The names of columns are below each other.
    for (const char* name : {"loss ", "auc ", "val_loss ", "val_auc "}) {
      EXPECT_EQ(lines[0].find(name), lines[1].find(name)) << lines[0] << "\n"
                                                          << lines[1];
    }
  }
}

TEST(ProgressBarTest, FollowsAChangeOfTheWidth) {
  Terminal terminal(200);
  {
    ProgressBar bar({.stream = terminal.stream(), .interval = 0.0});
    Progress progress{
        .epochs = 2, .steps_per_epoch = 9, .step_in_epoch = 1, .step = 1};
    const Logs logs{{"loss", 0.5}, {"another_value", 0.25}};
    bar.show(progress, logs);
    terminal.resize(30);
    bar.end_epoch(progress, logs);
  }
  const Texts lines = terminal.lines();
  ASSERT_EQ(lines.size(), 1);
  EXPECT_EQ(lines[0].substr(0, 29).find("epoch 1/2  loss 0.5000 ~"), 0)
      << lines[0];
}

TEST(ProgressBarTest, CutsALongReasonToTheWidth) {
  Terminal terminal(40);
  const auto hooks = std::make_shared<Hooks>();
  hooks->epoch_end = [](Training& training) {
    training.stop(std::string(100, 'x'));
  };
  train({ProgressBar({.stream = terminal.stream()}), hooks}, 3);
  const Texts lines = terminal.lines();
  ASSERT_EQ(lines.size(), 2);
  EXPECT_EQ(lines[1], "stopped: " + std::string(29, 'x') + "~");
}

TEST(ProgressBarTest, AFileHasWholeLines) {
  const std::string text = printed([](std::FILE* stream) {
    ProgressBar bar({.stream = stream});
    Logs logs;
    for (int i = 0; i < 40; ++i) {
      logs.set("value_" + std::to_string(i), i);
    }
    bar.end_epoch({.step_in_epoch = 1, .step = 1}, logs);
  });
  expect_count(text, "  value_39 39.00\n", 1);
}

TEST(ProgressBarTest, AlignsNamesOfAnyScript) {
  const std::string text = printed([](std::FILE* stream) {
    ProgressBar bar({.stream = stream});
    for (const double value : {0.5, 12345.0}) {
      bar.end_epoch(
          {.epochs = 2, .step_in_epoch = 1, .step = 1},
          {{"准确率", value}, {"two\nlines", 0.5}, {"bad \xff", 0.5}});
    }
  });
  expect_count(text, "\n", 2);
  expect_count(text, "准确率 0.5000  two lines 0.5000", 1);
  expect_count(
      text, "准确率 1.234e+04  two lines 0.5000  bad \xef\xbf\xbd 0", 1);
}

TEST(DisplayTextTest, CountsAndCutsColumns) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("loss"), 4);
  EXPECT_EQ(display_width("准确率"), 6);
  EXPECT_EQ(display_width("👍"), 2);
  EXPECT_EQ(display_width("مرحبا"), 5);
  EXPECT_EQ(cut_to_width("abcdef", 6), "abcdef");
  EXPECT_EQ(cut_to_width("abcdef", 5), "abcd…");
  EXPECT_EQ(cut_to_width("准确率", 5), "准确…");
  EXPECT_EQ(cut_to_width("准确率", 4), "准…");
  EXPECT_EQ(cut_to_width("abc", 1), "…");
  EXPECT_EQ(
      display_text(std::string("a\0\x1b\tb\n\xffz", 8)),
      "a\xef\xbf\xbd\xef\xbf\xbd b \xef\xbf\xbdz");
  EXPECT_EQ(display_text("\xef\xbf\xbf"), "\xef\xbf\xbd");  // U+FFFF
  EXPECT_EQ(display_text("\xed\xa0\x80").find("\xed"), std::string::npos);
}

// Early stopping that restores the second of five epochs.
struct Restored {
  std::string text;
  History history;
};

Restored train_and_restore(int64_t patience) {
  const std::vector<double> losses{0.5, 0.123456, 0.3, 0.2, 0.4};
  const auto model = std::make_shared<torch::nn::LinearImpl>(1, 1);
  Restored result;
  result.text = printed([&](std::FILE* stream) {
    result.history =
        fit([&](int64_t epoch) { return std::vector<double>{losses[epoch]}; },
            own_loss,
            {.epochs = 5,
             .model = model,
             .callbacks = {
                 ProgressBar({.stream = stream}),
                 EarlyStopping(
                     {.monitor = "loss",
                      .patience = patience,
                      .restore_best = model})}});
  });
  return result;
}

TEST(ProgressBarTest, SaysWhichEpochWasRestored) {
  const Restored stopped = train_and_restore(2);
  const std::string reason =
      "loss has not improved for 2 epochs, restored epoch 2 (loss 0.1235)";
  EXPECT_EQ(stopped.history.stop_reason, reason);
  expect_count(stopped.text, "stopped: " + reason + "\n", 1);
  expect_count(stopped.text, "restored", 1);
  expect_count(stopped.text, "\n", 4 + 1);
  const Restored whole = train_and_restore(9);
  EXPECT_EQ(whole.history.stop_reason, "");
  expect_count(whole.text, "\nrestored epoch 2 (loss 0.1235)\n", 1);
  for (const History& history : {stopped.history, whole.history}) {
    ASSERT_TRUE(history.restored.has_value());
    EXPECT_EQ(history.restored->epoch, 1);
    EXPECT_EQ(history.restored->monitor, "loss");
    EXPECT_EQ(history.restored->value, 0.123456);
  }
}

TEST(HistoryTest, LogsEveryNthStep) {
  const auto run = [](int64_t every) {
    return fit_losses({1, 2, 3, 4}, {.epochs = 2, .log_every_steps = every});
  };
  const History history = run(3);
  EXPECT_EQ(
      to_csv(history, HistoryRows::kSteps),
      "step,epoch,loss\n3,0,2\n6,1,2.3333333333333335\n");
  EXPECT_EQ(run(1).steps.size(), 8);
  EXPECT_TRUE(run(0).steps.empty());
  EXPECT_EQ(to_csv(run(0), HistoryRows::kSteps), "step,epoch\n");
  EXPECT_VALUE_ERROR(run(-1), "[fit] log_every_steps must be >= 0, but got -1");
}

TEST(HistoryTest, StepsRoundTrip) {
  const History history{
      .epochs = {{0, {{"loss", 0.1}, {"val_loss", kNan}}}, {1, {{"auc", 0.5}}}},
      .stop_reason = "enough",
      .steps =
          {{0, {{"loss", 1.0 / 3.0}, {"step", 1.0}}, 10},
           {1, {{"a \"b\",\nc", -kInfinity}}, 20}},
      .restored =
          History::Restored{.epoch = 1, .monitor = "auc", .value = kNan}};
  const Json json = to_json(history);
  EXPECT_EQ(to_json(history_from_json(json)), json);
  const History read = history_from_json(json);
  ASSERT_EQ(read.steps.size(), 2);
  ASSERT_TRUE(read.restored.has_value());
  EXPECT_EQ(read.steps[0].logs["loss"], 1.0 / 3.0);
  EXPECT_EQ(read.restored->monitor, "auc");
  EXPECT_EQ(
      to_csv(history, HistoryRows::kSteps),
      "step,epoch,loss,step,\"a \"\"b\"\",\nc\"\n"
      "10,0,0.3333333333333333,1,\n20,1,,,-inf\n");
  EXPECT_EQ(history.step_names().size(), 3);
}

TEST(HistoryTest, ReadsFilesWrittenBeforeStepsExisted) {
  const History history = history_from_json(parse_json(
      R"({"epochs":[{"epoch":0,"loss":0.5}],"stop_reason":"SIGINT"})", "test"));
  EXPECT_TRUE(history.steps.empty());
  EXPECT_FALSE(history.restored.has_value());
  // A history without steps is written as before.
  EXPECT_EQ(
      to_json(history).dump(),
      R"({"epochs":[{"epoch":0,"loss":0.5}],"stop_reason":"SIGINT"})");
}

TEST(HistoryTest, NamesWhatIsWrongInAFile) {
  const auto read = [](const char* text) {
    history_from_json(parse_json(text, "test"));
  };
  EXPECT_VALUE_ERROR(read(R"({"epochs":[],"steps":{}})"), "History.steps");
  EXPECT_VALUE_ERROR(
      read(R"({"epochs":[],"steps":[{"step":1,"epoch":0}]})"), "logs");
  EXPECT_VALUE_ERROR(
      read(R"({"epochs":[],"steps":[{"step":1,"epoch":0,"logs":3}]})"),
      "an object");
  EXPECT_VALUE_ERROR(
      read(R"({"epochs":[],"restored":{"epoch":1,"value":2}})"), "monitor");
}

TEST(HistoryFilesTest, CanHaveTheSteps) {
  const TemporaryFolder folder;
  const std::string path = folder / "steps.csv";
  const auto hooks = stopping_after(2, "in the middle of the first epoch");
  fit_losses(
      {1, 2, 3},
      {.callbacks = {CsvHistory(path, HistoryRows::kSteps), hooks},
       .log_every_steps = 1});
  EXPECT_EQ(read_text(path), "step,epoch,loss\n1,0,1\n2,0,2\n");
}

TEST(HistoryFilesTest, HoldEveryEpochInFullPrecision) {
  const TemporaryFolder folder;
  const std::string csv = folder / "history.csv";
  const std::string json = folder / "history.json";
  const History history = train({CsvHistory(csv), JsonHistory(json)});
  EXPECT_EQ(read_text(csv), "epoch,loss\n0,2\n1,2\n");
  const auto parsed = Json::parse(read_text(json));
  EXPECT_EQ(to_json(history_from_json(parsed)), to_json(history));
}

TEST(HistoryFilesTest, RoundTripNonFiniteNumbers) {
  const History history{
      .epochs =
          {{0, {{"loss", 0.1}, {"a \"b\", c", kInfinity}}},
           {1, {{"loss", kNan}, {"late", -kInfinity}}}},
      .stop_reason = "SIGINT"};
  const auto json = to_json(history);
  EXPECT_EQ(to_json(history_from_json(json)), json);
  EXPECT_EQ(
      to_csv(history),
      "epoch,loss,\"a \"\"b\"\", c\",late\n0,0.1,inf,\n1,nan,,-inf\n");
  EXPECT_TRUE(std::isnan(history["late"][0]));
  EXPECT_VALUE_ERROR(
      history["auc"], "[History] 'auc' was not logged. Known: loss");
  EXPECT_VALUE_ERROR(
      history_from_json({{"epochs", {{{"epoch", 0}, {"loss", "x"}}}}}),
      "expected a number");
  EXPECT_VALUE_ERROR(history_from_json({{"epoch", 1}}), "epoch");
}

TEST(HistoryFilesTest, FailBeforeTrainingIfTheyCannotBeWritten) {
  const TemporaryFolder folder;
  const auto hooks = std::make_shared<Hooks>();
  int64_t steps = 0;
  hooks->step_end = [&](Training&) { ++steps; };
  const auto refuse = [&](std::shared_ptr<Callback> file, const char* text) {
    EXPECT_TORCH_ERROR(train({hooks, file}), text);
  };
  refuse(
      std::make_shared<CsvHistory>(folder / "nowhere/history.csv"),
      "[CsvHistory]");
  refuse(
      std::make_shared<LearningCurves>(folder / "nowhere/curves.svg"),
      "nowhere/curves.svg: the file can't be created: No such file or "
      "directory. Make its folder first");
  EXPECT_VALUE_ERROR(train({hooks, JsonHistory(folder / "")}), "folder");
  EXPECT_VALUE_ERROR(
      train(
          {hooks,
           LearningCurves(
               folder / "curves.svg",
               LearningCurvesOptions{.names = {"auc"}})}),
      "'auc' is not logged. Set LearningCurvesOptions::names to some of loss");
  EXPECT_VALUE_ERROR(CsvHistory(""), "expected the path");
  EXPECT_EQ(steps, 0);
}

TEST(HistoryFilesTest, KeepTheirContentUntilTheFirstEpochHasEnded) {
  const TemporaryFolder folder;
  const std::string path = folder / "history.csv";
  train({CsvHistory(path)});
  const std::string before = read_text(path);
  const auto hooks = std::make_shared<Hooks>();
  hooks->step_end = [](Training& training) { training.stop("at once"); };
  train({CsvHistory(path), hooks});
  EXPECT_EQ(read_text(path), before);
}

TEST(HistoryFilesTest, TwoCallbacksNeedTwoFiles) {
  const TemporaryFolder folder;
  EXPECT_VALUE_ERROR(
      train(
          {CsvHistory(folder / "history.csv"),
           JsonHistory(folder / "x/../history.csv")}),
      "[fit] two callbacks would both write to the file");
}

// Checks that tags are closed in order, attributes are quoted, and special
// characters are escaped.
void expect_xml(const std::string& xml) {
  Texts open;
  for (size_t i = 0; i < xml.size(); ++i) {
    if (xml[i] == '&') {
      const std::string entity = xml.substr(i, xml.find(';', i) - i + 1);
      EXPECT_TRUE(
          entity == "&amp;" || entity == "&lt;" || entity == "&gt;" ||
          entity == "&quot;")
          << entity;
    }
    if (xml[i] != '<') {
      continue;
    }
    const size_t end = xml.find('>', i);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = xml.substr(i + 1, end - i - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos);
    EXPECT_EQ(count(tag, "\"") % 2, 0) << tag;
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ(tag.substr(1), open.back());
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(tag.substr(0, tag.find(' ')));
    }
  }
  EXPECT_TRUE(open.empty());
  expect_count(xml, "\"nan", 0);
  expect_count(xml, "inf", 0);
}

History sample(int64_t epochs) {
  History history;
  for (int64_t i = 0; i < epochs; ++i) {
    const auto x = static_cast<double>(i);
    history.epochs.push_back(
        {i,
         {{"loss", 0.69 * std::exp(-x / 6.0) + 0.12},
          {"auc", 1.0 - 0.48 * std::exp(-x / 5.0)},
          {"val_loss", 0.7 * std::exp(-x / 7.0) + 0.15 + 0.002 * x},
          {"val_auc", 0.93 - 0.42 * std::exp(-x / 5.0)},
          {"learning_rate", 0.001 * std::exp(-x / 10.0)}}});
  }
  return history;
}

TEST(LearningCurvesTest, DrawsTrainingAndValidationInOnePanelPerMetric) {
  const std::string svg =
      learning_curves_svg(sample(20), {.title = "clicks <&> \"movies\""});
  expect_xml(svg);
  expect_count(svg, "<polyline", 5);
  expect_count(svg, ">training</text>", 3);
  expect_count(svg, ">validation</text>", 2);
  expect_count(svg, ">epoch</text>", 3);
  expect_count(svg, "clicks &lt;&amp;&gt; &quot;movies&quot;", 1);
  EXPECT_EQ(
      svg, learning_curves_svg(sample(20), {.title = "clicks <&> \"movies\""}));
  const std::string one = learning_curves_svg(sample(20), {.names = {"auc"}});
  expect_count(one, "<polyline", 2);
}

TEST(LearningCurvesTest, DrawsTheStepsOfOneEpoch) {
  History history = sample(1);
  for (int64_t i = 1; i <= 5000; ++i) {
    history.steps.push_back(
        {0, {{"loss", 1.0 / static_cast<double>(i)}}, i * 10});
  }
  const std::string svg = learning_curves_svg(history);
  expect_xml(svg);
  expect_count(svg, ">step</text>", 3);
  expect_count(svg, ">epoch</text>", 0);
  expect_count(svg, ">50k</text>", 3);
  expect_count(svg, "<polyline", 1);
  expect_count(svg, "best: ", 0);
  // 5,000 points are drawn as 1,000, and each other value as a dot.
  const size_t begin = svg.find("points=\"") + 8;
  const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
  expect_count(points, ",", 1000);
  expect_count(svg, "<circle", 4);
  expect_count(
      learning_curves_svg(
          history, {.axis = LearningCurvesOptions::Axis::kEpochs}),
      ">epoch</text>",
      3);
  // Once there are two epochs, the axis has epochs.
  history.epochs.push_back({1, {{"loss", 0.1}}});
  expect_count(learning_curves_svg(history), ">step</text>", 0);
  expect_count(
      learning_curves_svg(
          history, {.axis = LearningCurvesOptions::Axis::kSteps}),
      ">step</text>",
      3);
  // Before the first epoch ends, there are only steps.
  history.epochs.clear();
  expect_count(learning_curves_svg(history), ">step</text>", 1);
}

TEST(LearningCurvesTest, MarksTheBestEpoch) {
  History history = sample(20);
  history.epochs[11].logs.set("val_loss", 0.01);
  history.epochs[4].logs.set("val_loss", kNan);
  const std::string lowest = learning_curves_svg(history);
  expect_xml(lowest);
  expect_count(lowest, "\">best: 12</text>", 2 * 3);  // with outlines
  expect_count(
      learning_curves_svg(
          history, {.monitor = "val_auc", .better = Better::kHigher}),
      ">best: 20</text>",
      2 * 3);
  history.restored =
      History::Restored{.epoch = 6, .monitor = "x", .value = 0.0};
  expect_count(learning_curves_svg(history), ">best: 7</text>", 2 * 3);
  expect_count(learning_curves_svg(sample(1)), "best: ", 0);
  History of_nan = sample(3);
  for (History::Record& record : of_nan.epochs) {
    record.logs.set("val_loss", kNan);
  }
  expect_count(learning_curves_svg(of_nan), "best: ", 0);
  expect_count(learning_curves_svg(of_nan, {.monitor = "no"}), "best: ", 0);
  const TemporaryFolder folder;
  EXPECT_VALUE_ERROR(
      train({LearningCurves(
          folder / "curves.svg",
          LearningCurvesOptions{.monitor = "val_loss"})}),
      "Set LearningCurvesOptions::monitor to one of loss");
}

TEST(LearningCurvesTest, HoldsTitlesOfAnyScript) {
  for (const std::string& title : Texts{
           "点击率模型的学习曲线",
           "منحنيات التعلم",
           "Кривые & <обучения>",
           "clicks 🎬👩‍🔬👍",
           "e\xcc\x81"}) {
    const std::string svg = learning_curves_svg(sample(3), {.title = title});
    expect_xml(svg);
    std::string shown;
    for (const char letter : title) {
      shown += letter == '&' ? "&amp;"
          : letter == '<'    ? "&lt;"
          : letter == '>'    ? "&gt;"
                             : std::string(1, letter);
    }
    expect_count(svg, "font-weight=\"bold\">" + shown + "</text>", 1);
  }
  const std::string bad = learning_curves_svg(
      sample(3), {.title = std::string("a\0\x1b\xff\n", 5)});
  expect_count(bad, ">a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd </text>", 1);
  std::string words;
  for (int i = 0; i < 200; ++i) {
    words += "很长 ";
  }
  const std::string cut = learning_curves_svg(sample(3), {.title = words});
  expect_xml(cut);
  expect_count(cut, "…</text>", 1);
  EXPECT_LT(count(cut, "很长"), 40);
  expect_count(learning_curves_svg({{{0, {{words, 1.0}}}}}), "…</text>", 1);
}

TEST(LearningCurvesTest, DrawsExtremeValues) {
  const auto draw = [](std::vector<double> values) {
    History history;
    for (size_t i = 0; i < values.size(); ++i) {
      history.epochs.push_back(
          {static_cast<int64_t>(i), {{"loss", values[i]}}});
    }
    std::string svg = learning_curves_svg(history);
    expect_xml(svg);
    return svg;
  };
  expect_xml(learning_curves_svg({}));
  expect_xml(learning_curves_svg(sample(1)));
  expect_count(draw({0.5}), "<circle", 1);
  expect_count(draw({1, 2, kNan, 3, kInfinity, 4, 5}), "<polyline", 2);
  draw({kNan, kNan});
  draw({0, 0, 0});
  draw({-1e300, 1e300});
  draw({-1.7e308, 1.7e308});
  draw({1e-310, 2e-310});
  draw({1.0, 1.0 + 1e-15});
  EXPECT_VALUE_ERROR(
      learning_curves_svg({}, {.width = 10}), "width must be in [200, 10000]");
}

TEST(LearningCurvesTest, DrawsEpochsThatAreEqualAsDoubles) {
  constexpr int64_t kLast = std::numeric_limits<int64_t>::max();
  for (const std::vector<int64_t>& epochs : std::vector<std::vector<int64_t>>{
           {kLast},
           {kLast - 1, kLast},
           {kLast - 5000, kLast - 2500, kLast},
           {(int64_t{1} << 53) - 2, int64_t{1} << 53, (int64_t{1} << 53) + 2},
           {0, kLast}}) {
    History history;
    for (const int64_t epoch : epochs) {
      history.epochs.push_back({epoch, {{"loss", 0.5}}});
    }
    const std::string svg = learning_curves_svg(history);
    expect_xml(svg);
    expect_count(svg, "nan", 0);
    EXPECT_LT(count(svg, "<text"), 30);
  }
}

TEST(HistoryTest, AGlobalLocaleDoesNotGroupTheDigitsOfFiles) {
  History history = sample(2);
  history.epochs[1].epoch = 1'234'567;
  history.epochs[1].logs = {{"loss", 1234.5}};
  const std::string svg = learning_curves_svg(history);
  const std::string csv = to_csv(history);
  const std::string json = to_json(history).dump();
  const GroupingLocale locale;
  EXPECT_EQ(learning_curves_svg(history), svg);
  EXPECT_EQ(to_csv(history), csv);
  EXPECT_EQ(to_json(history).dump(), json);
}

TEST(LearningCurvesTest, KeepsItsFileUpToDate) {
  const TemporaryFolder folder;
  const std::string path = folder / "curves.svg";
  const History history = train({LearningCurves(path)});
  EXPECT_EQ(read_text(path), learning_curves_svg(history));
  EXPECT_EQ(
      std::distance(
          std::filesystem::directory_iterator(folder / ""),
          std::filesystem::directory_iterator()),
      1);
}

}  // namespace tessera::training::callbacks_test
