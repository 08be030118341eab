// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/training/src/training_state.h"

#include <string>
#include <vector>

namespace tessera::training {

/// Whether the metric has a merge().
bool can_merge(const Metric& metric);

/// The names that a metric logs: its own, or if it cannot be merged, one for each rank.
std::vector<std::string> log_names_of(const Metric& metric, const Ranks& ranks);

/// The state of each metric on each rank, as [rank][metric]. Collective.
std::vector<std::vector<at::Tensor>> gather_states(
    const Metrics& metrics,
    RankGroup& ranks);

/// The results of the metrics. With ranks, they are those over the examples of all ranks,
/// `loss` is merged, too, unless it is nullptr, and the call is collective.
Logs merge_results(const Metrics& metrics, LossMean* loss, const Ranks& ranks);

/// What a rank tells the others about its step.
struct RankStep {
  double loss = 0.0;
  double weight = 0.0;  // of the loss; 0: the update was skipped
  double examples = 0.0;
  uint64_t checksum = 0;  // of the weights; 0: none
};

/// Returns the step of all ranks, and sets `results` to their cheap metrics that have a
/// small state. Collective.
/// Errors:  c10::ValueError on all ranks if two of them pass different checksums.
RankStep merge_step(
    const RankStep& step,
    const Metrics& metrics,
    RankGroup& ranks,
    Logs& results);

}  // namespace tessera::training
