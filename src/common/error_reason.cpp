// SPDX-License-Identifier: Apache-2.0
#include "src/common/error_reason.h"

#include <c10/util/Exception.h>

#include <string_view>

namespace tessera {

std::string reason_of(const std::exception& error) {
  const auto* own = dynamic_cast<const c10::Error*>(&error);
  std::string text =
      own != nullptr ? own->what_without_backtrace() : error.what();
  constexpr std::string_view kAfterStack = "RuntimeError: ";
  const size_t begin = text.rfind(kAfterStack);
  text = begin == std::string::npos ? text
                                    : text.substr(begin + kAfterStack.size());
  return text.substr(0, text.find('\n'));
}

}  // namespace tessera
