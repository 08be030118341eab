// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/program/temporary_file.h"

#include "src/common/check.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <stdlib.h>
#include <unistd.h>

namespace tessera::serving {

TemporaryFile::TemporaryFile(std::string_view bytes, const std::string& where)
    : path_((std::filesystem::temp_directory_path() / "tessera_XXXXXX.pt2")
                .string()) {
  constexpr int kLengthOfEnding = 4;
  const int file = mkstemps(path_.data(), kLengthOfEnding);
  bool is_written = file >= 0;
  while (is_written && !bytes.empty()) {
    const ssize_t count = write(file, bytes.data(), bytes.size());
    is_written = count > 0 || (count < 0 && errno == EINTR);
    bytes.remove_prefix(count > 0 ? static_cast<size_t>(count) : 0);
  }
  const int error = errno;
  if (file >= 0) {
    close(file);
  }
  if (!is_written && file >= 0) {
    unlink(path_.c_str());
  }
  TESSERA_CHECK(
      is_written,
      "{} could not write {}: {}. Free some space, or set TMPDIR to another folder.",
      where,
      path_,
      std::strerror(error));
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  std::filesystem::remove(path_, ignored);
}

}  // namespace tessera::serving
