// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/StringUtil.h>

#include <cmath>
#include <string>

namespace tessera {

/// A number as messages show it, with six digits. A NaN has no sign: many operations of
/// x86 processors return a negative one, which would be printed as "-nan".
inline std::string number_in_message(double value) {
  return std::isnan(value) ? "NaN" : c10::str(value);
}

}  // namespace tessera
