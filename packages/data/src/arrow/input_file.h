// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <arrow/io/file.h>
#include <arrow/status.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace tessera::data {

/// The state of a file when a source was made. A reader compares it with the present
/// state.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  int64_t bytes = 0;
  // Two numbers, because int64 can count nanoseconds only up to the year 2262.
  int64_t changed_seconds = 0;
  int64_t changed_nanoseconds = 0;

  bool operator==(const FileStamp&) const = default;
};

/// The beginning of messages about a file: "[reader] 'path'".
std::string where_of_file(const std::string& reader, const std::string& path);

/// The state of a file that is not empty.
/// Errors:  c10::ValueError for a path that is missing, a folder, empty or not a
///          regular file.
FileStamp stamp_of(const std::string& reader, const std::string& path);

/// Checks that a file begins with `magic`, the bytes of its format. A file that is
/// shorter than `magic` passes, too, if its bytes agree with the beginning of `magic`.
/// Errors:  c10::ValueError that names the format of the file, if it is known, and
///          functions that read it.
void check_format(
    const std::string& reader,
    const std::string& path,
    const char* format,
    std::string_view magic);

/// Errors:  c10::ValueError if the file has changed.
void check_unchanged(
    const std::string& reader,
    const std::string& path,
    const FileStamp& expected);

/// Checks that a file has not changed, and opens it.
std::shared_ptr<arrow::io::ReadableFile> open_input(
    const std::string& reader,
    const std::string& path,
    const FileStamp& expected);

/// Errors:  c10::ValueError that begins with `where` if Arrow has failed.
void check_status(const arrow::Status& status, const std::string& where);

}  // namespace tessera::data
