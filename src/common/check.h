// SPDX-License-Identifier: Apache-2.0
#pragma once

// With TESSERA_WITHOUT_LIBTORCH, this header and what is built on it do not need LibTorch,
// and errors are those of the standard library.
#ifdef TESSERA_WITHOUT_LIBTORCH
#include <sstream>
#include <stdexcept>
#else
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#endif

#include <fmt/format.h>

#include <cstdint>
#include <exception>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace tessera {

namespace checks {

#ifdef TESSERA_WITHOUT_LIBTORCH
struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

using Error = std::runtime_error;
using ValueError = std::invalid_argument;
using TypeError = std::invalid_argument;
using IndexError = std::out_of_range;
using NotImplementedError = std::logic_error;

template <class T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

template <class Error>
[[noreturn]] void raise(const SourceLocation& /*where*/, std::string message) {
  throw Error(message);
}

inline std::string message_of_error(const std::exception& error) {
  return error.what();
}
#else
using SourceLocation = c10::SourceLocation;

using Error = c10::Error;
using ValueError = c10::ValueError;
using TypeError = c10::TypeError;
using IndexError = c10::IndexError;
using NotImplementedError = c10::NotImplementedError;

template <class T>
std::string text_of(const T& value) {
  return c10::str(value);
}

template <class Error>
[[noreturn]] void raise(const SourceLocation& where, std::string message) {
  throw Error(where, std::move(message));
}

inline std::string message_of_error(const c10::Error& error) {
  return error.what_without_backtrace();
}
#endif

/// Converts `value` to what a message shows. fmt prints integers and text. A stream
/// prints everything else, such as floating-point numbers (six digits), sizes and dtypes.
template <class T>
decltype(auto) shown(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return std::string_view(value);
  } else if constexpr (std::is_integral_v<T>) {
    return value;
  } else {
    return text_of(value);
  }
}

template <class T>
using Shown = decltype(shown(std::declval<const T&>()));

/// Formats the text of a message.
std::string message_of(fmt::string_view text, fmt::format_args args);

/// Raises an `Error` with the message.
template <class Error, class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(
    const SourceLocation& where,
    fmt::format_string<Shown<Args>...> text,
    const Args&... args) {
  const auto format_all = [&](const Shown<Args>&... values) {
    return message_of(text.get(), fmt::make_format_args(values...));
  };
  raise<Error>(where, format_all(shown(args)...));
}

}  // namespace checks

/// Returns the line of an error's message that states the problem, without the stacks of
/// C++ and TorchScript.
std::string reason_of(const std::exception& error);

}  // namespace tessera

// TESSERA_CHECK_VALUE(dim >= 1, "[Cross] dim must be >= 1, but got {}.", dim);
//
// Raises a c10::ValueError unless the condition holds. The message is one format string
// of fmt, so that a search for its text finds the check. It is formatted, and its
// arguments are evaluated, only when the check fails. The other macros raise other
// errors.
#define TESSERA_CHECK_VALUE(condition, ...) \
  TESSERA_CHECK_WITH(::tessera::checks::ValueError, condition, __VA_ARGS__)
#define TESSERA_CHECK_TYPE(condition, ...) \
  TESSERA_CHECK_WITH(::tessera::checks::TypeError, condition, __VA_ARGS__)
#define TESSERA_CHECK_INDEX(condition, ...) \
  TESSERA_CHECK_WITH(::tessera::checks::IndexError, condition, __VA_ARGS__)
#define TESSERA_CHECK_NOT_IMPLEMENTED(condition, ...) \
  TESSERA_CHECK_WITH(                                 \
      ::tessera::checks::NotImplementedError, condition, __VA_ARGS__)
#define TESSERA_CHECK(condition, ...) \
  TESSERA_CHECK_WITH(::tessera::checks::Error, condition, __VA_ARGS__)

#define TESSERA_CHECK_WITH(ErrorClass, condition, ...)                         \
  do {                                                                         \
    if (!(condition)) [[unlikely]] {                                           \
      ::tessera::checks::fail<ErrorClass>(                                     \
          {__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, __VA_ARGS__); \
    }                                                                          \
  } while (false)
