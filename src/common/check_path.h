// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera {

/// Checks a path. The system reads a path up to its first zero byte, so a path with a
/// zero byte would open another file. Call it wherever a path reaches the system.
/// Errors:  c10::ValueError that begins with `where`, for a path with a zero byte or
///          with more than 4096 bytes.
void check_path(const std::string& path, const std::string& where);

}  // namespace tessera
