// SPDX-License-Identifier: Apache-2.0
#include "examples/common/outputs.h"

#include <c10/util/Exception.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace fs = std::filesystem;

void check_output_file(
    const std::string& where,
    const std::string& path,
    const std::vector<std::string>& inputs) {
  if (path.empty()) {
    return;
  }
  std::error_code error;
  const fs::path folder = fs::absolute(path).parent_path();
  TORCH_CHECK_VALUE(
      ((fs::is_regular_file(path, error) && access(path.c_str(), W_OK) == 0) ||
       fs::symlink_status(path, error).type() == fs::file_type::not_found) &&
          fs::path(path).has_filename() && fs::is_directory(folder, error) &&
          access(folder.c_str(), W_OK) == 0,
      where,
      " must be a file in a folder that can be written to, but got '",
      path,
      "'. Choose another path.");
  for (const std::string& input : inputs) {
    TORCH_CHECK_VALUE(
        !fs::exists(path) ||
            !(fs::equivalent(path, input, error) ||
              fs::equivalent(folder, input, error)),
        where,
        " must not be a file that is read, but got '",
        path,
        "'. Choose another path.");
  }
}

void make_output_folder(const std::string& where, const std::string& path) {
  if (path.empty()) {
    return;
  }
  std::error_code error;
  fs::create_directories(path, error);
  TORCH_CHECK_VALUE(
      !error && access(path.c_str(), W_OK) == 0,
      where,
      " must be a folder that can be made and written to, but got '",
      path,
      "'. Choose another path.");
}

TemporaryFile::TemporaryFile(
    const std::string& program,
    const std::string& suffix) {
  std::error_code error;
  const fs::path folder = fs::temp_directory_path(error);
  path_ = (folder / (program + "-XXXXXX" + suffix)).string();
  const int file =
      error ? -1 : mkstemps(path_.data(), static_cast<int>(suffix.size()));
  TORCH_CHECK_VALUE(
      file >= 0,
      "[",
      program,
      "] expected a folder for temporary files that can be written to, but ",
      error ? "TMPDIR is not a folder" : "'" + path_ + "' can't be made",
      ". Set TMPDIR to such a folder.");
  close(file);
}

TemporaryFile::~TemporaryFile() {
  std::error_code ignored;
  fs::remove(path_, ignored);
}

std::optional<bool> FileErrors::run(const std::function<bool()>& step) {
  try {
    return step();
  } catch (const c10::Error& error) {
    texts_.emplace_back(error.what_without_backtrace());
  } catch (const std::exception& error) {
    texts_.emplace_back(error.what());
  }
  return std::nullopt;
}

bool FileErrors::print() const {
  for (const std::string& text : texts_) {
    std::cerr << text << "\n";
  }
  return !texts_.empty();
}

int report_stop(
    const tessera::training::History& history,
    const std::string& checkpoint) {
  std::cerr << "stopped by " << history.stop_reason;
  if (checkpoint.empty()) {
    std::cerr << ", without a result\n";
  } else {
    std::cerr << "; the same command continues from '" << checkpoint << "'\n";
  }
  const int signal = history.stop_signal();
  return signal == 0 ? 1 : 128 + signal;
}

void finish_report(const std::string& program) {
  TORCH_CHECK(
      std::cout.flush(),
      "[",
      program,
      "] expected to write the report, but standard output failed. Check that "
      "the disk is not full.");
}
