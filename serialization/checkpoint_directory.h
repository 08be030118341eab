// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/disk.h"
#include "serialization/file_lock.h"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// The user's directory of checkpoints, while a new checkpoint is saved into it.
///
/// A checkpoint is a folder such as `checkpoint_000042`. It is written under a hidden
/// name, and gets its own name when all of it is on the disk.
/// Errors:  c10::Error naming path and reason. Complete checkpoints stay.
class CheckpointDirectory {
 public:
  CheckpointDirectory(const std::string& path, Disk& disk);

  const std::filesystem::path& path() const {
    return path_;
  }

  /// Makes the directory if it does not exist, locks it until this object is destroyed,
  /// and removes what a crash has left in it.
  void open();

  /// The names of the complete checkpoints, the oldest first. Call open() first.
  const std::vector<std::string>& complete() const {
    return complete_;
  }
  /// The name of the next checkpoint. Call open() first.
  std::string next_name() const;

  /// The hidden folder in which the checkpoint of this name is written.
  std::filesystem::path hidden(const std::string& name) const;

  /// Renames hidden(name) to its own name, which makes the checkpoint complete.
  void publish(const std::string& name);

  /// Removes hidden(name) unless it was published, so that it does not fill the disk. An
  /// error is ignored, because the next open() tries again.
  void discard(const std::string& name);

  /// Removes all checkpoints except the newest `count` and the ones that they build on.
  void keep_newest(int64_t count);

 private:
  void make();
  void remove_leftovers();

  std::filesystem::path path_;
  Disk& disk_;
  std::optional<FileLock> lock_;
  std::vector<std::string> complete_;
  bool is_published_ = false;
};

}  // namespace tessera
