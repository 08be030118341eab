// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/malformed_lines.h>

#include "src/common/check.h"

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

namespace tessera::data {

// Messages begin with the name of the reader.

/// Errors:  c10::ValueError if the value is not in [low, high].
template <class Number>
void check_option(
    std::string_view reader,
    const char* name,
    Number value,
    std::type_identity_t<Number> low,
    std::type_identity_t<Number> high) {
  TESSERA_CHECK_VALUE(
      value >= low && value <= high,
      "[{}] {} must be in [{}, {}], but got {}. Correct the option.",
      reader,
      name,
      low,
      high,
      value);
}

/// Checks the number of threads, and replaces 0 by the default.
int64_t checked_threads(std::string_view reader, int64_t threads);

/// Errors:  c10::ValueError if there are no files. The message says to set `option`.
void check_files(
    std::string_view reader,
    const std::vector<std::string>& files,
    std::string_view option = "`files`");

/// Errors:  c10::ValueError for a pipe or a device, which can't be read several times. A pipe
///          without a writer would even block.
void check_regular_file(std::string_view reader, const std::string& path);

/// Errors:  c10::ValueError if `first` is negative.
void check_first(std::string_view reader, int64_t first);

/// Errors:  c10::ValueError if the limit is out of range or has no effect.
void check_malformed_options(
    std::string_view reader,
    MalformedLines malformed_lines,
    std::optional<int64_t> max_malformed_lines);

/// Counts a malformed line. `describe` returns its file, number and problem. `advice` is
/// what the user can do, apart from correcting the line.
/// Errors:  c10::ValueError if lines are not skipped, or if there are now too many.
void count_malformed(
    std::string_view reader,
    MalformedLines malformed_lines,
    std::optional<int64_t> max_malformed_lines,
    const std::function<std::string()>& describe,
    ReadReport& report,
    std::string_view advice = {});

/// The report of the last reader that a source has opened. Several readers may run at the
/// same time, and live longer than the source.
class LastReport {
 public:
  /// Begins the report of a new reader, and returns the number of the reader.
  int64_t begin() {
    const std::lock_guard<std::mutex> lock(mutex_);
    report_ = {};
    return ++reader_;
  }
  /// Does nothing if there is a newer reader.
  void set(int64_t reader, const ReadReport& report) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (reader == reader_) {
      report_ = report;
    }
  }
  ReadReport get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return report_;
  }

 private:
  mutable std::mutex mutex_;
  int64_t reader_ = 0;
  ReadReport report_;
};

/// The number of bytes that find_binary_format() needs at most.
inline constexpr size_t kTextBeginBytes = 265;

/// A binary format that users may pass by mistake.
struct BinaryFormat {
  std::string_view bytes = {};  // which the files have at `offset`
  const char* name = "";  // such as "a zip file"
  const char* advice = "";
  size_t offset = 0;
};

/// The first kTextBeginBytes of a file, or fewer if it can't be read.
std::string begin_of_file(const std::string& path);

/// The format of a file that begins with these bytes, or nullptr if it may be text.
const BinaryFormat* find_binary_format(std::string_view begin);

/// Checks that a file, or what it unpacks to, does not begin like a binary format.
/// Errors:  c10::ValueError that begins with `where`, and says what the file is.
void check_text_begin(
    std::string_view begin,
    bool is_unpacked,
    const std::string& where);

bool begins_gzip(std::string_view begin);
bool begins_zstd(std::string_view begin);

/// Text from a file in a message. Long text is cut, and bytes that are not printable ASCII
/// are escaped.
std::string quote_text(std::string_view text);

/// Parses a whole text as a number, as std::from_chars() does. Returns false for any other
/// text.
template <class Number>
bool parse_whole(std::string_view text, Number& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

/// Parses a whole text as a float32, without spaces or a plus sign. A number that is too
/// small for float32 is 0 or denormal. Returns false for any other text, and for a finite
/// number that is too large.
bool parse_float(std::string_view text, float& value);

}  // namespace tessera::data
