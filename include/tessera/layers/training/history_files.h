// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/training/callback.h>

#include <string>
#include <utility>

namespace tessera::training {

/// Keeps a file of the history up to date: after each epoch it is written whole,
/// beside its place, and put there by a rename. A resumed training has the epochs
/// before in its history, and so in the file, each once. What the file held
/// before is replaced after the first epoch.
/// Errors:  before training begins, c10::ValueError or c10::Error naming the path
///          where no file can be written.
class HistoryFile : public Callback {
 public:
  const std::string& path() const {
    return path_;
  }
  void on_train_begin(Training& training) override;
  void on_epoch_end(Training& training) override;
  void on_train_end(Training& training) override;

 protected:
  /// Errors:  c10::ValueError for an empty path.
  HistoryFile(std::string where, std::string path);

  virtual std::string text_of(const History& history) const = 0;

 private:
  void write(const History& history) const;

  std::string where_;
  std::string path_;
};

/// The history as to_csv() writes it.
class CsvHistory : public HistoryFile {
 public:
  explicit CsvHistory(std::string path)
      : HistoryFile("[CsvHistory]", std::move(path)) {}

 protected:
  std::string text_of(const History& history) const override;
};

/// The history as to_json() writes it.
class JsonHistory : public HistoryFile {
 public:
  explicit JsonHistory(std::string path)
      : HistoryFile("[JsonHistory]", std::move(path)) {}

 protected:
  std::string text_of(const History& history) const override;
};

}  // namespace tessera::training
