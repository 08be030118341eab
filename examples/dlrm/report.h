// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

#include <cstdint>
#include <optional>

/// What dlrm_criteo found out.
struct Report {
  int64_t test_examples = 0;
  double auc = 0.0;
  double log_loss = 0.0;
  std::optional<double> bayes_auc = {};  // of the true probabilities
  /// Of this training; 0 when a resumed one had nothing to do.
  int64_t examples = 0;
  double seconds = 0.0;
  int64_t updates = 0;  // with those before a resume
  std::optional<bool> serves_the_same = {};
};

void print_report(const Report& report, const Options& options);
