// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::optim {

/// Reads learning rates for one update. The rates of one tag are evaluated only once.
class LearningRateReader {
 public:
  /// `tags` is the result of learning_rate_tags(); `step` is 0, 1, ....
  LearningRateReader(std::vector<int64_t> tags, int64_t step)
      : tags_(std::move(tags)), step_(step), learning_rates_(tags_.size()) {}

  /// The rate of entry `index` of the tags. `source` is the learning rate of that entry.
  /// `where` makes the beginning of an error.
  /// Errors:  as LearningRate::value().
  double read(
      size_t index,
      const LearningRate& source,
      c10::function_ref<std::string()> where) {
    std::optional<double>& learning_rate = learning_rates_[tags_[index]];
    if (!learning_rate) {
      learning_rate = source.value(step_, where());
    }
    return *learning_rate;
  }

 private:
  std::vector<int64_t> tags_;
  int64_t step_;
  std::vector<std::optional<double>> learning_rates_;  // by tag
};

}  // namespace tessera::optim
