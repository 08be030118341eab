// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/progress_bar.h>

#include "src/common/check.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace tessera::training {

namespace {

constexpr int64_t kWidth = 24;  // characters of the bar

// Formats 1234567 as "1,234,567".
std::string with_commas(double number) {
  const std::string digits = fmt::format("{:.0f}", number);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) {
      text += ',';
    }
    text += digits[i];
  }
  return text;
}

// Formats seconds as "0:07", "12:34" or "1:02:03".
std::string clock_time(double seconds) {
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t hours = whole / 3600;
  const int64_t minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string numbers(const Logs& logs) {
  std::string text;
  for (const auto& [name, value] : logs.entries()) {
    text += fmt::format("  {} {:.4g}", name, value);
  }
  return text;
}

std::string bar(int64_t done, int64_t steps) {
  const double part = static_cast<double>(done) / static_cast<double>(steps);
  const auto filled = static_cast<int64_t>(std::clamp(part, 0.0, 1.0) * kWidth);
  std::string text(static_cast<size_t>(kWidth), '.');
  std::fill_n(text.begin(), filled, '=');
  if (filled < kWidth) {
    text[static_cast<size_t>(filled)] = '>';
  }
  return text;
}

std::string epoch_of(const Progress& progress) {
  const std::string epochs = std::to_string(progress.epochs);
  return fmt::format(
      "epoch {:>{}}/{}", progress.epoch + 1, epochs.size(), epochs);
}

}  // namespace

ProgressBar::ProgressBar(ProgressBarOptions options) : options_(options) {
  TESSERA_CHECK_VALUE(
      options_.stream != nullptr,
      "[ProgressBar] stream must be an open file, but is a null pointer. Pass stderr, for example.");
}

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

int64_t ProgressBar::examples() const {
  return first_ ? last_examples_ - first_->examples : 0;
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
  return examples > 0.0
      ? fmt::format("  {} examples/s", with_commas(examples / elapsed))
      : fmt::format("  {:.3g} steps/s", steps / elapsed);
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
  return fmt::format(
      "  ETA {}",
      clock_time(
          seconds() / done * static_cast<double>(std::max<int64_t>(0, left))));
}

void ProgressBar::draw(std::string line, bool is_last) {
  if (is_redrawn()) {
    struct winsize size {};
    if (!is_last &&
        ::ioctl(::fileno(options_.stream), TIOCGWINSZ, &size) == 0 &&
        size.ws_col > 1) {  // '\r' can only redraw one line of the terminal
      line.resize(std::min<size_t>(line.size(), size.ws_col - 1U));
    }
    const size_t width = line.size();
    line.resize(std::max(width, drawn_width_), ' ');
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
  std::string line = epoch_of(progress);
  line += steps && *steps > 0
      ? fmt::format(
            " [{}] {}/{}",
            bar(progress.step_in_epoch, *steps),
            progress.step_in_epoch,
            *steps)
      : fmt::format("  step {}", progress.step_in_epoch);
  draw(
      line + time_left(progress) + speed(progress) + numbers(logs),
      /*is_last=*/!is_redrawn());
}

void ProgressBar::end_epoch(const Progress& progress, const Logs& logs) {
  record(progress);
  steps_seen_ = progress.step_in_epoch;
  draw(
      fmt::format(
          "{}  {} steps  {}",
          epoch_of(progress),
          progress.step_in_epoch,
          clock_time(seconds())) +
          (progress.epoch + 1 < progress.epochs ? time_left(progress) : "") +
          speed(progress) + numbers(logs),
      true);
}

void ProgressBar::on_train_begin(Training& /*training*/) {
  begin_ = Clock::now();
  first_.reset();
  steps_seen_.reset();
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

void ProgressBar::on_epoch_end(Training& training) {
  end_epoch(training.progress(), training.logs());
}

void ProgressBar::on_train_end(Training& training) {
  if (drawn_width_ > 0) {
    std::fputc('\n', options_.stream);
    drawn_width_ = 0;
  }
  if (!training.history().stop_reason.empty()) {
    draw("stopped: " + training.history().stop_reason, true);
  }
}

}  // namespace tessera::training
