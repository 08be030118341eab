// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/metrics.h>

#include "packages/training/src/metric_inputs.h"

#include <string>
#include <vector>

namespace tessera::training {

/// How often a positive example has a higher score than a negative one. Equal scores count
/// half. NaN without examples of both classes. Both arguments must be sorted.
double area_under_roc(
    const detail::WeightedScores& positives,
    const detail::WeightedScores& negatives);

/// -log p(label) of example i. Probabilities are clipped to [eps, 1 - eps].
/// Errors:  c10::ValueError beginning with `where` for probabilities outside of [0, 1],
///          or that do not sum to 1.
double log_loss_of(
    const MetricInputs& inputs,
    size_t i,
    ScoreKind scores,
    const std::string& where);

/// The probability of class 1 of each example of two classes.
/// Errors:  c10::ValueError beginning with `where` for numbers outside of [0, 1].
std::vector<double> probabilities_of(
    const MetricInputs& inputs,
    ScoreKind scores,
    const std::string& where);

}  // namespace tessera::training
