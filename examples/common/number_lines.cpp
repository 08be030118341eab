// SPDX-License-Identifier: Apache-2.0
#include "examples/common/number_lines.h"

#include <tessera/common/shorten.h>
#include <tessera/data/line_source.h>

#include <c10/util/Exception.h>

#include <charconv>
#include <cstddef>
#include <limits>
#include <string_view>

namespace {

std::vector<int64_t> numbers_of(
    std::string_view line,
    int64_t smallest,
    const std::string& where) {
  std::vector<int64_t> numbers;
  while (true) {
    const size_t begin = line.find_first_not_of(" \r");
    if (begin == std::string_view::npos) {
      return numbers;
    }
    line.remove_prefix(begin);
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(line.data(), line.data() + line.size(), value);
    const auto length = static_cast<size_t>(end - line.data());
    TORCH_CHECK_VALUE(
        error == std::errc() && value >= smallest &&
            value <= std::numeric_limits<int32_t>::max() &&
            (length == line.size() || line[length] == ' ' ||
             line[length] == '\r'),
        where,
        ": expected `user item item ...`, with numbers from ",
        smallest,
        " and spaces between them, but got '",
        tessera::shorten(std::string(line)),
        "'. Correct the line.");
    numbers.push_back(value);
    line.remove_prefix(length);
  }
}

}  // namespace

void for_each_number_line(
    const std::string& reader,
    const std::string& path,
    int64_t smallest,
    const std::function<void(const std::vector<int64_t>&)>& use) {
  constexpr size_t kMaxBytes = size_t{1} << 20;
  tessera::data::LineSource source(
      {.files = {path}, .max_line_bytes = kMaxBytes, .reader = reader});
  for (tessera::data::LineSource::Block block; source.next(block);) {
    std::string_view text(
        block.text.data() + block.begin, block.end - block.begin);
    for (int64_t line = 1; !text.empty(); ++line) {
      const std::string where = "[" + reader + "] " + path + ":" +
          std::to_string(block.first_line_of_file + line);
      const size_t end = text.find('\n');
      TORCH_CHECK_VALUE(
          end <= kMaxBytes,
          where,
          ": expected a line of at most ",
          kMaxBytes,
          " bytes. Split the user's items, or leave the user out.");
      const std::vector<int64_t> numbers =
          numbers_of(text.substr(0, end), smallest, where);
      if (!numbers.empty()) {
        use(numbers);
      }
      text.remove_prefix(end + 1);
    }
  }
}
