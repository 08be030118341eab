// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/callback.h>

#include <chrono>
#include <string>
#include <utility>

namespace tessera::training {

namespace detail {

/// A callback that writes the history to a file, at the times that CsvHistory describes.
class HistoryFile : public Callback {
 public:
  std::string path() const {
    return path_;
  }
  void on_train_begin(Training& training) override;
  void on_step_end(Training& training) override;
  void on_epoch_end(Training& training) override {
    write(training.history());
  }
  void on_train_end(Training& training) override;

 protected:
  /// Errors:  c10::ValueError for an empty path.
  HistoryFile(std::string where, std::string path);

  virtual std::string text_of(const History& history) const = 0;

 private:
  void write(const History& history);

  std::string where_;
  std::string path_;
  std::chrono::steady_clock::time_point written_ = {};
};

}  // namespace detail

// snippet: tests/docs/reference_training_test.cpp CsvHistory
/// Writes the history to a file, in the format of to_csv().
///
///   const auto csv = std::make_shared<CsvHistory>("history.csv");
///   const History history = fit(batches, step, {.epochs = 3, .callbacks = {csv}});
///
/// It writes after each epoch and at the end of the training. If the history has steps, it
/// also writes once a minute. A write renames a temporary file, so the file is always
/// complete. After a resume, the file also has the epochs before the resume, each once. The
/// first write replaces an older file.
/// Errors:  c10::ValueError for an empty path; before the training starts, c10::ValueError
///          or c10::Error naming the path if the file cannot be written.
class CsvHistory : public detail::HistoryFile {
 public:
  explicit CsvHistory(
      std::string path,
      HistoryRows rows = HistoryRows::kEpochs);

 protected:
  std::string text_of(const History& history) const override {
    return to_csv(history, rows_);
  }

 private:
  HistoryRows rows_;
};

// snippet: tests/docs/reference_training_test.cpp JsonHistory
/// Writes the history to a file as CsvHistory does, in the format of to_json().
///
///   const auto json = std::make_shared<JsonHistory>("history.json");
///   fit(batches, step, {.epochs = 3, .callbacks = {json}});
///   const History read = history_from_json(load_json("history.json"));
class JsonHistory : public detail::HistoryFile {
 public:
  explicit JsonHistory(std::string path)
      : HistoryFile("[JsonHistory]", std::move(path)) {}

 protected:
  std::string text_of(const History& history) const override;
};

}  // namespace tessera::training
