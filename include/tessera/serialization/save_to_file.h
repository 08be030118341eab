// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera {

namespace detail {

using ArchiveWriter = std::function<size_t(const void*, size_t)>;

/// Creates a file and calls `save` once, with a function that appends bytes to the file.
void save_to_file(
    const std::string& path,
    c10::function_ref<void(const ArchiveWriter&)> save);

/// Opens a file and calls `load` once, with the archive in it.
void load_from_file(
    const std::string& path,
    c10::function_ref<void(torch::serialize::InputArchive&)> load);

/// The tensors of an archive that torch::save() has made from a vector.
std::vector<at::Tensor> read_tensors(torch::serialize::InputArchive& archive);

/// Errors:  c10::ValueError if `is_empty`. `action` is "save" or "load".
void check_not_empty(
    bool is_empty,
    const char* where,
    const std::string& path,
    const char* action);

template <class Value>
bool is_empty(const Value& value) {
  if constexpr (requires { value.is_empty(); }) {
    return value.is_empty();
  } else if constexpr (requires { value.defined(); }) {
    return !value.defined();
  } else if constexpr (requires { value == nullptr; }) {
    return value == nullptr;
  } else if constexpr (requires { value.begin()->defined(); }) {
    return std::any_of(value.begin(), value.end(), [](const auto& tensor) {
      return !tensor.defined();
    });
  } else {
    return false;
  }
}

}  // namespace detail

/// Like torch::save(value, path), but writes the complete file or nothing:
///
///   tessera::save_to_file(model, "ranker.pt");
///   tessera::load_from_file(model, "ranker.pt");
///
/// `value` is a module, an optimizer, a tensor or a vector of tensors. An existing file
/// stays until the new file is on the disk. In contrast, torch::save ends the program
/// on a full disk, and leaves half a file if the program ends while it writes. The file
/// ends with a checksum of all its bytes. torch::load reads the file, too, but does not
/// verify this checksum.
/// Errors:  c10::ValueError if `value` is an empty holder, a null pointer or an
///          undefined tensor, or `path` is not a regular file; c10::Error if the system
///          refuses to write, for example on a full disk. Both messages begin with
///          "[save_to_file]", and an existing file is unchanged.
template <class Value>
void save_to_file(const Value& value, const std::string& path) {
  detail::check_not_empty(
      detail::is_empty(value), "[save_to_file]", path, "save");
  detail::save_to_file(path, [&](const detail::ArchiveWriter& writer) {
    torch::save(value, writer);
  });
}

/// Like torch::load(value, path), for files of save_to_file() and torch::save(). The
/// program makes the same model before the call. The tensors of a vector are replaced.
///
/// Before it changes `value`, it verifies the checksum that save_to_file() has written. A
/// file of torch::save() has no such checksum, but Tessera's layers verify the checksums
/// of their own entries.
/// Errors:  c10::ValueError if `value` is an empty holder or a null pointer, or the file
///          is truncated, damaged or not an archive; c10::Error if the file can't be
///          read. These messages begin with "[load_from_file]" and name the path. If the
///          entries of the file do not fit, the module or the optimizer raises its own
///          error.
template <class Value>
void load_from_file(Value& value, const std::string& path) {
  if constexpr (std::is_same_v<Value, std::vector<at::Tensor>>) {
    detail::load_from_file(path, [&](torch::serialize::InputArchive& archive) {
      value = detail::read_tensors(archive);
    });
  } else {
    if constexpr (!std::is_same_v<Value, at::Tensor>) {
      detail::check_not_empty(
          detail::is_empty(value), "[load_from_file]", path, "load");
    }
    detail::load_from_file(path, [&](torch::serialize::InputArchive& archive) {
      using torch::operator>>;  // of tensors
      archive >> value;
    });
  }
}

}  // namespace tessera
