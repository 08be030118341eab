// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/callback.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::training {

/// Where, how and how often a ProgressBar shows progress.
struct ProgressBarOptions {
  enum class Style {
    /// kRedrawn if the stream is a terminal, otherwise kPlain.
    kAutomatic,
    /// One line per epoch, which is redrawn after steps.
    kRedrawn,
    /// One line at the end of each epoch, and further lines within long epochs.
    kPlain
  };

  std::FILE* stream = stderr;
  Style style = Style::kAutomatic;
  /// The seconds between two updates of a redrawn line.
  double interval = 0.1;
  /// The seconds between two plain lines within an epoch.
  double plain_interval = 30.0;
};

// snippet: tests/docs/reference_training_test.cpp ProgressBar
/// Shows the progress of a training: steps, throughput, the time left for all epochs,
/// loss and metrics.
///
///   epoch  2/10  90 steps  0:03  ETA 0:14  8,437 examples/s  loss 0.4921
///   epoch  3/10  [=======>......]  45/90  ETA 0:12  8,450 examples/s  loss 0.4312
///
/// Each epoch leaves one line, and these lines have the same columns. On a terminal, a
/// line never wraps: it has only those columns that fit, and ends with "…" if logged
/// values are left out.
///
/// It also works without fit(), in your own loop:
///
///   ProgressBar bar({.stream = log_file, .plain_interval = 60.0});
///   Progress progress{.epochs = 1, .steps_per_epoch = std::ssize(batches)};
///   for (const Batch& batch : batches) {
///     const double loss = step(batch).loss.item<double>();
///     ++progress.step_in_epoch;
///     ++progress.step;
///     bar.show(progress, {{"loss", loss}});
///   }
///   bar.end_epoch(progress, {});
///
/// Call show() after every step: it draws only as often as the options say, and the
/// first call counts as one step.
/// Errors:  c10::ValueError if the stream is a null pointer, or an interval is negative.
class ProgressBar : public Callback {
 public:
  explicit ProgressBar(ProgressBarOptions options = {});
  /// Ends the current line.
  ~ProgressBar() override;
  ProgressBar(ProgressBar&& other) noexcept;

  void show(const Progress& progress, const Logs& logs);
  void end_epoch(const Progress& progress, const Logs& logs);
  /// The seconds since fit() began, or without fit() since the bar was created.
  double seconds() const;
  /// The examples that were trained on in these seconds, without those before a resume.
  int64_t examples() const {
    return first_ ? last_examples_ - first_->examples : 0;
  }

  void on_train_begin(Training& training) override;
  void on_epoch_begin(Training& training) override;
  void on_step_end(Training& training) override;
  void on_epoch_end(Training& training) override {
    end_epoch(training.progress(), training.logs());
  }
  void on_train_end(Training& training) override;

 private:
  using Clock = std::chrono::steady_clock;

  bool is_redrawn() const;
  bool is_due() const;
  void record(const Progress& progress);
  std::string speed(const Progress& progress) const;
  std::string time_left(const Progress& progress) const;
  struct Column;
  std::string aligned(const std::string& column, const std::string& text);
  std::string line_of(std::vector<Column> columns, const Logs& logs);
  /// The columns of the terminal that a line may use; unset if there is no terminal.
  std::optional<int64_t> line_limit() const;
  void draw(std::string line, bool is_last);

  ProgressBarOptions options_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point drawn_ = {};
  /// The progress at the start of this run. Throughput counts from here, so steps before
  /// a resume do not count.
  std::optional<Progress> first_;
  int64_t last_examples_ = 0;  // the last value of Progress::examples
  std::optional<int64_t> steps_seen_;  // steps of the last complete epoch
  int64_t drawn_width_ = 0;  // 0: there is no unfinished line
  /// The widest text of each column so far, to which others are padded.
  std::map<std::string, int64_t> widths_;
};

}  // namespace tessera::training
