// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/save_to_file.h>

#include <tessera/common/shorten.h>

#include "serialization/mapped_file.h"
#include "src/common/atomic_file.h"
#include "src/common/check.h"
#include "src/common/checked_archive.h"
#include "src/common/checksum.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <exception>
#include <utility>

namespace tessera {

namespace {

constexpr const char* kLoad = "[load_from_file]";

[[noreturn]] void refuse(const std::string& path, const char* problem) {
  TESSERA_CHECK_VALUE(
      false,
      "[load_from_file] {}: the file can't be read: {}. It may be truncated or damaged, or be no file of save_to_file() or torch::save(). Use another copy.",
      shorten(path),
      problem);
}

}  // namespace

void detail::save_to_file(
    const std::string& path,
    c10::function_ref<void(const ArchiveWriter&)> save) {
  AtomicFile file(path, "[save_to_file]");
  Checksum checksum;
  file.write_by([&](const ArchiveWriter& write) {
    save([&](const void* data, size_t size) {
      checksum.add(data, size);
      return write(data, size);
    });
  });
  const std::string ending = checksum_ending(checksum.digits());
  file.write(ending.data(), ending.size());
  file.commit();
}

void detail::load_from_file(
    const std::string& path,
    c10::function_ref<void(torch::serialize::InputArchive&)> load) {
  const MappedFile file(path, kLoad);
  torch::serialize::InputArchive archive;
  try {
    read_archive_file(file.text(), archive);
  } catch (const c10::ValueError& error) {
    refuse(path, error.what_without_backtrace());
  }
  try {
    load(archive);
  } catch (std::exception& error) {
    if (is_internal_error(error)) {
      refuse(path, "LibTorch can't decode one of its entries");
    }
    const std::string reason = reason_of(error);
    TESSERA_CHECK_VALUE(
        reason.rfind("No such serialized ", 0) != 0,
        "[load_from_file] {}: the file has the entries of another model: {}. Make the model as the program did that saved the file. Entries that were read before this one are loaded.",
        shorten(path),
        reason);
    // The error of the module or optimizer begins with its own name.
    if (auto* own = dynamic_cast<c10::Error*>(&error)) {
      own->add_context(fmt::format("{} {}", kLoad, shorten(path)));
    }
    throw;
  }
}

std::vector<at::Tensor> detail::read_tensors(
    torch::serialize::InputArchive& archive) {
  std::vector<at::Tensor> tensors;
  at::Tensor tensor;
  while (archive.try_read(std::to_string(tensors.size()), tensor)) {
    tensors.push_back(std::move(tensor));
    tensor = at::Tensor();
  }
  return tensors;
}

void detail::check_not_empty(
    bool is_empty,
    const char* where,
    const std::string& path,
    const char* action) {
  TESSERA_CHECK_VALUE(
      !is_empty,
      "{} '{}': expected a module, an optimizer or defined tensors, but got an empty one. Make it before you {} it.",
      where,
      shorten(path),
      action);
}

}  // namespace tessera
