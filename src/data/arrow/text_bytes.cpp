// SPDX-License-Identifier: Apache-2.0
#include "src/data/arrow/text_bytes.h"

#include "src/common/check.h"
#include "src/data/arrow/input_file.h"

#include <arrow/io/compressed.h>
#include <arrow/io/file.h>
#include <arrow/util/compression.h>

#include <fstream>
#include <string_view>
#include <utility>

namespace tessera::data {

namespace {

// The first bytes of formats that are often mistaken for text.
struct Magic {
  std::string_view bytes = {};
  const char* format = "";
  const char* advice = "";
};

constexpr Magic kNoText[] = {
    {.bytes = "PAR1",
     .format = "a Parquet file",
     .advice = "Use make_parquet_source()."},
    {.bytes = "ARROW1",
     .format = "an Arrow file",
     .advice = "Use make_feather_source()."},
    {.bytes = "FEA1",
     .format = "a Feather file",
     .advice = "Write it as Feather version 2, and use make_feather_source()."},
    {.bytes = "PK\x03\x04",
     .format = "a zip file",
     .advice = "Unpack it first."},
    {.bytes = "BZh",
     .format = "compressed with bzip2",
     .advice = "Compress it with gzip or zstd."},
    {.bytes = "\xfd"
              "7zXZ",
     .format = "compressed with xz",
     .advice = "Compress it with gzip or zstd."},
    {.bytes = "\xff\xfe",
     .format = "UTF-16 text",
     .advice = "Convert it to UTF-8."},
    {.bytes = "\xfe\xff",
     .format = "UTF-16 text",
     .advice = "Convert it to UTF-8."}};

constexpr std::string_view kZstdMagic = "\x28\xb5\x2f\xfd";

}  // namespace

TextBytes::TextBytes(std::string reader, std::string path)
    : where_(where_of_file(reader, path)) {
  plain_ = std::make_unique<FileBytes>(path, std::move(reader));
  std::string begin(8, '\0');
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  begin.resize(static_cast<size_t>(file.gcount()));
  for (const Magic& magic : kNoText) {
    TESSERA_CHECK_VALUE(
        !begin.starts_with(magic.bytes),
        "{} must be a text file, but it is {}. {}",
        where_,
        magic.format,
        magic.advice);
  }
  if (begin.starts_with(kZstdMagic)) {
    plain_ = nullptr;
    auto input = arrow::io::ReadableFile::Open(path);
    check_status(input.status(), where_);
    auto codec = arrow::util::Codec::Create(arrow::Compression::ZSTD);
    check_status(codec.status(), where_);
    // The stream keeps no reference to the codec after it was made.
    auto stream = arrow::io::CompressedInputStream::Make(codec->get(), *input);
    check_status(stream.status(), where_);
    zstd_ = *stream;
  }
}

size_t TextBytes::read(char* to, size_t size) {
  if (plain_ != nullptr) {
    return plain_->read(to, size);
  }
  const auto count = zstd_->Read(static_cast<int64_t>(size), to);
  check_status(count.status(), where_);
  return static_cast<size_t>(*count);
}

}  // namespace tessera::data
