// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"

namespace tessera::checks {

std::string message_of(fmt::string_view text, fmt::format_args args) {
  return fmt::vformat(text, args);
}

}  // namespace tessera::checks

namespace tessera {

std::string reason_of(const std::exception& error) {
  const auto* own = dynamic_cast<const checks::Error*>(&error);
  std::string text =
      own != nullptr ? checks::message_of_error(*own) : error.what();
  constexpr std::string_view kAfterStack = "RuntimeError: ";
  const size_t begin = text.rfind(kAfterStack);
  text = begin == std::string::npos ? text
                                    : text.substr(begin + kAfterStack.size());
  return text.substr(0, text.find('\n'));
}

}  // namespace tessera
