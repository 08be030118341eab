// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <zlib.h>

#include <string>
#include <string_view>

namespace click_logs {

/// A text file, compressed when its name ends in .gz, that takes its place only
/// when it is complete: until then it is beside it, as path + ".partial", and is
/// removed when there is an error. What was there before stays until the end.
class TextFileWriter {
 public:
  /// Errors:  c10::ValueError beginning with `where`, as of all that follows, when
  ///          the file can't be made or something else than a file is there.
  TextFileWriter(std::string path, std::string where);
  ~TextFileWriter();
  TextFileWriter(const TextFileWriter&) = delete;
  TextFileWriter& operator=(const TextFileWriter&) = delete;

  void write(std::string_view text);
  /// Puts the file in its place. Without it there is none.
  void finish();

 private:
  void require(bool is_right, const char* problem) const;

  std::string path_;
  std::string partial_;
  std::string where_;
  gzFile_s* file_ = nullptr;
  bool is_finished_ = false;
};

}  // namespace click_logs
