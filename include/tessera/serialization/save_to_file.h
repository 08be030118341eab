// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <string>

namespace tessera {

namespace detail {

using ArchiveWriter = std::function<size_t(const void*, size_t)>;

/// Creates a file and calls `save` once, with a function that appends bytes to the file.
void save_to_file(
    const std::string& path,
    c10::function_ref<void(const ArchiveWriter&)> save);

/// Errors:  c10::ValueError if `is_empty`.
void check_not_empty(bool is_empty, const std::string& path);

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
///   torch::load(model, "ranker.pt");
///
/// `value` is a module, an optimizer, a tensor or a vector of tensors. An existing file
/// stays until the new file is on the disk. In contrast, torch::save ends the program
/// on a full disk, and leaves half a file if the program ends while it writes.
/// Errors:  c10::ValueError if `value` is an empty holder, a null pointer or an
///          undefined tensor, or `path` is not a regular file; c10::Error if the system
///          refuses to write, for example on a full disk. Both messages begin with
///          "[save_to_file]", and an existing file is unchanged.
template <class Value>
void save_to_file(const Value& value, const std::string& path) {
  detail::check_not_empty(detail::is_empty(value), path);
  detail::save_to_file(path, [&](const detail::ArchiveWriter& writer) {
    torch::save(value, writer);
  });
}

}  // namespace tessera
