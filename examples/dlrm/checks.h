// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

// What would fail after hours of training is checked before.

/// Makes the folders that are written to.
/// Errors:  c10::ValueError for options that don't go together, and for files and folders
///          that can't be written to.
void check_arguments(const Options& options);

/// Errors:  c10::ValueError for files that can't be read several times or have no example.
void check_inputs(const Options& options);
