// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace tessera::serving {

/// A temporary file with the ending `.pt2`. It is removed with this object.
class TemporaryFile {
 public:
  /// Errors:  c10::Error beginning with `where`, if the file can't be written.
  TemporaryFile(std::string_view bytes, const std::string& where);
  ~TemporaryFile();
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const {
    return path_;
  }

 private:
  std::string path_;
};

}  // namespace tessera::serving
