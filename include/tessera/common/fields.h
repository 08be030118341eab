// SPDX-License-Identifier: Apache-2.0
#pragma once

// These are macros, because C++20 does not know the names of members.

/// Lists the fields of a struct, for its JSON. It defines visit_fields(object, visit),
/// which calls visit("name", object.name) for each field, in this order.
///
///   struct ScaleOptions {
///     double initial_value = 1.0;
///     TESSERA_FIELDS(initial_value)
///   };
///
/// If JSON has another name for a field, write visit_fields() yourself.
#define TESSERA_FIELDS(...)                                         \
  static void visit_fields(                                         \
      [[maybe_unused]] auto& self, [[maybe_unused]] auto&& visit) { \
    __VA_OPT__(TESSERA_VISIT_FIELDS(__VA_ARGS__))                   \
  }

// The statements of visit_fields(). A macro does not expand itself, so TESSERA_SCAN_4
// expands its arguments 85 times. Each expansion writes one more field.
#define TESSERA_VISIT_FIELDS(...) \
  TESSERA_SCAN_4(TESSERA_VISIT_FIELD(__VA_ARGS__, ))
#define TESSERA_VISIT_FIELD(name, ...) \
  visit(#name, self.name);             \
  __VA_OPT__(TESSERA_NEXT_FIELD TESSERA_NO_ARGUMENTS(__VA_ARGS__))
#define TESSERA_NEXT_FIELD() TESSERA_VISIT_FIELD
#define TESSERA_NO_ARGUMENTS ()
#define TESSERA_SCAN_4(...) \
  TESSERA_SCAN_3(TESSERA_SCAN_3(TESSERA_SCAN_3(TESSERA_SCAN_3(__VA_ARGS__))))
#define TESSERA_SCAN_3(...) \
  TESSERA_SCAN_2(TESSERA_SCAN_2(TESSERA_SCAN_2(TESSERA_SCAN_2(__VA_ARGS__))))
#define TESSERA_SCAN_2(...) \
  TESSERA_SCAN_1(TESSERA_SCAN_1(TESSERA_SCAN_1(TESSERA_SCAN_1(__VA_ARGS__))))
#define TESSERA_SCAN_1(...) __VA_ARGS__
