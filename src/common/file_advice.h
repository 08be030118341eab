// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera {

/// Returns a sentence for the end of a message. It says what a user can do when the
/// system refuses to read from a path. `number` is the value of errno.
const char* advice_to_read(int number);

/// Like advice_to_read(), but for a path that can't be written to.
const char* advice_to_write(int number);

/// Raises the error about a path that the system refuses to write to, for the reason in
/// errno.
/// Errors:  c10::Error, "<where> <path>: <problem>: <reason>. <advice>".
[[noreturn]] void fail_to_write(
    const std::string& where,
    const std::string& path,
    const char* problem);

}  // namespace tessera
