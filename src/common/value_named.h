// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/check.h"
#include "src/common/names.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <string_view>

namespace tessera {

/// The value of an enum with this name. `names` are those of its values up to `last`, in
/// their order.
/// Errors:  c10::ValueError that `what` must be one of the names.
template <auto last, class Names>
auto value_named(std::string_view name, const Names& names, const char* what) {
  static_assert(
      sizeof(Names) / sizeof(const char*) == static_cast<size_t>(last) + 1,
      "each value of the enum needs a name");
  const auto found = std::find(std::begin(names), std::end(names), name);
  TESSERA_CHECK_VALUE(
      found != std::end(names),
      "{} must be one of {}, but got '{}'.",
      what,
      join_names(names),
      shorten(name));
  return static_cast<decltype(last)>(found - std::begin(names));
}

}  // namespace tessera
