// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/publisher.h>

#include "packages/serving/src/format/version_file.h"

#include <c10/core/ScalarType.h>

#include <string>

namespace tessera::serving {

/// What the messages of a Publisher begin with.
inline constexpr const char* kPublisher = "[Publisher]";

/// Errors:  c10::ValueError for a value that is out of range. The names of tables are not
///          checked.
void check_options(const PublishOptions& options);

/// The format in which `options` publishes a table of this name and dtype.
StoredFormat stored_format(
    const PublishOptions& options,
    const std::string& table,
    at::ScalarType dtype);

}  // namespace tessera::serving
