// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// What a user can do when the system refuses to read from a path, as a sentence for the
/// end of a message. `number` is the value of errno.
const char* advice_to_read(int number);

/// The same for a path that can't be written to.
const char* advice_to_write(int number);

}  // namespace tessera
