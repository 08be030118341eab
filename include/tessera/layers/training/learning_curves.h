// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/history_files.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace tessera::training {

/// Which learning curves to draw, and their size.
struct LearningCurvesOptions {
  /// The logged values to draw. Each has one panel, which also shows the value with the
  /// prefix "val_". Empty: all logged values.
  std::vector<std::string> names = {};
  std::string title = {};
  /// The size of one panel in pixels: width in [200, 10000], height in [150, 10000]. A
  /// row has two panels.
  int64_t width = 480;
  int64_t height = 300;
};
static_assert(std::is_aggregate_v<LearningCurvesOptions>);

/// Draws the history as an SVG picture: axes with ticks, training and validation as two
/// curves, numbers that are not finite as gaps. The same history gives the same bytes. A
/// name that no epoch logged gives an empty panel.
/// Errors:  c10::ValueError for options.
std::string learning_curves_svg(
    const History& history,
    const LearningCurvesOptions& options = {});

// snippet: tests/docs/reference_training_test.cpp LearningCurves
/// Writes the learning curves to a file after each epoch, as a HistoryFile does.
///
///   const auto curves = std::make_shared<LearningCurves>(
///       "curves.svg",
///       LearningCurvesOptions{.names = {"loss"}, .title = "Clicks"});
///   fit(batches, step, {.epochs = 3, .callbacks = {curves}});
class LearningCurves : public HistoryFile {
 public:
  explicit LearningCurves(std::string path, LearningCurvesOptions options = {});

  /// Errors:  c10::ValueError for a name that will not be logged.
  void on_train_begin(Training& training) override;

 protected:
  std::string text_of(const History& history) const override;

 private:
  LearningCurvesOptions options_;
};

}  // namespace tessera::training
