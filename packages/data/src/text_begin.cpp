// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/text_begin.h"

#include "src/common/check.h"

namespace tessera::data {

namespace {

constexpr std::string_view kGzip = "\x1f\x8b";
constexpr std::string_view kZstd = "\x28\xb5\x2f\xfd";

constexpr const char* kUnpackOrGzip =
    "Unpack it, or compress it with gzip if it is text.";

constexpr const char* kWriteParquet =
    "Write it as a Parquet file, for example with pandas.DataFrame.to_parquet().";

constexpr BinaryFormat kFormats[] = {
    {.bytes = kGzip,
     .name = "compressed with gzip",
     .advice = "Unpack it first."},
    {.bytes = kZstd,
     .name = "compressed with zstd",
     .advice = "Unpack it first."},
    {.bytes = "BZh", .name = "compressed with bzip2", .advice = kUnpackOrGzip},
    {.bytes = "\xfd"
              "7zXZ",
     .name = "compressed with xz",
     .advice = kUnpackOrGzip},
    {.bytes = "\x04\x22\x4d\x18",
     .name = "compressed with LZ4",
     .advice = kUnpackOrGzip},
    {.bytes = "PK\x03\x04", .name = "a zip file", .advice = "Unpack it first."},
    {.bytes = {"ustar\0", 6},
     .offset = 257,
     .name = "a tar file",
     .advice = "Unpack it first."},
    {.bytes = {"ustar  \0", 8},
     .offset = 257,
     .name = "a tar file",
     .advice = "Unpack it first."},
    {.bytes = "PAR1",
     .name = "a Parquet file",
     .advice = "Use make_parquet_source()."},
    {.bytes = "ARROW1",
     .name = "an Arrow file, also called Feather",
     .advice = kWriteParquet},
    {.bytes = "\xff\xff\xff\xff",
     .name = "an Arrow stream",
     .advice = kWriteParquet},
    {.bytes = {"FEA1\0", 5},  // padded to 8 bytes
     .name = "a Feather file of version 1",
     .advice = kWriteParquet},
    {.bytes = "\x93NUMPY",
     .name = "a .npy file",
     .advice = "Write its values as text, or use load_npy()."},
    {.bytes = "\x89HDF",
     .name = "an HDF5 file",
     .advice = "Write its values as CSV or Parquet."},
    {.bytes = "\xff\xfe",
     .name = "UTF-16 text",
     .advice = "Convert it to UTF-8."},
    {.bytes = "\xfe\xff",
     .name = "UTF-16 text",
     .advice = "Convert it to UTF-8."}};

}  // namespace

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

}  // namespace tessera::data
