// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/text_begin.h"

#include "src/common/check.h"

#include <fstream>

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
    // Padded to 8 bytes.
    {{"FEA1\0", 5}, "a Feather file of version 1", kWriteParquet},
    {"\x93NUMPY",
     "a .npy file",
     "Write its values as text, or use load_npy()."},
    {"\x89HDF", "an HDF5 file", kWriteCsv},
    {"\xff\xfe", "UTF-16 text", kConvert},
    {"\xfe\xff", "UTF-16 text", kConvert}};

}  // namespace

std::string begin_of_file(const std::string& path) {
  std::string begin(kTextBeginBytes, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
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

}  // namespace tessera::data
