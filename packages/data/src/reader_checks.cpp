// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/reader_checks.h"

#include <tessera/common/shorten.h>

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <clocale>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace tessera::data {

namespace {

constexpr std::string_view kGzip = "\x1f\x8b";
constexpr std::string_view kZstd = "\x28\xb5\x2f\xfd";

constexpr const char* kUnpack = "Unpack it first.";
constexpr const char* kUnpackOrGzip =
    "Unpack it, or compress it with gzip if it is text.";
constexpr const char* kWriteParquet =
    "Write it as a Parquet file, for example with pandas.DataFrame.to_parquet().";
constexpr const char* kWriteCsv = "Write its values as CSV or Parquet.";
constexpr const char* kConvert = "Convert it to UTF-8.";

constexpr BinaryFormat kFormats[] = {
    {kGzip, "compressed with gzip", kUnpack},
    {kZstd, "compressed with zstd", kUnpack},
    {"BZh", "compressed with bzip2", kUnpackOrGzip},
    {"\3757zXZ", "compressed with xz", kUnpackOrGzip},
    {"\x04\x22\x4d\x18", "compressed with LZ4", kUnpackOrGzip},
    {"PK\x03\x04", "a zip file", kUnpack},
    {{"ustar\0", 6}, "a tar file", kUnpack, 257},
    {{"ustar  \0", 8}, "a tar file", kUnpack, 257},
    {"PAR1", "a Parquet file", "Use make_parquet_source()."},
    {"ARROW1", "an Arrow file, also called Feather", kWriteParquet},
    {"\xff\xff\xff\xff", "an Arrow stream", kWriteParquet},
    // Zeros pad FEA1 to 8 bytes. Text may begin with FEA1, too.
    {{"FEA1\0", 5}, "a Feather file of version 1", kWriteParquet},
    {"\x93NUMPY",
     "a .npy file",
     "Write its values as text, or use load_npy()."},
    {"\x89HDF", "an HDF5 file", kWriteCsv},
    {"\xff\xfe", "UTF-16 text", kConvert},
    {"\xfe\xff", "UTF-16 text", kConvert}};

}  // namespace

int64_t checked_threads(std::string_view reader, int64_t threads) {
  constexpr int64_t kMaxThreads = 1024;
  check_option(reader, "threads", threads, 0, kMaxThreads);
  if (threads > 0) {
    return threads;
  }
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  return std::clamp<int64_t>(cores, 1, 4);
}

void check_files(
    std::string_view reader,
    const std::vector<std::string>& files,
    std::string_view option) {
  TESSERA_CHECK_VALUE(
      !files.empty(),
      "[{}] expected at least one file, but files is empty. Set {}.",
      reader,
      option);
}

void check_regular_file(std::string_view reader, const std::string& path) {
  struct stat status = {};
  const bool is_found = ::stat(path.c_str(), &status) == 0;
  TESSERA_CHECK_VALUE(
      is_found && S_ISREG(status.st_mode),
      "[{}] '{}' is not a regular file, but a source reads its files several times. Write the examples to a file first.",
      reader,
      shorten(path));
}

void check_first(std::string_view reader, int64_t first) {
  TESSERA_CHECK_VALUE(
      first >= 0,
      "[{}] first must be >= 0, but got {}. Pass the number of an example.",
      reader,
      first);
}

void check_malformed_options(
    std::string_view reader,
    MalformedLines malformed_lines,
    std::optional<int64_t> max_malformed_lines) {
  constexpr int64_t kMaxLines = int64_t{1} << 62;
  if (!max_malformed_lines) {
    return;
  }
  check_option(
      reader, "max_malformed_lines", *max_malformed_lines, 0, kMaxLines);
  TESSERA_CHECK_VALUE(
      malformed_lines == MalformedLines::kSkip,
      "[{}] max_malformed_lines limits the number of skipped lines, but malformed_lines is kError, which skips none. Set malformed_lines to MalformedLines::kSkip.",
      reader);
}

void count_malformed(
    std::string_view reader,
    MalformedLines malformed_lines,
    std::optional<int64_t> max_malformed_lines,
    const std::function<std::string()>& describe,
    ReadReport& report,
    std::string_view advice) {
  constexpr size_t kMaxShown = 10;
  TESSERA_CHECK_VALUE(
      malformed_lines == MalformedLines::kSkip,
      "[{}] {}. Correct the line, {}{}or set malformed_lines to MalformedLines::kSkip to skip such lines.",
      reader,
      describe(),
      advice,
      advice.empty() ? "" : ", ");
  ++report.malformed_lines;
  if (report.first_malformed_lines.size() < kMaxShown) {
    report.first_malformed_lines.push_back(describe());
  }
  TESSERA_CHECK_VALUE(
      !max_malformed_lines || report.malformed_lines <= *max_malformed_lines,
      "[{}] expected at most {} malformed lines, but got one more: {}. The first one: {}. Check the files, or increase max_malformed_lines.",
      reader,
      *max_malformed_lines,
      describe(),
      report.first_malformed_lines.front());
}

std::string begin_of_file(const std::string& path) {
  std::string begin(kTextBeginBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(file.gcount());
  return begin;
}

const BinaryFormat* find_binary_format(std::string_view begin) {
  for (const BinaryFormat& format : kFormats) {
    if (begin.size() >= format.offset &&
        begin.substr(format.offset).starts_with(format.bytes)) {
      return &format;
    }
  }
  return nullptr;
}

void check_text_begin(
    std::string_view begin,
    bool is_unpacked,
    const std::string& where) {
  if (const BinaryFormat* format = find_binary_format(begin)) {
    TESSERA_CHECK_VALUE(
        false,
        "{} must be a text file, but {} {}. {}",
        where,
        is_unpacked ? "what it unpacks to is" : "it is",
        format->name,
        format->advice);
  }
}

bool begins_gzip(std::string_view begin) {
  return begin.starts_with(kGzip);
}

bool begins_zstd(std::string_view begin) {
  return begin.starts_with(kZstd);
}

std::string quote_text(std::string_view text) {
  constexpr size_t kMaxShown = 60;
  std::string quoted = "'";
  for (const char c : text.substr(0, kMaxShown)) {
    if (c >= ' ' && c <= '~') {
      quoted += c;
    } else if (c == '\t') {
      quoted += "\\t";
    } else {
      quoted += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return quoted + (text.size() > kMaxShown ? "...'" : "'");
}

bool parse_float(std::string_view text, float& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && stop == end) {
    // Only strtof says whether the number is too large or too small.
    static const locale_t c_locale = ::newlocale(LC_ALL_MASK, "C", nullptr);
    value = ::strtof_l(std::string(text).c_str(), nullptr, c_locale);
    return std::abs(value) < 1;
  }
  return error == std::errc() && stop == end;
}

}  // namespace tessera::data
