// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/files.h"

#include <cstddef>
#include <exception>
#include <string>

namespace tessera {

/// Raises the error about a path that the system refuses to write to, for the reason in
/// errno.
/// Errors:  c10::Error, "<where> <path>: <problem>: <reason>. <advice>".
[[noreturn]] void fail_to_write(
    const std::string& where,
    const std::string& path,
    const char* problem);

/// A file that appears whole or not at all. It is written in the same folder under a
/// temporary name, and commit() renames it to `path`.
///
///   AtomicFile file("users.npy", "[save_npy]");
///   file.write(data, size);
///   file.commit();
///
/// commit() replaces an existing file and keeps its permissions. If `path` is a symbolic
/// link, its target is replaced. Several processes may write the same `path` at the same
/// time: each commit() puts a whole file there, and the last one stays.
///
/// The temporary name is `<path>.tmp-tessera`. The file is locked while it is written. A
/// file of this name without a lock was left by a process that died, and the next
/// AtomicFile of the same `path` removes it. If another writer has this name, or the file
/// system has no locks, the name is `<path>.tmp-<random>`. Such a file stays when its
/// process dies; you may delete it. If the temporary name would be too long for the file
/// system, a checksum of the file's name takes the place of the file's name.
///
/// Errors:  c10::ValueError if `path` is empty, has a zero byte or more than 4096 bytes, or
///          is something else than a regular file (such as a link to nothing); c10::Error
///          with the system's reason and an advice if the system refuses to write. Both
///          begin with `where` and name the path.
class AtomicFile {
 public:
  AtomicFile(const std::string& path, std::string where);
  /// Deletes the temporary file if it was not committed.
  ~AtomicFile();

  void write(const void* data, size_t size);
  /// Calls `save(writer)` and writes the bytes that `save` passes to `writer`. Use this for
  /// LibTorch's writers. They call `writer` in a destructor, too, and an exception from
  /// there would end the program.
  template <class Save>
  void write_by(Save save);

  /// The temporary path, at which the file is before commit(). Other code may read the
  /// file there, or write to it in place of write().
  const std::string& written_path() const {
    return written_path_;
  }

  /// Returns when the file is on the disk under its own name.
  void commit();

 private:
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
