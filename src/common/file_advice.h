// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Returns a sentence for the end of a message. It says what a user can do when the
/// system refuses to read from a path. `number` is the value of errno.
const char* advice_to_read(int number);

/// Like advice_to_read(), but for a path that can't be written to.
const char* advice_to_write(int number);

}  // namespace tessera
