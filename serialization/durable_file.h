// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <exception>
#include <string>

namespace tessera {

/// A file that appears whole or not at all: it is written beside its place under
/// another name, and commit() puts it there.
///
///   DurableFile file("users.npy", "[save_npy]");
///   file.write(data, size);
///   file.commit();
///
/// A process that dies before leaves `<path>.tmp-<random>`, which may be deleted.
/// What `path` held before, also through a symbolic link, is replaced; its
/// permissions stay.
/// Errors:  c10::ValueError where `path` is something else than a file, such as a
///          link to nothing, or is too long or has a zero byte;
///          c10::Error for what the system refuses. Both begin with `where`.
class DurableFile {
 public:
  DurableFile(const std::string& path, std::string where);
  /// Deletes what was not committed.
  ~DurableFile();

  DurableFile(const DurableFile&) = delete;
  DurableFile& operator=(const DurableFile&) = delete;

  void write(const void* data, size_t size);
  /// What `save(write)` writes, for LibTorch's writers: an exception of theirs in
  /// write() would end the program.
  template <class Save>
  void write_by(Save save);

  /// Where it is before commit(), to be read.
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
  int descriptor_ = -1;
  bool is_committed_ = false;
};

template <class Save>
void DurableFile::write_by(Save save) {
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
