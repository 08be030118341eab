// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/merged_metrics.h"

#include <tessera/common/profile_scope.h>

#include "packages/training/src/metric_state.h"
#include "src/common/random_key.h"
#include "src/common/rank_group.h"

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace tessera::training {

namespace {

// A step does not send larger states.
constexpr int64_t kMaxNumbersOfStep = 1024;

// Sends tensors of doubles to all ranks. Returns those of all ranks, as [rank][tensor].
// Errors:  c10::ValueError on all ranks if they differ in `what` or in the metrics.
std::vector<std::vector<at::Tensor>> gather(
    std::string what,
    const Metrics& metrics,
    std::vector<at::Tensor> own,
    RankGroup& ranks) {
  for (const auto& metric : metrics) {
    what.append("/").append(metric->name());
  }
  std::vector<double> sizes;
  for (const at::Tensor& tensor : own) {
    sizes.push_back(static_cast<double>(tensor.numel()));
  }
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

// The results of the metrics that all ranks have sent. Every rank merges in the order of
// the ranks, so all get the same bits. Other numbers come before the parts of the metrics.
Logs results_of(
    const Metrics& metrics,
    const std::vector<std::vector<at::Tensor>>& parts) {
  Logs logs;
  for (size_t i = 1; i <= metrics.size(); ++i) {
    const Metric& metric = *metrics[i - 1];
    if (std::any_of(parts.begin(), parts.end(), [&](const auto& part) {
          return part[i].numel() == 0;
        })) {
      continue;
    }
    const std::unique_ptr<Metric> whole = metric.make_empty();
    for (size_t rank = 0; rank < parts.size(); ++rank) {
      if (can_merge(metric)) {
        whole->merge(parts[rank][i]);
      } else {
        logs.set(name_on_rank(metric, rank), parts[rank][i][0].item<double>());
      }
    }
    if (can_merge(metric)) {
      logs.set(metric.name(), whole->result());
    }
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
  }
}

std::vector<std::string> log_names_of(
    const Metric& metric,
    const Ranks& ranks) {
  if (ranks == nullptr || can_merge(metric)) {
    return {metric.name()};
  }
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < ranks->size(); ++rank) {
    names.push_back(name_on_rank(metric, rank));
  }
  return names;
}

std::vector<std::vector<at::Tensor>> gather_states(
    const Metrics& metrics,
    RankGroup& ranks) {
  std::vector<at::Tensor> own;
  for (const auto& metric : metrics) {
    own.push_back(metric->state());
  }
  return gather("states", metrics, std::move(own), ranks);
}

Logs merge_results(const Metrics& metrics, LossMean* loss, const Ranks& ranks) {
  const ProfileScope scope("tessera::metrics");
  if (ranks == nullptr) {
    Logs logs;
    for (const auto& metric : metrics) {
      logs.set(metric->name(), metric->result());
    }
    return logs;
  }
  std::vector<at::Tensor> own{metric_state(
      loss == nullptr ? std::vector<double>()
                      : std::vector{loss->total, loss->weight})};
  for (const auto& metric : metrics) {
    own.push_back(part_of(*metric));
  }
  const auto parts = gather(
      loss == nullptr ? "epoch" : "validation",
      metrics,
      std::move(own),
      *ranks);
  if (loss != nullptr) {
    *loss = {};
    for (const auto& part : parts) {
      const double* numbers = part[0].const_data_ptr<double>();
      *loss = merged(*loss, {numbers[0], numbers[1]});
    }
  }
  return results_of(metrics, parts);
}

RankStep merge_step(
    const RankStep& step,
    const Metrics& metrics,
    RankGroup& ranks,
    Logs& results) {
  const ProfileScope scope("tessera::metrics");
  // Two halves of the checksum, because a double can't hold 64 bits.
  std::vector<at::Tensor> own{metric_state(
      {step.loss,
       step.weight,
       step.examples,
       static_cast<double>(step.checksum >> 32U),
       static_cast<double>(step.checksum & 0xFFFFFFFFU)})};
  for (const auto& metric : metrics) {
    const bool is_sent =
        metric->is_cheap() && metric->state().numel() <= kMaxNumbersOfStep;
    own.push_back(is_sent ? part_of(*metric) : metric_state({}));
  }
  const auto parts = gather("step", metrics, std::move(own), ranks);
  RankStep whole;
  std::vector<uint64_t> checksums;
  for (const auto& part : parts) {
    const double* numbers = part[0].const_data_ptr<double>();
    whole.loss += numbers[0];
    whole.weight += numbers[1];
    whole.examples += numbers[2];
    checksums.push_back(
        (static_cast<uint64_t>(numbers[3]) << 32U) |
        static_cast<uint64_t>(numbers[4]));
  }
  check_same_weights(
      checksums,
      "[fit] after the first step,",
      " In each step, call sum_gradients(), or use make_train_step().");
  results = results_of(metrics, parts);
  return whole;
}

}  // namespace tessera::training
