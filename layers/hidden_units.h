// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

/// Checks the widths of hidden layers, after which one layer follows.
/// Errors:  c10::ValueError unless there are 1 to 1023 sizes >= 1.
void check_hidden_units(
    const std::vector<int64_t>& hidden_units,
    const std::string& class_name);

}  // namespace tessera
