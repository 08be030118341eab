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

/// A file in the system's folder for temporary files, which is removed at the end.
class TemporaryFile {
 public:
  /// Errors:  c10::ValueError where it can't be made, as when TMPDIR is no folder.
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

/// Keeps the errors of what writes files after the training, so that they don't cost
/// the report.
class FileErrors {
 public:
  /// What `step` gives; nothing when it raises an error.
  std::optional<bool> run(const std::function<bool()>& step);

  /// Writes the errors to standard error, after the report. False when there are none.
  bool say() const;

 private:
  std::vector<std::string> texts_;
};

/// What is wrong with an option's text that an unset variable of a shell gives.
std::string refuse_empty(const std::string& text);

/// Tells a person why a training ended, and gives the exit status: a shell's for a
/// signal, 1 where another rank had it.
int say_stopped(const tessera::History& history, const std::string& checkpoint);

/// Writes what std::cout holds back.
/// Errors:  c10::Error where any of the report was lost, as on a full disk.
void finish_report(const std::string& program);
