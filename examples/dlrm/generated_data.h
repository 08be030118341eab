// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

/// Generates files of examples where the folder lacks them, and sets them as the data and
/// test of the options. The AUC of the test's true probabilities, which no model exceeds
/// but by chance.
/// Errors:  c10::ValueError for a folder that can't be written to.
double use_generated_data(Options& options);
