// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace tessera::test {

/// The fraction of pairs of a clicked and an unclicked example in which the clicked one
/// has the higher score. Equal scores count half.
inline double area_under_curve(
    const at::Tensor& scores,
    const at::Tensor& labels) {
  const float* score = scores.const_data_ptr<float>();
  const float* label = labels.const_data_ptr<float>();
  std::vector<int64_t> order(scores.numel());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return score[a] < score[b];
  });
  double clicks = 0.0;
  double others = 0.0;
  double won = 0.0;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin;
    double equal_clicks = 0.0;
    while (end < order.size() && score[order[end]] == score[order[begin]]) {
      equal_clicks += static_cast<double>(label[order[end++]]);
    }
    const double equal_others = static_cast<double>(end - begin) - equal_clicks;
    won += equal_clicks * (others + equal_others / 2);
    clicks += equal_clicks;
    others += equal_others;
    begin = end;
  }
  return won / (clicks * others);
}

}  // namespace tessera::test
