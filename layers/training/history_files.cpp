// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/history_files.h>

#include "src/common/atomic_file.h"
#include "src/common/check.h"

#include <nlohmann/json.hpp>

namespace tessera::training {

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
}

void HistoryFile::write(const History& history) const {
  const std::string text = text_of(history);
  AtomicFile file(path_, where_);
  file.write(text.data(), text.size());
  file.commit();
}

void HistoryFile::on_epoch_end(Training& training) {
  write(training.history());
}

// The file gets the stop reason, which is known only now.
void HistoryFile::on_train_end(Training& training) {
  if (!training.history().epochs.empty()) {
    write(training.history());
  }
}

std::string CsvHistory::text_of(const History& history) const {
  return to_csv(history);
}

std::string JsonHistory::text_of(const History& history) const {
  return to_json(history).dump(2) + "\n";
}

}  // namespace tessera::training
