// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serialization/disk.h"
#include "tests/temporary_folder.h"
#include "tests/test_headers.h"

#include <unistd.h>

namespace tessera::test {

namespace fs = std::filesystem;

/// A temporary folder, in memory if the system has one there. Thousands of fsync()
/// take minutes on a disk.
struct MemoryFolder : TemporaryFolder {
  MemoryFolder()
      : TemporaryFolder(
            ::access("/dev/shm", W_OK) == 0 ? fs::path("/dev/shm")
                                            : fs::temp_directory_path()) {}
};

inline std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// A disk that remembers what a power loss would leave of a folder. Contents since
/// a file's last sync() and names since a folder's last sync_directory() may be left
/// or lost.
class RecordingDisk : public Disk {
 public:
  explicit RecordingDisk(fs::path root) : root_(std::move(root)) {
    read_node(root_, tree_);
  }

  /// Called before each step. It may throw.
  std::function<void(const std::string& step)> before_step = [](auto&) {};

  int64_t steps() const {
    return steps_;
  }

  void make_directory(const fs::path& path) override {
    begin("make_directory");
    Disk::make_directory(path);
    live_parent(path).live[path.filename()] = std::make_shared<Node>();
  }
  OutputFile create(const fs::path& path) override {
    begin("create");
    OutputFile file = Disk::create(path);
    live_parent(path).live[path.filename()] =
        std::make_shared<Node>(Node{.is_file = true});
    return file;
  }
  void write(OutputFile& file, const void* data, size_t size) override {
    begin("write");
    Disk::write(file, data, size);
    find(file.path).live_bytes.append(static_cast<const char*>(data), size);
  }
  void sync(OutputFile& file) override {
    begin("sync");
    Disk::sync(file);
    Node& node = find(file.path);
    node.durable_bytes = node.live_bytes;
  }
  void sync_directory(const fs::path& path) override {
    begin("sync_directory");
    Disk::sync_directory(path);
    Node& node = find(path);
    node.durable = node.live;
  }
  void rename(const fs::path& from, const fs::path& to) override {
    begin("rename");
    Disk::rename(from, to);
    live_parent(to).live[to.filename()] =
        live_parent(from).live.at(from.filename());
    live_parent(from).live.erase(from.filename());
  }
  void remove(const fs::path& path) override {
    begin("remove");
    Disk::remove(path);
    live_parent(path).live.erase(path.filename());
  }

  /// Writes into `folder` what a power loss would leave. `reached` is called for
  /// each file and folder, and returns true if its unsynced changes are left.
  void after_power_loss(
      const fs::path& folder,
      const std::function<bool()>& reached) const {
    write_node(tree_, folder, reached);
  }

 private:
  struct Node {
    bool is_file = false;
    std::string live_bytes = {};
    std::string durable_bytes = {};
    std::map<std::string, std::shared_ptr<Node>> live = {};
    std::map<std::string, std::shared_ptr<Node>> durable = {};
  };

  void begin(const std::string& step) {
    before_step(step);
    ++steps_;
  }

  Node& find(const fs::path& path) {
    Node* node = &tree_;
    for (const fs::path& name : fs::relative(path, root_)) {
      if (name != ".") {
        node = node->live.at(name.string()).get();
      }
    }
    return *node;
  }
  Node& live_parent(const fs::path& path) {
    return find(path.parent_path());
  }

  // Files from before the first step count as synced.
  static void read_node(const fs::path& path, Node& node) {
    for (const auto& entry : fs::directory_iterator(path)) {
      auto child =
          std::make_shared<Node>(Node{.is_file = !entry.is_directory()});
      if (child->is_file) {
        child->live_bytes = child->durable_bytes = read_file(entry.path());
      } else {
        read_node(entry.path(), *child);
      }
      node.live[entry.path().filename()] = std::move(child);
    }
    node.durable = node.live;
  }

  static void write_node(
      const Node& node,
      const fs::path& path,
      const std::function<bool()>& reached) {
    if (node.is_file) {
      write_file(path, reached() ? node.live_bytes : node.durable_bytes);
      return;
    }
    fs::create_directories(path);
    for (const auto& [name, child] : reached() ? node.live : node.durable) {
      write_node(*child, path / name, reached);
    }
  }

  fs::path root_;
  Node tree_;
  int64_t steps_ = 0;
};

}  // namespace tessera::test
