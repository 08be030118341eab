// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/file_descriptor.h"

#include <cstddef>
#include <exception>
#include <string>

namespace tessera {

/// A file that appears whole or not at all: it is written beside its place under
/// another name, and commit() puts it there.
///
///   AtomicFile file("users.npy", "[save_npy]");
///   file.write(data, size);
///   file.commit();
///
/// What `path` held before, also through a symbolic link, is replaced; its
/// permissions stay. Several processes may write the same `path` at once: each
/// commit() puts a whole file there, and the last one stays.
///
/// The other name is `<path>.tmp-tessera`. The file is locked while it is written, so a
/// file of this name without a lock was left by a process that died, and the next
/// AtomicFile of the same `path` removes it. A writer that can't have this name, because
/// another one writes or the file system has no locks, takes `<path>.tmp-<random>`. Such
/// a file stays when its process dies; you may delete it.
///
/// Errors:  c10::ValueError where `path` is something else than a file, such as a
///          link to nothing, or is too long or has a zero byte;
///          c10::Error with the system's reason for what the system refuses. Both
///          begin with `where` and name the path.
class AtomicFile {
 public:
  AtomicFile(const std::string& path, std::string where);
  /// Deletes what was not committed.
  ~AtomicFile();

  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size);
  /// What `save(write)` writes, for LibTorch's writers: an exception of theirs in
  /// write() would end the program.
  template <class Save>
  void write_by(Save save);

  /// Where the file is before commit(). Others may read it there, or write to it
  /// instead of write().
  const std::string& written_path() const {
    return written_path_;
  }

  /// After it, the file is on the disk under its name.
  void commit();

 private:
  [[noreturn]] void fail(const char* action) const;

  std::string where_;
  std::string path_;
  std::string written_path_;
  FileDescriptor file_;
  bool is_committed_ = false;
};

template <class Save>
void AtomicFile::write_by(Save save) {
  std::exception_ptr failure;
  save([&](const void* data, size_t size) {
    try {
      if (!failure) {
        write(data, size);
      }
    } catch (...) {
      failure = std::current_exception();
    }
    return size;
  });
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace tessera
