// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <string>
#include <string_view>

#include "src/common/check.h"

namespace tessera {

/// Joins the names of items, "a, b, c", for a message.
///
///   join_names(state.tables, &TableState::name)
///
/// Pass names from outside through shorten(), or use shorten_all().
template <class Items, class NameOf = std::identity>
std::string join_names(const Items& items, NameOf name_of = {}) {
  std::string names;
  for (const auto& item : items) {
    names += names.empty() ? "" : ", ";
    names += std::invoke(name_of, item);
  }
  return names;
}

/// The shortened name of an item, for join_names().
inline constexpr auto shortened_name = [](const auto& item) {
  return shorten(item.name);
};

/// The value of an enum with this name. `names` are the names of its values, in the order
/// of the values. `last` is the last value.
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
