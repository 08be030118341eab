// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

// These checks raise errors before the training that would otherwise come hours later.

/// Checks the options, and creates the output folders.
/// Errors:  c10::ValueError for options that can't be combined, and for files and folders
///          that can't be written to.
void check_arguments(const Options& options);

/// Checks the training and test files.
/// Errors:  c10::ValueError for files that can't be read several times or have no
///          example.
void check_inputs(const Options& options);
