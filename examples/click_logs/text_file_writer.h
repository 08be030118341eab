// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/atomic_file.h"

#include <optional>
#include <string>
#include <string_view>

struct gzFile_s;

namespace click_logs {

/// Writes a text file, which is compressed if its name ends in .gz. Like an AtomicFile,
/// it replaces an existing file only when it is complete.
class TextFileWriter {
 public:
  /// Errors:  c10::ValueError beginning with `where` if the file can't be created or
  ///          written, or the path is not a file; c10::Error beginning with `where` if
  ///          the finished file can't be renamed.
  TextFileWriter(std::string path, std::string where);
  ~TextFileWriter();
  TextFileWriter(const TextFileWriter&) = delete;
  TextFileWriter& operator=(const TextFileWriter&) = delete;

  void write(std::string_view text);
  /// Renames the complete file to its path. Without this call there is no file.
  void finish();

 private:
  void require(bool is_valid, const char* problem) const;

  std::string path_;
  std::string where_;
  std::optional<tessera::AtomicFile> file_;
  gzFile_s* text_ = nullptr;
};

}  // namespace click_logs
