// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/input_file.h"

#include <tessera/common/shorten.h>
#include <tessera/data/file_bytes.h>

#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"
#include "src/common/files.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace tessera::data {

std::string where_of_file(const std::string& reader, const std::string& path) {
  return "[" + reader + "] '" + shorten(path) + "'";
}

FileStamp stamp_of(const std::string& reader, const std::string& path) {
  check_path(path, "[" + reader + "]");
  check_readable(path, reader);
  check_regular_file(reader, path);
  struct stat status = {};
  ::stat(path.c_str(), &status);
  return {
      .device = status.st_dev,
      .inode = status.st_ino,
      .bytes = status.st_size,
      .changed_seconds = status.st_mtim.tv_sec,
      .changed_nanoseconds = status.st_mtim.tv_nsec};
}

void check_format(
    const std::string& reader,
    const std::string& path,
    const char* format,
    std::string_view magic) {
  const std::string begin = begin_of_file(path);
  if (magic.starts_with(begin.substr(0, magic.size()))) {
    return;
  }
  if (const BinaryFormat* other = find_binary_format(begin)) {
    TESSERA_CHECK_VALUE(
        false,
        "{} must be a {} file, but it is {}. {}",
        where_of_file(reader, path),
        format,
        other->name,
        other->advice);
  }
  TESSERA_CHECK_VALUE(
      false,
      "{} must be a {} file, but it does not begin with '{}'. Use make_csv_source() for text, or make_file_source(), which recognises the format.",
      where_of_file(reader, path),
      format,
      magic);
}

void check_unchanged(
    const std::string& reader,
    const std::string& path,
    const FileStamp& expected) {
  const FileStamp actual = stamp_of(reader, path);
  TESSERA_CHECK_VALUE(
      actual == expected,
      "{} has changed since the source was made: it had {} bytes, and now it has {}. Make a new source when the file is complete.",
      where_of_file(reader, path),
      expected.bytes,
      actual.bytes);
}

std::shared_ptr<arrow::io::ReadableFile> open_input(
    const std::string& reader,
    const std::string& path,
    const FileStamp& expected) {
  check_unchanged(reader, path, expected);
  auto file = arrow::io::ReadableFile::Open(path);
  const int number = errno;
  TESSERA_CHECK_VALUE(
      file.ok(),
      "{} can't be opened: {}. {}",
      where_of_file(reader, path),
      std::strerror(number),
      advice_to_read(number));
  return file.MoveValueUnsafe();
}

void check_status(const arrow::Status& status, const std::string& where) {
  if (status.ok()) {
    return;
  }
  std::string problem = status.message();
  while (!problem.empty() &&
         (problem.back() == '.' || problem.back() == '\n')) {
    problem.pop_back();
  }
  TESSERA_CHECK_VALUE(
      false,
      "{} can't be read: {}. The file may be damaged, incomplete or of another format.",
      where,
      problem);
}

}  // namespace tessera::data
