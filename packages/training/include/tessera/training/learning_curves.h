// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/history_files.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::training {

/// Which learning curves to draw, and their size.
struct LearningCurvesOptions {
  enum class Axis {
    /// Steps until the second epoch ends, if the history has steps. Otherwise epochs.
    kAutomatic,
    kEpochs,
    /// The logged steps, see FitOptions::log_every_steps. The values of an epoch are
    /// drawn at its last logged step. If the history has no steps, epochs are drawn.
    kSteps
  };

  /// The logged values to draw. Each has one panel, which also shows the value with the
  /// prefix "val_". If empty, all logged values have a panel.
  std::vector<std::string> names = {};
  /// Any Unicode text in UTF-8. A long one is drawn smaller, and then cut.
  std::string title = {};
  /// The size of one panel in pixels: width in [200, 10000], height in [150, 10000]. A
  /// row has two panels.
  int64_t width = 480;
  int64_t height = 300;
  Axis axis = Axis::kAutomatic;
  /// The value whose best epoch is marked in all panels. If empty, the epoch that an
  /// EarlyStopping restored is marked. If there is none, the epoch with the lowest
  /// "val_loss" is marked, or with the lowest "loss" if there is no "val_loss".
  std::string monitor = {};
  /// Which values of `monitor` are better. kUnknown: as the metric defines it. Only the
  /// callback knows metrics. For learning_curves_svg(), kUnknown means that lower values
  /// are better.
  Better better = Better::kUnknown;
};

/// Draws the history as an SVG picture: axes with ticks, training and validation as two
/// curves, numbers that are not finite as gaps, and a dashed line at the best of several
/// epochs. A curve of more than 1,000 points shows means of neighbouring points. The same
/// history gives the same bytes. A name that was not logged gives an empty panel.
/// Errors:  c10::ValueError for options.
std::string learning_curves_svg(
    const History& history,
    const LearningCurvesOptions& options = {});

// snippet: tests/docs/reference_training_test.cpp LearningCurves
/// Writes the learning curves to a file after each epoch, as a CsvHistory does.
///
///   const auto curves = std::make_shared<LearningCurves>(
///       "curves.svg",
///       LearningCurvesOptions{.names = {"loss"}, .title = "Clicks"});
///   fit(batches, step, {.epochs = 3, .callbacks = {curves}});
class LearningCurves : public detail::HistoryFile {
 public:
  explicit LearningCurves(std::string path, LearningCurvesOptions options = {});

  /// Errors:  c10::ValueError for a name that will not be logged, and for a monitor of
  ///          which it is not known whether it should rise or fall.
  void on_train_begin(Training& training) override;

 protected:
  std::string text_of(const History& history) const override;

 private:
  LearningCurvesOptions options_;
  Better better_;
};

}  // namespace tessera::training
