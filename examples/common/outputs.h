// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/history.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

// These functions check outputs before the training. `where` is the program and its flag,
// such as "[two_tower] --vectors". An empty path means that the flag was not given.

/// Checks that the file can be written.
/// Errors:  c10::ValueError if the file can't be written, or is one of `inputs` or in
///          one of these folders.
void check_output_file(
    const std::string& where,
    const std::string& path,
    const std::vector<std::string>& inputs);

/// Creates the folder.
/// Errors:  c10::ValueError if it can't be created or written to.
void make_output_folder(const std::string& where, const std::string& path);

/// A file in the system's folder for temporary files. The destructor removes it.
class TemporaryFile {
 public:
  /// Errors:  c10::ValueError if it can't be created, for example because TMPDIR is not
  ///          a folder.
  TemporaryFile(const std::string& program, const std::string& suffix);
  ~TemporaryFile();

  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  const std::string& path() const {
    return path_;
  }

 private:
  std::string path_;
};

/// Collects errors of writing files after the training, so that the report is still
/// printed.
class FileErrors {
 public:
  /// Runs `step` and returns its result, or nullopt if it raises an error.
  std::optional<bool> run(const std::function<bool()>& step);

  /// Writes the errors to standard error. Returns whether there are any.
  bool print() const;

 private:
  std::vector<std::string> texts_;
};

/// Writes why a training was stopped, and returns the exit status: 128 + the number of
/// the signal, or 1 if another rank got the signal.
int report_stop(
    const tessera::training::History& history,
    const std::string& checkpoint);

/// Flushes std::cout.
/// Errors:  c10::Error if a part of the report was lost, for example on a full disk.
void finish_report(const std::string& program);
