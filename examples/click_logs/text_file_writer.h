// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/atomic_file.h"

#include <optional>
#include <string>
#include <string_view>

struct gzFile_s;

namespace click_logs {

/// A text file, compressed when its name ends in .gz, that takes its place only
/// when it is complete, as an AtomicFile. What was there before stays until the end.
class TextFileWriter {
 public:
  /// Errors:  c10::ValueError beginning with `where` when the file can't be made or
  ///          written, or something else than a file is there; c10::Error beginning
  ///          with `where` when it can't be put in its place.
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
  std::string where_;
  std::optional<tessera::AtomicFile> file_;
  gzFile_s* text_ = nullptr;
};

}  // namespace click_logs
