// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/serialize/archive.h>

#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// LibTorch does not verify what it reads from an archive, because it is built without
// miniz's check of CRCs. An archive of this library therefore has an entry
// `tessera_checksums`, a text with one line for each other entry:
//
//   <checksum of the lines that follow>
//   <checksum> <kind> <path>
//
// The kind is the type of the entry and, for a tensor, its shape. The path of an entry
// in a nested archive is its keys, joined by '/'. Checksums are computed while entries are
// written, because an OutputArchive can't be read. The entries of a user's class have no
// lines, because the class may have its own save(). Archives that were written
// before `tessera_checksums` existed are read without verification.

inline constexpr const char* kChecksumsKey = "tessera_checksums";

/// Collects the checksums of an archive's entries while it is written.
class ArchiveChecksums {
 public:
  void add(const std::string& path, const c10::IValue& value);
  /// Adds the checksums of an archive that is nested in this one under `key`.
  void add(const std::string& key, const ArchiveChecksums& nested);
  void write(torch::serialize::OutputArchive& archive) const;

 private:
  struct Entry {
    std::string path;
    std::string checksum;  // digits and kind
  };
  std::vector<Entry> entries_;
};

/// An OutputArchive that computes a checksum of each entry.
class CheckedArchive {
 public:
  /// Writes into `archive`, which must outlive this object.
  explicit CheckedArchive(torch::serialize::OutputArchive& archive)
      : archive_(archive) {}
  /// Makes an archive to be nested in another one.
  explicit CheckedArchive(std::shared_ptr<torch::jit::CompilationUnit> unit)
      : own_(
            std::make_unique<torch::serialize::OutputArchive>(std::move(unit))),
        archive_(*own_) {}

  std::shared_ptr<torch::jit::CompilationUnit> compilation_unit() const {
    return archive_.compilation_unit();
  }

  void write(const std::string& key, const c10::IValue& value);
  void write(const std::string& key, const at::Tensor& tensor);
  void write(const std::string& key, CheckedArchive& nested);
  /// Adds a nested archive that was written without checksums. It is serialized once
  /// more to read its entries, so use this for small archives only.
  void write(const std::string& key, torch::serialize::OutputArchive& nested);

  /// Writes the checksums. Call it last.
  void finish() const {
    checksums_.write(archive_);
  }

 private:
  std::unique_ptr<torch::serialize::OutputArchive> own_;
  torch::serialize::OutputArchive& archive_;
  ArchiveChecksums checksums_;
};

/// Reads the bytes of a file into `archive`. Verifies the checksum at their end
/// (checksum_ending()) if there is one, and returns whether there is one.
/// Errors:  c10::ValueError that only states the problem. It does not show the internal
///          errors of LibTorch's reader.
bool read_archive_file(
    std::string_view file,
    torch::serialize::InputArchive& archive);

/// Whether an error is a failed internal check of LibTorch. On reading, it means that the
/// file is damaged.
bool is_internal_error(const std::exception& error);

/// Compares the entries of `archive`, and of the archives nested in it, with the
/// checksums that were written with them. Entries without a checksum pass. If `only`
/// is given, only this entry of the archive itself is compared.
/// Errors:  c10::ValueError beginning with `where`, listing damaged entries.
void check_checksums(
    torch::serialize::InputArchive& archive,
    const std::string& where,
    std::string_view only = {});

}  // namespace tessera
