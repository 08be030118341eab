// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/metric_state.h"

#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/ops/tensor.h>

namespace tessera::training {

namespace {

constexpr int64_t kIdBase = int64_t{1} << 32;

}  // namespace

std::string where_of(const std::string& metric) {
  return "[Metric '" + metric + "']";
}

at::Tensor metric_state(const std::vector<double>& numbers) {
  return at::tensor(numbers, at::kDouble);
}

std::vector<double> read_state(
    const at::Tensor& state,
    const std::string& metric) {
  TESSERA_CHECK_VALUE(
      state.defined() && state.scalar_type() == at::kDouble && state.dim() == 1,
      "[Metric '{}'] expected the saved state of a metric, a float64 tensor [n], but got {}. Resume with the same metrics.",
      metric,
      describe(state));
  const at::Tensor flat = state.contiguous();
  const double* begin = flat.const_data_ptr<double>();
  return {begin, begin + flat.numel()};
}

void append_id(std::vector<double>& numbers, int64_t id) {
  // The remainder has the sign of the id, so that both are exact.
  numbers.push_back(static_cast<double>(id / kIdBase));
  numbers.push_back(static_cast<double>(id % kIdBase));
}

int64_t id_at(const std::vector<double>& numbers, size_t position) {
  return static_cast<int64_t>(numbers[position]) * kIdBase +
      static_cast<int64_t>(numbers[position + 1]);
}

}  // namespace tessera::training
