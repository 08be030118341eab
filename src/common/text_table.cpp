// SPDX-License-Identifier: Apache-2.0
#include "src/common/text_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace tessera {

namespace {

// The number of characters in UTF-8 text.
size_t width_of(const std::string& text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char byte) {
        return (static_cast<unsigned char>(byte) & 0xc0) != 0x80;
      }));
}

}  // namespace

std::string megabytes(int64_t bytes) {
  constexpr double kMegabyte = 1024.0 * 1024.0;
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / kMegabyte);
}

std::string align(const std::vector<std::vector<std::string>>& lines) {
  std::vector<size_t> widths;
  for (const auto& line : lines) {
    widths.resize(std::max(widths.size(), line.size()), 0);
    for (size_t i = 0; i < line.size(); ++i) {
      widths[i] = std::max(widths[i], width_of(line[i]));
    }
  }
  std::string text;
  for (const auto& line : lines) {
    std::string row;
    for (size_t i = 0; i < line.size(); ++i) {
      row += line[i];
      row.append(widths[i] + 2 - width_of(line[i]), ' ');
    }
    text += row.substr(0, row.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

}  // namespace tessera
