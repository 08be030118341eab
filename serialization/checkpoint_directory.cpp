// SPDX-License-Identifier: Apache-2.0
#include "serialization/checkpoint_directory.h"

#include "serialization/checkpoint_reader.h"
#include "serialization/checkpoint_writer.h"
#include "serialization/manifest.h"
#include "src/common/check.h"

#include <tessera/serialization/checkpoint.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

namespace tessera {

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kHidden = ".writing_";
constexpr std::string_view kRemoved = ".removed_";

}  // namespace

CheckpointDirectory::CheckpointDirectory(const std::string& path, Disk& disk)
    : path_(path), disk_(disk) {}

void CheckpointDirectory::open() {
  make();
  lock_.emplace(FileLock::per_holder(
      path_.string(),
      disk_.where(),
      "Let one save at a time write into this directory."));
  remove_leftovers();
  complete_ = list_checkpoints(path_.string(), disk_.where());
}

// Makes missing folders above the directory, too. It goes one component at a time,
// because ".." may follow a missing folder or a symbolic link.
void CheckpointDirectory::make() {
  std::error_code error;
  fs::path path;
  // A relative path has no absolute one if the current folder was deleted.
  const fs::path whole = fs::absolute(path_, error);
  for (const fs::path& part : whole) {
    const fs::path above = path;
    path /= part;
    if (!fs::exists(path, error) && !error) {
      disk_.make_directory(path);
      disk_.sync_directory(above);
    }
  }
  TESSERA_CHECK(
      fs::is_directory(path_, error),
      "{} '{}' is not a directory. Choose another path.",
      disk_.where(),
      path_.string());
}

void CheckpointDirectory::remove_leftovers() {
  std::error_code error;
  std::vector<fs::path> leftovers;
  for (fs::directory_iterator entry(path_, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    for (const std::string_view prefix : {kHidden, kRemoved}) {
      if (name.starts_with(prefix) &&
          checkpoint_number(name.substr(prefix.size()))) {
        leftovers.push_back(entry->path());
      }
    }
  }
  for (const fs::path& path : leftovers) {
    disk_.remove(path);
  }
}

std::string CheckpointDirectory::next_name() const {
  return complete_.empty()
      ? checkpoint_name(1)
      : next_checkpoint_name(complete_.back(), disk_.where());
}

fs::path CheckpointDirectory::hidden(const std::string& name) const {
  return path_ / fmt::format("{}{}", kHidden, name);
}

void CheckpointDirectory::publish(const std::string& name) {
  disk_.rename(hidden(name), path_ / name);
  is_published_ = true;
  disk_.sync_directory(path_);
  complete_.push_back(name);
}

void CheckpointDirectory::discard(const std::string& name) {
  if (is_published_) {
    return;
  }
  try {
    disk_.remove(hidden(name));
  } catch (const c10::Error&) {
    // The next open() tries again.
  }
}

void CheckpointDirectory::keep_newest(int64_t count) {
  std::set<std::string> kept;
  const auto all = static_cast<int64_t>(complete_.size());
  for (int64_t i = std::max<int64_t>(0, all - count); i < all; ++i) {
    try {
      for (CheckpointLink& link :
           read_chain(path_, complete_[i], disk_.where())) {
        kept.insert(std::move(link.name));
      }
    } catch (const c10::Error&) {
      return;  // It is unknown what this checkpoint builds on, so keep all.
    }
  }
  std::vector<std::string> old(complete_.rbegin(), complete_.rend());
  std::erase_if(old, [&](const auto& name) { return kept.contains(name); });
  remove_checkpoints(path_, old, disk_);
}

void remove_checkpoints(
    const fs::path& directory,
    const std::vector<std::string>& names,
    Disk& disk) {
  if (names.empty()) {
    return;
  }
  // First give them names that are not names of checkpoints: a checkpoint that is half
  // removed must not look complete.
  std::vector<fs::path> removed;
  for (const std::string& name : names) {
    removed.push_back(directory / fmt::format("{}{}", kRemoved, name));
    disk.rename(directory / name, removed.back());
  }
  disk.sync_directory(directory);
  for (const fs::path& path : removed) {
    disk.remove(path);
  }
}

}  // namespace tessera
