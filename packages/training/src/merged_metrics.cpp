// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/merged_metrics.h"

#include <tessera/common/profile_scope.h>

#include "packages/training/src/metric_inputs.h"
#include "src/common/check.h"
#include "src/common/random_key.h"
#include "src/common/rank_group.h"

#include <ATen/core/functional.h>
#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <optional>

namespace tessera::training {

namespace {

// A step does not send metrics with larger states.
constexpr int64_t kMaxNumbersOfStep = 1024;

// Sends tensors of doubles to all ranks. Returns what all ranks sent, as [rank][tensor].
// Errors:  c10::ValueError on all ranks if `what` or the metrics differ between them.
std::vector<std::vector<at::Tensor>> gather(
    std::string what,
    const Metrics& metrics,
    std::vector<at::Tensor> own,
    RankGroup& ranks) {
  for (const auto& metric : metrics) {
    what.append("/").append(metric->name());
  }
  const auto sizes = c10::fmap(own, [](const at::Tensor& tensor) {
    return static_cast<double>(tensor.numel());
  });
  own.insert(own.begin(), metric_state(sizes));
  const RankGroup::Arrivals arrivals = ranks.arrive(
      Rendezvous::kTrain,
      nullptr,
      {.value = static_cast<int64_t>(random_key(0, what)),
       .problem =
           "has other metrics in fit(), or another number of batches. Pass the same metrics and as many batches on all ranks.",
       .bodies = {as_bytes(at::cat(own))}})();
  std::vector<std::vector<at::Tensor>> all;
  for (const at::Tensor& body : arrivals.bodies) {
    std::vector<double> numbers(body.numel() / sizeof(double));
    std::memcpy(numbers.data(), body.const_data_ptr(), body.numel());
    all.emplace_back();
    auto begin = numbers.begin() + static_cast<std::ptrdiff_t>(sizes.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto end = begin + static_cast<std::ptrdiff_t>(numbers[i]);
      all.back().push_back(metric_state({begin, end}));
      begin = end;
    }
  }
  return all;
}

std::string name_on_rank(const Metric& metric, size_t rank) {
  return metric.name() + "_rank_" + std::to_string(rank);
}

// The state of a metric, or its result if it cannot be merged.
at::Tensor part_of(const Metric& metric) {
  return can_merge(metric) ? metric.state() : metric_state({metric.result()});
}

// How many numbers of a RankStep are sent. After these, a flag for each metric says whether
// the rank sends the metric.
constexpr size_t kStepNumbers = 5;

// Returns the results of the metrics that all ranks have sent. Every rank merges in the
// order of the ranks, so all get the same bits.
Logs results_of(
    const Metrics& metrics,
    const std::vector<std::vector<at::Tensor>>& parts) {
  Logs logs;
  for (size_t i = 0; i < metrics.size(); ++i) {
    if (std::ranges::any_of(parts, [&](const auto& part) {
          return part[0].template const_data_ptr<double>()[kStepNumbers + i] ==
              0.0;
        })) {
      continue;
    }
    const Metric& metric = *metrics[i];
    if (!can_merge(metric)) {
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        logs.set(
            name_on_rank(metric, rank), parts[rank][i + 1][0].item<double>());
      }
      continue;
    }
    const std::unique_ptr<Metric> whole = metric.make_empty();
    for (const auto& part : parts) {
      whole->merge(part[i + 1]);
    }
    logs.set(metric.name(), whole->result());
  }
  return logs;
}

}  // namespace

bool can_merge(const Metric& metric) {
  try {
    metric.make_empty()->merge(metric.make_empty()->state());
    return true;
  } catch (const c10::NotImplementedError&) {
    return false;
  } catch (const std::exception&) {
    return true;  // It has a merge(), which refuses an empty state.
  }
}

std::vector<std::string> log_names_of(
    const Metric& metric,
    const RankGroup& ranks) {
  if (ranks.size() == 1 || can_merge(metric)) {
    return {metric.name()};
  }
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < ranks.size(); ++rank) {
    names.push_back(name_on_rank(metric, rank));
  }
  return names;
}

std::vector<std::vector<at::Tensor>> gather_states(
    const Metrics& metrics,
    RankGroup& ranks) {
  return gather(
      "states",
      metrics,
      c10::fmap(metrics, [](const auto& metric) { return metric->state(); }),
      ranks);
}

RankStep merge(
    const MergePoint& point,
    const RankStep& own,
    const Metrics& metrics,
    RankGroup& ranks,
    Logs& results) {
  std::optional<ProfileScope> scope;
  if (!metrics.empty()) {
    scope.emplace("tessera::metrics");
  }
  if (ranks.size() == 1) {
    for (const auto& metric : metrics) {
      results.set(metric->name(), metric->result());
    }
    return own;
  }
  std::vector<double> numbers_and_flags{
      own.loss, own.weight, own.examples, own.skipped, own.checksum};
  std::vector<at::Tensor> sent(1);
  for (const auto& metric : metrics) {
    const bool is_sent = !point.is_step ||
        (metric->is_cheap() && metric->state().numel() <= kMaxNumbersOfStep);
    numbers_and_flags.push_back(is_sent ? 1.0 : 0.0);
    sent.push_back(is_sent ? part_of(*metric) : metric_state({}));
  }
  sent[0] = metric_state(numbers_and_flags);
  const auto parts = gather(point.where, metrics, std::move(sent), ranks);
  RankStep whole;
  for (size_t i = 0; i < parts.size(); ++i) {
    const double* numbers = parts[i][0].const_data_ptr<double>();
    whole.loss += numbers[0];
    whole.weight += numbers[1];
    whole.examples += numbers[2];
    whole.skipped += numbers[3];
    whole.checksum = i == 0 ? numbers[4] : whole.checksum;
    TESSERA_CHECK_VALUE(
        whole.checksum == 0.0 || numbers[4] == 0.0 ||
            numbers[4] == whole.checksum,
        "{} the dense weights must be equal on all ranks, but those of rank {} differ from those of rank 0. Call broadcast_parameters() before the training, or make the model with the same seed on all ranks.{}",
        point.where,
        i,
        point.advice);
  }
  results = results_of(metrics, parts);
  return whole;
}

}  // namespace tessera::training
