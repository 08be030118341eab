// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/csv_source.h>
#include <tessera/data/file_bytes.h>
#include <tessera/data/file_source.h>

#include <tessera/common/shorten.h>

#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"

#include <string_view>

namespace tessera::data {

namespace {

constexpr const char* kFileSource = "make_file_source";

std::string_view format_of(const std::string& file) {
  check_readable(file, kFileSource);
  check_regular_file(kFileSource, file);
  char begin[kTextBeginBytes] = {};
  FileBytes bytes(file, kFileSource);
  size_t size = 0;
  size_t count = 0;
  do {
    count = bytes.read(begin + size, sizeof(begin) - size);
    size += count;
  } while (count > 0 && size < sizeof(begin));
  const std::string_view text(begin, size);
  const BinaryFormat* format = find_binary_format(text);
  // make_csv_source() reads zstd, and refuses text that was compressed twice.
  if (format == nullptr || begins_zstd(text) || begins_gzip(text)) {
    return "CSV";
  }
  if (format->bytes == "PAR1") {
    return "Parquet";  // make_parquet_source() says if the file is compressed
  }
  TESSERA_CHECK_VALUE(
      false,
      "[make_file_source] '{}' must be a CSV or Parquet file, but {} {}. {}",
      shorten(file),
      begins_gzip(begin_of_file(file)) ? "what it unpacks to is" : "it is",
      format->name,
      format->advice);
}

}  // namespace

std::unique_ptr<ExampleSource> make_file_source(const FileOptions& options) {
  TESSERA_CHECK_VALUE(
      !options.files.empty(),
      "[make_file_source] files must have the path of one file or more, but is empty.");
  const std::string_view format = format_of(options.files.front());
  for (const std::string& file : options.files) {
    const std::string_view other = format_of(file);
    TESSERA_CHECK_VALUE(
        other == format,
        "[make_file_source] all files must have the same format, but '{}' is {} and '{}' is {}. Make a source for each format.",
        shorten(options.files.front()),
        format,
        shorten(file),
        other);
  }
  if (format == "Parquet") {
    return make_parquet_source(
        {.files = options.files,
         .columns = options.columns,
         .types = options.types,
         .int96_unit = options.int96_unit});
  }
  return make_csv_source(
      {.files = options.files,
       .columns = options.columns,
       .types = options.types,
       .list_delimiters = options.list_delimiters,
       .malformed_lines = options.malformed_lines});
}

}  // namespace tessera::data
