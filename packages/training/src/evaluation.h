// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/training/src/training_state.h"

#include <functional>
#include <string>

namespace tessera::training {

/// Runs all batches of `pass` under NoGradGuard. It resets `metrics` first, and adds the
/// batches to `metrics` and `loss`. If `is_interrupted` returns true after a batch, the
/// evaluation ends early, and this function returns false.
/// Errors:  c10::ValueError beginning with `where` if there is no batch, or a step gives
///          no loss or no predictions for the metrics.
bool run_evaluation(
    Pass& pass,
    const Metrics& metrics,
    LossMean& loss,
    const std::string& where,
    const std::function<bool()>& is_interrupted);

/// Adds the loss and the results of metrics to `logs`, with `prefix` before their names.
void add_logs(
    Logs& logs,
    const std::string& prefix,
    double loss,
    const Logs& results);

}  // namespace tessera::training
