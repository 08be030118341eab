// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera {

/// Checks a path. For the system, a path ends at a zero byte, so a path with one would
/// open another file.
/// Errors:  c10::ValueError that begins with `where`, for a path with a zero byte or
///          with more than 4096 bytes.
void check_path(const std::string& path, const std::string& where);

}  // namespace tessera
