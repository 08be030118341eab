// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tessera {

namespace checks {

/// Converts `value` to what a message shows. fmt prints integers and text. A stream
/// prints everything else, such as floating point numbers (six digits), sizes, dtypes.
template <class T>
decltype(auto) shown(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return std::string_view(value);
  } else if constexpr (std::is_integral_v<T>) {
    return value;
  } else {
    return c10::str(value);
  }
}

template <class T>
using Shown = decltype(shown(std::declval<const T&>()));

/// Formats the text of a message.
std::string message_of(fmt::string_view text, fmt::format_args args);

/// Raises an `Error` with the message.
template <class Error, class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(
    const c10::SourceLocation& where,
    fmt::format_string<Shown<Args>...> text,
    const Args&... args) {
  const auto format_all = [&](const Shown<Args>&... values) {
    return message_of(text.get(), fmt::make_format_args(values...));
  };
  throw Error(where, format_all(shown(args)...));
}

}  // namespace checks

}  // namespace tessera

// TESSERA_CHECK_VALUE(dim >= 1, "[Cross] dim must be >= 1, but got {}.", dim);
//
// Raises a c10::ValueError unless the condition holds. The message is one format string
// of fmt, so that a search for its text finds the check. It is formatted, and its
// arguments are evaluated, only when the check fails. The other macros raise other
// errors.
#define TESSERA_CHECK_VALUE(condition, ...) \
  TESSERA_CHECK_WITH(::c10::ValueError, condition, __VA_ARGS__)
#define TESSERA_CHECK_TYPE(condition, ...) \
  TESSERA_CHECK_WITH(::c10::TypeError, condition, __VA_ARGS__)
#define TESSERA_CHECK_INDEX(condition, ...) \
  TESSERA_CHECK_WITH(::c10::IndexError, condition, __VA_ARGS__)
#define TESSERA_CHECK_NOT_IMPLEMENTED(condition, ...) \
  TESSERA_CHECK_WITH(::c10::NotImplementedError, condition, __VA_ARGS__)
#define TESSERA_CHECK(condition, ...) \
  TESSERA_CHECK_WITH(::c10::Error, condition, __VA_ARGS__)

#define TESSERA_CHECK_WITH(Error, condition, ...)                              \
  do {                                                                         \
    if (C10_UNLIKELY(!(condition))) {                                          \
      ::tessera::checks::fail<Error>(                                          \
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, __VA_ARGS__); \
    }                                                                          \
  } while (false)
