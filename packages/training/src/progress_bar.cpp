// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/progress_bar.h>

#include "packages/training/src/display_text.h"
#include "src/common/check.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <tuple>
#include <utility>

namespace tessera::training {

namespace {

constexpr int64_t kBarWidth = 24;
constexpr const char* kSpeed = "speed";

// Formats 1234567 as "1,234,567".
std::string with_commas(double number) {
  return fmt::format("{}", fmt::group_digits(std::llrint(number)));
}

// Formats seconds as "0:07", "12:34" or "1:02:03".
std::string clock_time(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t hours = whole / 3600;
  const int64_t minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string bar(int64_t done, int64_t steps) {
  const double part = static_cast<double>(done) / static_cast<double>(steps);
  const auto filled =
      static_cast<int64_t>(std::clamp(part, 0.0, 1.0) * kBarWidth);
  std::string text(static_cast<size_t>(kBarWidth), '.');
  std::fill_n(text.begin(), filled, '=');
  if (filled < kBarWidth) {
    text[static_cast<size_t>(filled)] = '>';
  }
  return "[" + text + "]";
}

std::string spaces(int64_t count) {
  return std::string(static_cast<size_t>(std::max<int64_t>(0, count)), ' ');
}

std::string epoch_of(const Progress& progress) {
  const std::string epochs = std::to_string(progress.epochs);
  return fmt::format(
      "epoch {:>{}}/{}", progress.epoch + 1, epochs.size(), epochs);
}

}  // namespace

// A part of a line. If the line is too long, the parts with the highest `left_out` are left
// out first.
struct ProgressBar::Column {
  std::string text = {};
  int left_out = 0;
};

ProgressBar::ProgressBar(ProgressBarOptions options) : options_(options) {
  TESSERA_CHECK_VALUE(
      options_.stream != nullptr,
      "[ProgressBar] stream must be an open file, but is a null pointer. Pass stderr, for example.");
  const auto check_interval = [](const char* name, double seconds) {
    TESSERA_CHECK_VALUE(
        seconds >= 0.0,
        "[ProgressBar] {} must be a number of seconds >= 0, but got {}. Use 0 to draw after each step.",
        name,
        seconds);
  };
  check_interval("interval", options_.interval);
  check_interval("plain_interval", options_.plain_interval);
}

ProgressBar::ProgressBar(ProgressBar&& other) noexcept
    : Callback(other),
      options_(other.options_),
      begin_(other.begin_),
      drawn_(other.drawn_),
      first_(other.first_),
      last_examples_(other.last_examples_),
      steps_seen_(other.steps_seen_),
      drawn_width_(std::exchange(other.drawn_width_, 0)),
      widths_(std::move(other.widths_)) {}

ProgressBar::~ProgressBar() {
  if (drawn_width_ > 0) {
    std::fputc('\n', options_.stream);
  }
}

bool ProgressBar::is_redrawn() const {
  using Style = ProgressBarOptions::Style;
  return options_.style == Style::kRedrawn ||
      (options_.style == Style::kAutomatic &&
       ::isatty(::fileno(options_.stream)) == 1);
}

bool ProgressBar::is_due() const {
  const std::chrono::duration<double> since =
      Clock::now() - std::max(begin_, drawn_);
  return since.count() >=
      (is_redrawn() ? options_.interval : options_.plain_interval);
}

double ProgressBar::seconds() const {
  const std::chrono::duration<double> elapsed = Clock::now() - begin_;
  return elapsed.count();
}

// A loop without fit() has done one step when it calls show() for the first time.
void ProgressBar::record(const Progress& progress) {
  last_examples_ = progress.examples;
  if (!first_) {
    first_ = progress;
    first_->step = std::max<int64_t>(0, progress.step - 1);
    first_->examples = progress.step <= 1 ? 0 : progress.examples;
  }
}

std::string ProgressBar::speed(const Progress& progress) const {
  const double elapsed = seconds();
  const auto examples =
      static_cast<double>(progress.examples - first_->examples);
  const auto steps = static_cast<double>(progress.step - first_->step);
  if (!(elapsed > 0.0) || steps <= 0.0) {
    return "";
  }
  if (examples > 0.0) {
    return with_commas(examples / elapsed) + " examples/s";
  }
  const double speed = steps / elapsed;
  return (speed < 100.0 ? fmt::format("{:#.3g}", speed) : with_commas(speed)) +
      " steps/s";
}

std::string ProgressBar::time_left(const Progress& progress) const {
  const auto done = static_cast<double>(progress.step - first_->step);
  const auto steps_per_epoch =
      progress.steps_per_epoch ? progress.steps_per_epoch : steps_seen_;
  if (!steps_per_epoch || done <= 0.0) {
    return "";
  }
  const int64_t left = (progress.epochs - progress.epoch) * *steps_per_epoch -
      progress.step_in_epoch;
  const double seconds_left =
      seconds() / done * static_cast<double>(std::max<int64_t>(0, left));
  return "ETA " + clock_time(seconds_left);
}

// Pads the text to the width of the widest text that this column has had.
std::string ProgressBar::aligned(
    const std::string& column,
    const std::string& text) {
  int64_t& width = widths_[column];
  if (width == 0 && column == kSpeed) {
    // The speed of the first epochs often changes its number of digits.
    width = display_width("123,456 examples/s");
  }
  width = std::max(width, display_width(text));
  return spaces(width - display_width(text)) + text;
}

std::optional<int64_t> ProgressBar::line_limit() const {
  struct winsize size {};
  if (::ioctl(::fileno(options_.stream), TIOCGWINSZ, &size) != 0 ||
      size.ws_col <= 1) {
    return std::nullopt;
  }
  // A character in the last column would move the cursor of some terminals to the next
  // line, and '\r' can redraw only the current one.
  return size.ws_col - 1;
}

std::string ProgressBar::line_of(
    std::vector<Column> columns,
    const Logs& logs) {
  constexpr int kValue = 1;
  for (const auto& [name, value] : logs.entries()) {
    const std::string shown = display_text(name);
    columns.push_back(
        {shown + " " + aligned(shown + " ", fmt::format("{:#.4g}", value)),
         kValue});
  }
  const auto joined = [&] {
    std::string line;
    for (const Column& column : columns) {
      line += (line.empty() ? "" : "  ") + column.text;
    }
    return line;
  };
  const std::optional<int64_t> limit = line_limit();
  std::string line = joined();
  bool lacks_values = false;
  while (limit && columns.size() > 1 &&
         display_width(line) + (lacks_values ? 2 : 0) > *limit) {
    // If several columns have the same `left_out`, the last one is left out first.
    const auto next = std::max_element(
        columns.rbegin(),
        columns.rend() - 1,
        [](const Column& one, const Column& other) {
          return one.left_out < other.left_out;
        });
    lacks_values = lacks_values || next->left_out == kValue;
    columns.erase(std::next(next).base());
    line = joined();
  }
  line.erase(line.find_last_not_of(' ') + 1);
  line += lacks_values ? " \xe2\x80\xa6" : "";
  return line;
}

void ProgressBar::draw(std::string line, bool is_last) {
  const std::optional<int64_t> limit = line_limit();
  if (limit) {
    line = cut_to_width(line, *limit);
  }
  if (is_redrawn()) {
    const int64_t width = display_width(line);
    // Spaces overwrite the rest of a longer line.
    line +=
        spaces(std::min(drawn_width_, limit.value_or(drawn_width_)) - width);
    std::fputc('\r', options_.stream);
    drawn_width_ = is_last ? 0 : width;
  }
  if (is_last) {
    line += '\n';
  }
  std::fwrite(line.data(), 1, line.size(), options_.stream);
  std::fflush(options_.stream);
  drawn_ = Clock::now();
}

void ProgressBar::show(const Progress& progress, const Logs& logs) {
  record(progress);
  if (!is_due()) {
    return;
  }
  const auto steps =
      progress.steps_per_epoch ? progress.steps_per_epoch : steps_seen_;
  std::vector<Column> columns{{epoch_of(progress)}};
  if (steps && *steps > 0) {
    columns.push_back({bar(progress.step_in_epoch, *steps), 5});
    const std::string all = std::to_string(*steps);
    columns.push_back(
        {fmt::format("{:>{}}/{}", progress.step_in_epoch, all.size(), all), 2});
  } else {
    columns.push_back({fmt::format("step {}", progress.step_in_epoch), 2});
  }
  for (const auto& [name, text, left_out] :
       {std::tuple("time left", time_left(progress), 3),
        std::tuple(kSpeed, speed(progress), 4)}) {
    if (!text.empty()) {
      columns.push_back({aligned(name, text), left_out});
    }
  }
  draw(line_of(std::move(columns), logs), /*is_last=*/!is_redrawn());
}

void ProgressBar::end_epoch(const Progress& progress, const Logs& logs) {
  record(progress);
  steps_seen_ = progress.step_in_epoch;
  const bool has_more = progress.epoch + 1 < progress.epochs;
  std::vector<Column> columns{{epoch_of(progress)}};
  columns.push_back(
      {aligned("steps", fmt::format("{} steps", progress.step_in_epoch)), 3});
  columns.push_back({aligned("seconds", clock_time(seconds())), 2});
  // A column without a value stays, so that the columns after it are aligned.
  columns.push_back(
      {aligned("time left", has_more ? time_left(progress) : ""), 5});
  columns.push_back({aligned(kSpeed, speed(progress)), 4});
  std::erase_if(
      columns, [](const Column& column) { return column.text.empty(); });
  draw(line_of(std::move(columns), logs), /*is_last=*/true);
}

void ProgressBar::on_train_begin(Training& /*training*/) {
  begin_ = Clock::now();
  first_.reset();
  steps_seen_.reset();
  widths_.clear();
}

void ProgressBar::on_epoch_begin(Training& training) {
  if (!first_) {
    first_ = training.progress();
    last_examples_ = first_->examples;
    if (first_->step > 0) {
      draw(
          fmt::format(
              "resumed at epoch {}, step {}",
              first_->epoch + 1,
              first_->step_in_epoch),
          true);
    }
  }
}

void ProgressBar::on_step_end(Training& training) {
  record(training.progress());
  if (is_due()) {
    show(training.progress(), training.logs());
  }
}

void ProgressBar::on_train_end(Training& training) {
  if (drawn_width_ > 0) {
    std::fputc('\n', options_.stream);
    drawn_width_ = 0;
  }
  const History& history = training.history();
  if (!history.stop_reason.empty()) {
    draw("stopped: " + display_text(history.stop_reason), true);
  }
  // The stop reason of an EarlyStopping already contains this text.
  if (history.restored) {
    const std::string restored = history.restored->text();
    if (history.stop_reason.find(restored) == std::string::npos) {
      draw(display_text(restored), true);
    }
  }
}

}  // namespace tessera::training
