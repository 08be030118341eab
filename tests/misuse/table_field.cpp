// SPDX-License-Identifier: Apache-2.0
// expects: could not convert|no matching function|does not refer to any field
#include <tessera/tables/table_config.h>

const auto users = tessera::make_table({.name = "users", .rows = 10});
