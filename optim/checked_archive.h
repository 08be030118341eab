// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace tessera {

// LibTorch does not verify what it reads from an archive. So an archive of this
// library has an entry `tessera_checksums`, a text with a line for each other one:
//
//   <checksum of the lines that follow>
//   <checksum> <kind> <path>
//
// A kind is a type and, of a tensor, its shape. The path of an entry in a nested
// archive has its keys with '/' between them. Archives that were written before
// this entry existed are read unverified.

inline constexpr const char* kChecksumsKey = "tessera_checksums";

/// The checksums of an archive's entries, while it is written.
class ArchiveChecksums {
 public:
  void add(const std::string& path, const c10::IValue& value);
  /// Those of an archive that stands under `key` in this one.
  void add(const std::string& key, const ArchiveChecksums& nested);
  void write(torch::serialize::OutputArchive& archive) const;

 private:
  struct Entry {
    std::string path;
    std::string checksum;  // digits and kind
  };
  std::vector<Entry> entries_;
};

/// An OutputArchive that takes the checksum of whatever is written.
class CheckedArchive {
 public:
  /// Writes into `archive`, which must live as long.
  explicit CheckedArchive(torch::serialize::OutputArchive& archive)
      : archive_(archive) {}
  /// One that will be nested in another.
  explicit CheckedArchive(std::shared_ptr<torch::jit::CompilationUnit> unit)
      : own_(
            std::make_unique<torch::serialize::OutputArchive>(std::move(unit))),
        archive_(*own_) {}

  std::shared_ptr<torch::jit::CompilationUnit> compilation_unit() const {
    return archive_.compilation_unit();
  }

  void write(const std::string& key, const c10::IValue& value);
  void write(
      const std::string& key,
      const at::Tensor& tensor,
      bool is_buffer = false);
  void write(const std::string& key, CheckedArchive& nested);
  /// What others have written. It is serialized to see what is in it: for small
  /// archives only.
  void write(const std::string& key, torch::serialize::OutputArchive& nested);

  /// Writes the checksums. The last call.
  void finish() const {
    checksums_.write(archive_);
  }

 private:
  std::unique_ptr<torch::serialize::OutputArchive> own_;
  torch::serialize::OutputArchive& archive_;
  ArchiveChecksums checksums_;
};

/// Compares the entries of `archive`, and those of archives in it, with the
/// checksums that were written beside them. Entries without one pass. `only`
/// limits the comparison to one entry of the archive itself.
/// Errors:  c10::ValueError beginning with `where`, listing damaged entries.
void verify_checksums(
    torch::serialize::InputArchive& archive,
    const std::string& where,
    std::string_view only = {});

}  // namespace tessera
