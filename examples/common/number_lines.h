// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// Calls `use` with the numbers of each line of a text or gzip file. They are at least
/// `smallest`, with spaces between them. Empty lines are left out.
/// Errors:  c10::ValueError naming reader, file and line for anything else in the file.
void for_each_number_line(
    const std::string& reader,
    const std::string& path,
    int64_t smallest,
    const std::function<void(const std::vector<int64_t>&)>& use);
