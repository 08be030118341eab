// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::optim {

/// Reads learning rates for one update: those of one tag are read once.
class RateReader {
 public:
  /// `tags` are what learning_rate_tags() gives; `step` is 0, 1, ....
  RateReader(std::vector<int64_t> tags, int64_t step)
      : tags_(std::move(tags)), step_(step), rates_(tags_.size()) {}

  /// The rate of entry `index`, which `source` stands for.
  /// Errors:  as LearningRate::value().
  double read(
      size_t index,
      const LearningRate& source,
      const std::string& where) {
    std::optional<double>& rate = rates_[tags_[index]];
    if (!rate) {
      rate = source.value(step_, where);
    }
    return *rate;
  }

 private:
  std::vector<int64_t> tags_;
  int64_t step_;
  std::vector<std::optional<double>> rates_;  // by tag
};

}  // namespace tessera::optim
