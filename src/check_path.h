// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera {

/// The system would take a zero byte for the path's end, and open another file.
/// Errors:  c10::ValueError beginning with `where`, for a path with a zero byte or of
///          more than 4096 bytes.
void check_path(const std::string& path, const std::string& where);

}  // namespace tessera
