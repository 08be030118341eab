// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

#include <tessera/training/profile.h>

#include <cstdint>
#include <memory>
#include <optional>

/// The results of dlrm_criteo.
struct Report {
  int64_t test_examples = 0;
  double auc = 0.0;
  double log_loss = 0.0;
  std::optional<double> bayes_auc = {};  // AUC of the true probabilities
  /// Examples and seconds of this run. 0 examples: a resumed training had no steps left.
  int64_t examples = 0;
  double seconds = 0.0;
  int64_t updates = 0;  // including those before a resume
  std::optional<bool> serves_the_same = {};
  std::shared_ptr<tessera::training::Profile> profile = {};  // with --profile
};

void print_report(const Report& report, const Options& options);
