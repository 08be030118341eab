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

/// The user's directory of checkpoints, while one more is saved into it.
///
/// A checkpoint is a folder `checkpoint_000042`. It is written under a hidden name, and
/// gets its own when all of it is on the disk.
/// Errors:  c10::Error naming path and reason. Complete checkpoints stay.
class CheckpointDirectory {
 public:
  CheckpointDirectory(const std::string& path, Disk& disk);

  const std::filesystem::path& path() const {
    return path_;
  }

  /// Makes the directory where there is none, removes what a crash has left in it, and
  /// keeps others from saving until this object is destroyed.
  void open();

  /// The names of the complete checkpoints, the oldest first. Only after open().
  const std::vector<std::string>& complete() const {
    return complete_;
  }
  /// The name of one more. Only after open().
  std::string next_name() const;

  /// The folder in which the checkpoint is written.
  std::filesystem::path hidden(const std::string& name) const;

  /// Makes the checkpoint that was written in hidden(name) a complete one.
  void publish(const std::string& name);

  /// Removes hidden(name), unless it was published, so that what it has taken of a full
  /// disk is free again. An error is ignored, because the next open() tries again.
  void discard(const std::string& name);

  /// Removes all but the newest `count` checkpoints and those that these build on.
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

/// Removes complete checkpoints of the directory. `names` has the newest first: an
/// increment must not stay without what it builds on.
void remove_checkpoints(
    const std::filesystem::path& directory,
    const std::vector<std::string>& names,
    Disk& disk);

}  // namespace tessera
