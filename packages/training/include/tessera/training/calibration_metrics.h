// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/metrics.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::training {

// snippet: tests/docs/reference_metrics_test.cpp Calibration
/// The mean prediction, divided by the mean label: 1.1 means that the model expects 10 %
/// more clicks than there are.
///
///   Calibration calibration({.scores = ScoreKind::kLogits});
///   calibration.update(logits, clicks);
///   const double ratio = calibration.result();
///
/// The result is NaN without a positive example. 1 is best, so neither higher nor lower
/// values are better.
///
/// Shapes:  predictions [n] or [n, 1]; as many labels, each 0 or 1.
/// Source:  He et al. 2014, section 3, doi:10.1145/2648584.2648589.
class Calibration : public detail::RuleMetric {
 public:
  /// The default name is "calibration".
  explicit Calibration(ScoreMetricOptions options = {});
};

/// The bins of a CalibrationError, the kind of its predictions, and its name in logs.
struct CalibrationErrorOptions {
  /// [0, 1] is divided into this many bins of equal width.
  int64_t bins = 10;
  ScoreKind scores = ScoreKind::kProbabilities;
  std::string name = "calibration_error";
};

// snippet: tests/docs/reference_metrics_test.cpp CalibrationError
/// The expected calibration error: how far the mean label of a bin is from its mean
/// prediction.
///
///   CalibrationError error({.bins = 20});
///   error.update(probabilities, clicks);
///   const double distance = error.result();  // 0: perfectly calibrated
///   for (const CalibrationError::Bin& bin : error.bins()) {
///     std::cout << bin.mean_prediction << " " << bin.mean_label << "\n";
///   }
///
///   sum over bins of weight(bin) / weight of all bins
///                    * |mean label(bin) - mean prediction(bin)|
///
/// A prediction on the edge of two bins belongs to the lower one.
///
/// Shapes:  predictions [n] or [n, 1]; as many labels, each 0 or 1.
/// Source:  Naeini et al. 2015, AAAI, "Obtaining Well Calibrated Probabilities Using
///          Bayesian Binning"; the bins are those of scikit-learn's calibration_curve.
class CalibrationError : public detail::RuleMetric {
 public:
  /// One bin of a reliability diagram.
  struct Bin {
    double weight = 0.0;  // of the examples whose predictions are in the bin
    double mean_prediction = 0.0;  // NaN if the bin is empty
    double mean_label = 0.0;  // NaN if the bin is empty
  };

  /// Errors:  c10::ValueError for bins outside of [1, 1'000'000].
  explicit CalibrationError(CalibrationErrorOptions options = {});

  std::vector<Bin> bins() const;
};

}  // namespace tessera::training
