// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/training/src/training_state.h"

#include <string>
#include <vector>

namespace tessera::training {

/// Whether the metric has a merge().
bool can_merge(const Metric& metric);

/// The names that a metric logs: its own, or if it cannot be merged, one for each rank.
std::vector<std::string> log_names_of(
    const Metric& metric,
    const RankGroup& ranks);

/// The state of each metric on each rank, as [rank][metric]. Collective.
std::vector<std::vector<at::Tensor>> gather_states(
    const Metrics& metrics,
    RankGroup& ranks);

/// What a rank tells the others about its step.
struct RankStep {
  double loss = 0.0;
  double weight = 0.0;  // of the loss
  double examples = 0.0;
  double skipped = 0.0;  // 1: the update must not be made
  double checksum = 0.0;  // of the weights, see checksum_of(); 0: none
};

/// A place in the training at which ranks merge their metrics.
struct MergePoint {
  /// The beginning of errors, which is different for each point.
  const char* where = "";
  /// The end of the error for dense weights that differ between ranks.
  const char* advice = "";
  /// Whether only cheap metrics with a small state are merged.
  bool is_step = false;
};

/// Returns the sums over all ranks, and sets `results` to the results of the metrics over
/// the examples of all ranks. Collective. With one rank, it returns `own`.
/// Errors:  c10::ValueError on all ranks if their metrics, points or checksums differ.
RankStep merge(
    const MergePoint& point,
    const RankStep& own,
    const Metrics& metrics,
    RankGroup& ranks,
    Logs& results);

}  // namespace tessera::training
