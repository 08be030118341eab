// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

/// Returns the examples in a random order, drawn by LibTorch's generator.
template <class Example>
std::vector<Example> shuffled(const std::vector<Example>& examples) {
  const auto order = torch::randperm(std::ssize(examples));
  const auto index = order.template accessor<int64_t, 1>();
  std::vector<Example> result;
  result.reserve(examples.size());
  for (int64_t i = 0; i < order.size(0); ++i) {
    result.push_back(examples[index[i]]);
  }
  return result;
}

/// Splits the examples, in their order, into batches of `size`. The last batch may be
/// smaller.
template <class Example>
std::vector<std::vector<Example>> in_batches(
    const std::vector<Example>& examples,
    int64_t size) {
  std::vector<std::vector<Example>> batches;
  for (auto begin = examples.begin(); begin != examples.end();) {
    const auto end = begin + std::min<int64_t>(size, examples.end() - begin);
    batches.emplace_back(begin, end);
    begin = end;
  }
  return batches;
}

/// The number of batches of `size` for `count` examples.
inline int64_t number_of_batches(size_t count, int64_t size) {
  return (static_cast<int64_t>(count) + size - 1) / size;
}
