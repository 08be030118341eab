// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/history_files.h>

#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

namespace tessera::training {

namespace detail {

HistoryFile::HistoryFile(std::string where, std::string path)
    : where_(std::move(where)), path_(std::move(path)) {
  TESSERA_CHECK_VALUE(
      !path_.empty(),
      "{} expected the path of a file, but got ''. Pass a path.",
      where_);
}

void HistoryFile::on_train_begin(Training& /*training*/) {
  // Creates and deletes a temporary file beside the path. An existing file is not
  // changed.
  const AtomicFile probe(path_, where_);
  written_ = std::chrono::steady_clock::now();
}

void HistoryFile::write(const History& history) {
  const std::string text = text_of(history);
  AtomicFile file(path_, where_);
  file.write(text.data(), text.size());
  file.commit();
  written_ = std::chrono::steady_clock::now();
}

// Writes once a minute, so that the file has the steps of a long epoch before its end.
void HistoryFile::on_step_end(Training& training) {
  constexpr std::chrono::minutes kInterval{1};
  const auto now = std::chrono::steady_clock::now();
  if (training.history().steps.empty() || now - written_ < kInterval) {
    return;
  }
  try {
    write(training.history());
  } catch (const c10::Error&) {
    // An error here would lose the epoch. The write at its end reports the error.
    written_ = now;
  }
}

// The file gets the stop reason, which is known only now.
void HistoryFile::on_train_end(Training& training) {
  const History& history = training.history();
  if (!history.epochs.empty() || !history.steps.empty()) {
    write(history);
  }
}

}  // namespace detail

CsvHistory::CsvHistory(std::string path, HistoryRows rows)
    : HistoryFile("[CsvHistory]", std::move(path)), rows_(rows) {}

std::string JsonHistory::text_of(const History& history) const {
  return to_json(history).dump(2) + "\n";
}

}  // namespace tessera::training
