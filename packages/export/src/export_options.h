// SPDX-License-Identifier: Apache-2.0
// The checks of arguments that all export functions share.
#pragma once

#include <tessera/export/exported_model.h>

#include <string>

namespace tessera::exporting {

/// Errors:  c10::ValueError beginning with `where`, for a dtype that files can't hold.
void check_dtype(const ExportOptions& options, const std::string& where);

/// Checks the options and the example of a whole model.
/// Errors:  c10::ValueError beginning with `where`.
void check_model_example(
    const detail::ExportedModel& model,
    const ExportExample& example,
    const ExportOptions& options,
    const std::string& where);

}  // namespace tessera::exporting
