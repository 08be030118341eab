// SPDX-License-Identifier: Apache-2.0
#include "src/data/text_begin.h"

#include "src/common/check.h"

namespace tessera::data {

namespace {

constexpr std::string_view kGzip = "\x1f\x8b";
constexpr std::string_view kZstd = "\x28\xb5\x2f\xfd";

// The first bytes of a format.
struct Magic {
  std::string_view bytes = {};
  const char* format = "";
  const char* advice = "";
};

constexpr Magic kNoText[] = {
    {.bytes = kGzip,
     .format = "compressed with gzip",
     .advice = "Unpack it first."},
    {.bytes = kZstd,
     .format = "compressed with zstd",
     .advice = "Unpack it first."},
    {.bytes = "BZh",
     .format = "compressed with bzip2",
     .advice = "Compress it with gzip."},
    {.bytes = "\xfd"
              "7zXZ",
     .format = "compressed with xz",
     .advice = "Compress it with gzip."},
    {.bytes = "\x04\x22\x4d\x18",
     .format = "compressed with LZ4",
     .advice = "Compress it with gzip."},
    {.bytes = "PK\x03\x04",
     .format = "a zip file",
     .advice = "Unpack it first."},
    {.bytes = "PAR1",
     .format = "a Parquet file",
     .advice = "Use make_parquet_source()."},
    {.bytes = "ARROW1",
     .format = "an Arrow file",
     .advice = "Use make_feather_source()."},
    {.bytes = "\xff\xff\xff\xff",
     .format = "an Arrow stream",
     .advice =
         "Write it as an Arrow file, which is also called Feather version 2, and use make_feather_source()."},
    {.bytes = "FEA1",
     .format = "a Feather file",
     .advice = "Write it as Feather version 2, and use make_feather_source()."},
    {.bytes = "\x93NUMPY",
     .format = "a .npy file",
     .advice = "Write its values as text, or use load_npy()."},
    {.bytes = "\x89HDF",
     .format = "an HDF5 file",
     .advice = "Write its values as CSV or Parquet."},
    {.bytes = "\xff\xfe",
     .format = "UTF-16 text",
     .advice = "Convert it to UTF-8."},
    {.bytes = "\xfe\xff",
     .format = "UTF-16 text",
     .advice = "Convert it to UTF-8."}};

}  // namespace

void check_text_begin(
    std::string_view begin,
    bool is_unpacked,
    const std::string& where) {
  for (const Magic& magic : kNoText) {
    TESSERA_CHECK_VALUE(
        !begin.starts_with(magic.bytes),
        "{} must be a text file, but {} {}. {}",
        where,
        is_unpacked ? "what it unpacks to is" : "it is",
        magic.format,
        magic.advice);
  }
}

bool begins_gzip(std::string_view begin) {
  return begin.starts_with(kGzip);
}

bool begins_zstd(std::string_view begin) {
  return begin.starts_with(kZstd);
}

}  // namespace tessera::data
