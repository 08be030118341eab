// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/evaluation.h"

#include "src/common/check.h"

#include <ATen/core/grad_mode.h>

#include <cstdint>
#include <optional>

namespace tessera::training {

bool run_evaluation(
    Pass& pass,
    const Metrics& metrics,
    LossMean& loss,
    const std::string& where,
    const std::function<bool()>& is_interrupted) {
  const at::NoGradGuard no_grad;
  for (const auto& metric : metrics) {
    metric->reset();
  }
  int64_t batches = 0;
  pass.begin(0);
  bool is_complete = true;
  while (const std::optional<StepResult> result = pass.step()) {
    ++batches;
    loss.add(*result, where);
    update_metrics(metrics, *result, where);
    if (is_interrupted()) {
      is_complete = false;
      break;
    }
  }
  pass.end();
  TESSERA_CHECK_VALUE(
      batches > 0,
      "{} expected batches, but the source gave none. Pass a source that can be read again, or a function that opens it.",
      where);
  return is_complete;
}

void add_logs(
    Logs& logs,
    const std::string& prefix,
    double loss,
    const Logs& results) {
  logs.set(prefix + "loss", loss);
  for (const auto& [name, value] : results.entries()) {
    logs.set(prefix + name, value);
  }
}

}  // namespace tessera::training
