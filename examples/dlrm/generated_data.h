// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

/// Generates training and test files unless the folder has them, and sets the options to
/// use them. Returns the AUC of the test's true probabilities, which a model can exceed
/// only by chance.
/// Errors:  c10::ValueError for a folder that can't be written to.
double use_generated_data(Options& options);
