// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <variant>

namespace tessera::optim::detail {

/// Whether T is one of the variant's alternatives. These may be incomplete types.
template <class T, class Variant>
inline constexpr bool kIsAlternative = false;
template <class T, class... Ts>
inline constexpr bool kIsAlternative<T, std::variant<Ts...>> =
    (std::same_as<T, Ts> || ...);

}  // namespace tessera::optim::detail
