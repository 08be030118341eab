// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"

namespace tessera::checks {

std::string message_of(fmt::string_view text, fmt::format_args args) {
  return fmt::vformat(text, args);
}

}  // namespace tessera::checks
