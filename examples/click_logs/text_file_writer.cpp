// SPDX-License-Identifier: Apache-2.0
#include "examples/click_logs/text_file_writer.h"

#include "src/common/check.h"
#include "src/common/files.h"

#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

namespace click_logs {

namespace {

const char* describe(int zlib_status) {
  return zlib_status == Z_ERRNO ? std::strerror(errno) : zError(zlib_status);
}

}  // namespace

TextFileWriter::TextFileWriter(std::string path, std::string where)
    : path_(std::move(path)), where_(std::move(where)) {
  tessera::check_path(path_, where_);
  std::error_code ignored;
  const auto there = std::filesystem::status(path_, ignored);
  require(
      !std::filesystem::exists(there) ||
          std::filesystem::is_regular_file(there),
      "it exists, but is not a regular file");
  const auto folder = std::filesystem::path(path_).parent_path();
  const bool has_folder =
      ::access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) == 0;
  require(has_folder, std::strerror(errno));
  file_.emplace(path_, where_);
  // "T" writes without compression. Level 1 takes a third of the time of zlib's default.
  errno = 0;
  text_ = gzopen(
      file_->written_path().c_str(), path_.ends_with(".gz") ? "wb1" : "wbT");
  require(text_ != nullptr, errno != 0 ? std::strerror(errno) : "no memory");
}

TextFileWriter::~TextFileWriter() {
  if (text_ != nullptr) {
    gzclose(text_);
  }
}

void TextFileWriter::write(std::string_view text) {
  constexpr size_t kMaxAtATime = size_t{1} << 30;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, kMaxAtATime);
    int status = Z_OK;
    if (gzwrite(text_, part.data(), static_cast<unsigned>(part.size())) <= 0) {
      gzerror(text_, &status);
      require(false, describe(status));
    }
    text.remove_prefix(part.size());
  }
}

void TextFileWriter::finish() {
  const int status = gzclose(std::exchange(text_, nullptr));
  require(status == Z_OK, describe(status));
  file_->commit();
}

void TextFileWriter::require(bool is_valid, const char* problem) const {
  TESSERA_CHECK_VALUE(
      is_valid,
      "{} can't write '{}': {}. Choose a path in a folder that may be written to and has free space.",
      where_,
      path_,
      problem);
}

}  // namespace click_logs
