// SPDX-License-Identifier: Apache-2.0
// The output of callbacks: progress bars, history files and learning curves.
#include <tessera/layers/training/fit.h>
#include <tessera/layers/training/history_files.h>
#include <tessera/layers/training/learning_curves.h>
#include <tessera/layers/training/progress_bar.h>

#include "tests/grouping_locale.h"
#include "tests/layers/training/training_fixture.h"
#include "tests/test_util.h"

#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <stdio.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <limits>
#include <regex>
#include <string>
#include <vector>

namespace tessera::training {
namespace callbacks_test {

using test::read_text;
using test::TemporaryFolder;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

History train(Callbacks callbacks, int64_t epochs = 2) {
  return fit(
      std::vector<double>{1, 2, 3},
      [](double batch) {
        return StepResult{
            .loss = at::tensor(batch, at::kDouble), .examples = 4};
      },
      {.epochs = epochs, .callbacks = std::move(callbacks)});
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

TEST(ProgressBarTest, PrintsALinePerEpochIfItCannotRedraw) {
  const std::string text = printed([](std::FILE* stream) {
    train({std::make_shared<ProgressBar>(
        ProgressBarOptions{.stream = stream, .interval = 0.0})});
  });
  EXPECT_EQ(count(text, "\n"), 2) << text;
  EXPECT_EQ(count(text, "\r"), 0) << text;
  EXPECT_TRUE(std::regex_search(
      text, std::regex("^epoch 1/2  3 steps  [0-9:]+  ETA [0-9:]+  ")))
      << text;
  EXPECT_EQ(count(text, "examples/s  loss 2\n"), 2) << text;
}

TEST(ProgressBarTest, PrintsLinesDuringALongEpoch) {
  const std::string text = printed([](std::FILE* stream) {
    train({std::make_shared<ProgressBar>(
        ProgressBarOptions{.stream = stream, .plain_interval = 0.0})});
  });
  EXPECT_EQ(count(text, "\n"), 8) << text;
  EXPECT_EQ(count(text, "\r"), 0) << text;
  EXPECT_EQ(
      text.find("epoch 1/2 [========>...............] 1/3  ETA 0:00  "), 0U)
      << text;
}

TEST(ProgressBarTest, RedrawsItsLineAndKeepsTheLastOneOfAnEpoch) {
  const std::string text = printed([](std::FILE* stream) {
    train({std::make_shared<ProgressBar>(ProgressBarOptions{
        .stream = stream,
        .style = ProgressBarOptions::Style::kRedrawn,
        .interval = 0.0})});
  });
  EXPECT_EQ(count(text, "\n"), 2) << text;
  EXPECT_EQ(count(text, "\r"), 8) << text;
  EXPECT_EQ(count(text, "epoch 2/2 [========>...............] 1/3  ETA"), 1)
      << text;
  EXPECT_EQ(count(text, "epoch 2/2 [========================] 3/3  ETA"), 1)
      << text;
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
    ProgressBar bar(
        {.stream = stream,
         .style = ProgressBarOptions::Style::kRedrawn,
         .interval = 0.0});
    bar.show(
        {.epochs = 12, .step_in_epoch = 1, .step = 1},
        {{"loss", 0.123456}, {"auc", kNan}});
  });
  EXPECT_EQ(text.find("\repoch  1/12  step 1  "), 0U) << text;
  EXPECT_EQ(count(text, "steps/s  loss 0.1235  auc nan"), 1) << text;
  EXPECT_EQ(count(text, "ETA"), 0) << text;
  EXPECT_EQ(text.back(), '\n');  // the destructor ends the line
}

TEST(ProgressBarTest, DrawsAnyNumberOfSteps) {
  for (const auto& [done, expected] :
       std::vector<std::pair<int64_t, std::string>>{
           {-1, "[>.......................]"},
           {std::numeric_limits<int64_t>::min(), "[>.......................]"},
           {20, "[========================]"},
           {std::numeric_limits<int64_t>::max(),
            "[========================]"}}) {
    const std::string text = printed([&](std::FILE* stream) {
      ProgressBar bar(
          {.stream = stream,
           .style = ProgressBarOptions::Style::kRedrawn,
           .interval = 0.0});
      bar.show(
          {.epochs = 2,
           .steps_per_epoch = 10,
           .step_in_epoch = done,
           .step = 3},
          {});
    });
    EXPECT_EQ(count(text, expected), 1) << text;
  }
  EXPECT_VALUE_ERROR(
      ProgressBar({.stream = nullptr}), "[ProgressBar] stream must be");
}

TEST(HistoryFilesTest, HoldEveryEpochInFullPrecision) {
  const TemporaryFolder folder;
  const std::string csv = folder / "history.csv";
  const std::string json = folder / "history.json";
  const History history = train(
      {std::make_shared<CsvHistory>(csv), std::make_shared<JsonHistory>(json)});
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
  const auto hooks = std::make_shared<test::Hooks>();
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
  EXPECT_VALUE_ERROR(
      train({hooks, std::make_shared<JsonHistory>(folder / "")}), "folder");
  EXPECT_VALUE_ERROR(
      train(
          {hooks,
           std::make_shared<LearningCurves>(
               folder / "curves.svg",
               LearningCurvesOptions{.names = {"auc"}})}),
      "'auc' is not logged. Set LearningCurvesOptions::names to some of loss");
  EXPECT_VALUE_ERROR(CsvHistory(""), "expected the path");
  EXPECT_EQ(steps, 0);
}

TEST(HistoryFilesTest, KeepTheirContentUntilTheFirstEpochHasEnded) {
  const TemporaryFolder folder;
  const std::string path = folder / "history.csv";
  train({std::make_shared<CsvHistory>(path)});
  const std::string before = read_text(path);
  const auto hooks = std::make_shared<test::Hooks>();
  hooks->step_end = [](Training& training) { training.stop("at once"); };
  train({std::make_shared<CsvHistory>(path), hooks});
  EXPECT_EQ(read_text(path), before);
}

// Checks that tags are closed in order, attributes are quoted, and special
// characters are escaped.
void expect_xml(const std::string& xml) {
  std::vector<std::string> open;
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
  EXPECT_EQ(count(xml, "\"nan"), 0);
  EXPECT_EQ(count(xml, "inf"), 0);
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
  EXPECT_EQ(count(svg, "<polyline"), 5);
  EXPECT_EQ(count(svg, ">training</text>"), 3);
  EXPECT_EQ(count(svg, ">validation</text>"), 2);
  EXPECT_EQ(count(svg, ">epoch</text>"), 3);
  EXPECT_EQ(count(svg, "clicks &lt;&amp;&gt; &quot;movies&quot;"), 1);
  EXPECT_EQ(
      svg, learning_curves_svg(sample(20), {.title = "clicks <&> \"movies\""}));
  const std::string one = learning_curves_svg(sample(20), {.names = {"auc"}});
  EXPECT_EQ(count(one, "<polyline"), 2);
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
  EXPECT_EQ(count(draw({0.5}), "<circle"), 1);
  EXPECT_EQ(count(draw({1, 2, kNan, 3, kInfinity, 4, 5}), "<polyline"), 2);
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
    EXPECT_EQ(count(svg, "nan"), 0);
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
  const test::GroupingLocale locale;
  EXPECT_EQ(learning_curves_svg(history), svg);
  EXPECT_EQ(to_csv(history), csv);
  EXPECT_EQ(to_json(history).dump(), json);
}

TEST(LearningCurvesTest, KeepsItsFileUpToDate) {
  const TemporaryFolder folder;
  const std::string path = folder / "curves.svg";
  const History history = train({std::make_shared<LearningCurves>(path)});
  EXPECT_EQ(read_text(path), learning_curves_svg(history));
  EXPECT_EQ(
      std::distance(
          std::filesystem::directory_iterator(folder / ""),
          std::filesystem::directory_iterator()),
      1);
}

}  // namespace callbacks_test
}  // namespace tessera::training
