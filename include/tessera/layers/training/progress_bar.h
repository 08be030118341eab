// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/callback.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>

namespace tessera::training {

/// Where and how often progress is shown.
struct ProgressBarOptions {
  enum class Style {
    /// Redrawn where the stream is a terminal, plain lines elsewhere.
    kAutomatic,
    /// One line that is redrawn after steps, and stays at the end of an epoch.
    kRedrawn,
    /// A line per epoch, and some within long ones.
    kPlain
  };

  std::FILE* stream = stderr;
  Style style = Style::kAutomatic;
  /// Seconds between two drawings within an epoch.
  double interval = 0.1;
  /// The same for plain lines.
  double plain_interval = 30.0;
};

/// Progress of a training: steps, throughput, the time left for all epochs,
/// loss and metrics.
///
///   epoch  3/10 [=======>......]  45/90  ETA 0:12  8,450 examples/s  loss 0.43
///
/// Alone, in a loop of one's own:
///
///   ProgressBar bar;
///   bar.show({.epochs = 10, .steps_per_epoch = 90, .epoch = epoch,
///             .step_in_epoch = i, .step = step}, {{"loss", mean_loss}});
///   bar.end_epoch(...);  // the same, after the last step of an epoch
class ProgressBar : public Callback {
 public:
  explicit ProgressBar(ProgressBarOptions options = {});
  /// Ends a line that is open.
  ~ProgressBar() override;
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  void show(const Progress& progress, const Logs& logs);
  void end_epoch(const Progress& progress, const Logs& logs);
  /// Since it was made, or since the training began.
  double seconds() const;
  /// Examples that were trained on in these seconds; a resumed training does not count
  /// those before.
  int64_t examples() const;

  void on_train_begin(Training& training) override;
  void on_epoch_begin(Training& training) override;
  void on_step_end(Training& training) override;
  void on_epoch_end(Training& training) override;
  void on_train_end(Training& training) override;

 private:
  using Clock = std::chrono::steady_clock;

  bool is_redrawn() const;
  bool is_due() const;
  void note(const Progress& progress);
  std::string speed(const Progress& progress) const;
  std::string time_left(const Progress& progress) const;
  void draw(std::string line, bool is_last);

  ProgressBarOptions options_;
  Clock::time_point begin_ = Clock::now();
  Clock::time_point drawn_ = {};
  /// Where this run began: a resumed one is not the faster for it.
  std::optional<Progress> first_;
  int64_t last_examples_ = 0;  // Progress::examples, when seen last
  std::optional<int64_t> steps_seen_;  // of the last whole epoch
  size_t drawn_width_ = 0;  // 0: no line is open
};

}  // namespace tessera::training
