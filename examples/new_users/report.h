// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/new_users/measure.h"

#include <string>
#include <vector>

/// The results of all runs of a model.
struct CandidateReport {
  std::string title = {};
  std::vector<Result> runs = {};
};

void print_report(const std::vector<CandidateReport>& reports);
