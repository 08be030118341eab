// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/checkpoint.h>

#include "serialization/checkpoint_reader.h"
#include "serialization/manifest.h"
#include "src/common/check.h"
#include "src/common/files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

namespace tessera {

std::vector<std::string> list_checkpoints(const std::string& directory) {
  return list_checkpoints(directory, "[list_checkpoints]");
}

std::vector<std::string> list_checkpoints(
    const std::string& directory,
    const std::string& where) {
  check_path(directory, where);
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(directory, error), end;
       !error && entry != end;
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (checkpoint_number(name)) {
      names.push_back(std::move(name));
    }
  }
  TESSERA_CHECK(
      !error || error == std::errc::no_such_file_or_directory,
      "{} can't read the directory '{}': {}. {}",
      where,
      directory,
      error.message(),
      advice_to_read(error.value()));
  std::ranges::sort(names, {}, checkpoint_number);
  return names;
}

}  // namespace tessera
