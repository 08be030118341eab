// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/columns.h>

#include "packages/data/src/column_values.h"
#include "src/common/text_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <concepts>
#include <ostream>

namespace tessera::data {

namespace {

// Longer text and lists are cut.
constexpr size_t kMaxCellBytes = 40;
constexpr int64_t kMaxListValues = 10;

// The text without line breaks and other control characters, and not too long.
std::string cell_of(std::string text) {
  std::replace_if(
      text.begin(),
      text.end(),
      [](char byte) {
        return static_cast<unsigned char>(byte) < 0x20 || byte == 0x7f;
      },
      ' ');
  if (text.size() > kMaxCellBytes) {
    size_t end = kMaxCellBytes;
    while ((static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) {
      --end;  // not in the middle of a character
    }
    text.resize(end);
    text += "...";
  }
  return text;
}

template <class T>
std::string show_value(const T& value) {
  if (is_missing(value)) {
    return "(missing)";
  }
  if constexpr (std::same_as<T, std::string>) {
    return cell_of(value);
  } else {
    return fmt::format("{}", value);
  }
}

// The type and the first values of a column.
std::vector<std::string> cells_of(const Column& column, int64_t examples) {
  std::vector<std::string> cells;
  visit_values(column, [&]<class T>(std::span<const T> values) {
    const char* type = std::same_as<T, int64_t> ? "int64"
        : std::same_as<T, float>                ? "float32"
                                                : "text";
    if (!column.row_splits.defined()) {
      cells.emplace_back(type);
      for (int64_t i = 0; i < examples; ++i) {
        cells.push_back(show_value(values[static_cast<size_t>(i)]));
      }
      return;
    }
    cells.push_back(fmt::format("[{}]", type));
    const at::Tensor splits = column.row_splits.contiguous();
    const auto* begin = splits.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < examples; ++i) {
      std::string list;
      for (int64_t k = begin[i]; k < begin[i + 1]; ++k) {
        list += list.empty() ? "" : ",";
        if (k == begin[i] + kMaxListValues) {
          list += fmt::format("... {} values", begin[i + 1] - begin[i]);
          break;
        }
        list += show_value(values[static_cast<size_t>(k)]);
      }
      cells.push_back("[" + list + "]");
    }
  });
  return cells;
}

}  // namespace

std::string to_string(const Columns& columns, int64_t max_examples) {
  const int64_t size = columns.batch_size();
  const int64_t shown = std::clamp<int64_t>(max_examples, 0, size);
  std::vector<std::vector<std::string>> lines(static_cast<size_t>(shown + 2));
  for (const auto& [name, column] : columns.entries()) {
    lines[0].push_back(cell_of(name));
    const std::vector<std::string> cells = cells_of(column, shown);
    for (size_t i = 0; i < cells.size(); ++i) {
      lines[i + 1].push_back(cells[i]);
    }
  }
  std::string text = align(lines);
  if (columns.entries().empty()) {
    return "no columns\n";
  }
  if (shown < size) {
    text += fmt::format("{} more examples\n", size - shown);
  }
  return text;
}

std::ostream& operator<<(std::ostream& stream, const Columns& columns) {
  return stream << to_string(columns);
}

}  // namespace tessera::data
