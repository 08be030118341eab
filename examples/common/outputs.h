// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/history.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

// What fails is said before training; `where` is the program and its flag, such
// as "[two_tower] --vectors", and an empty path a flag that was not given.

/// Errors:  c10::ValueError where the file can't be written, or is one of `inputs`
///          or in a folder of them.
void check_output_file(
    const std::string& where,
    const std::string& path,
    const std::vector<std::string>& inputs);

/// Makes the folder.
/// Errors:  c10::ValueError where it can't be, or can't be written to.
void make_output_folder(const std::string& where, const std::string& path);

/// A file in the system's folder for temporary files. The destructor removes it.
class TemporaryFile {
 public:
  /// Errors:  c10::ValueError where it can't be created, for example because TMPDIR
  ///          is not a folder.
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
  /// The result of `step`; nullopt when it raises an error.
  std::optional<bool> run(const std::function<bool()>& step);

  /// Writes the errors to standard error. Returns whether there are any.
  bool say() const;

 private:
  std::vector<std::string> texts_;
};

/// Tells a person why a training ended, and gives the exit status: a shell's for a
/// signal, 1 where another rank had it.
int say_stopped(
    const tessera::training::History& history,
    const std::string& checkpoint);

/// Writes what std::cout holds back.
/// Errors:  c10::Error where any of the report was lost, as on a full disk.
void finish_report(const std::string& program);
