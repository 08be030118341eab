// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>
#include <variant>

namespace tessera {

/// The class of a variant's value without its namespaces, such as "Adam". Files have this
/// name.
inline constexpr auto class_name_of = [](const auto& variant) {
  return std::visit(
      []<class T>(const T& /*value*/) {
        static const std::string name = c10::demangle(typeid(T).name());
        return name.substr(name.rfind(':') + 1);
      },
      variant);
};

}  // namespace tessera
