// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>

#include <functional>
#include <string>

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

}  // namespace tessera
