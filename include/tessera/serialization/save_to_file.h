// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/util/FunctionRef.h>
#include <torch/serialize.h>

#include <cstddef>
#include <functional>
#include <string>

namespace tessera {

namespace detail {

using ArchiveWriter = std::function<size_t(const void*, size_t)>;

/// A file of what `save` gives its writer; `save` runs once.
void save_to_file(
    const std::string& path,
    c10::function_ref<void(const ArchiveWriter&)> save);

}  // namespace detail

/// torch::save(value, path) that writes the file whole or not at all:
///
///   tessera::save_to_file(model, "ranker.pt");
///   torch::load(model, "ranker.pt");
///
/// `value` is a module, an optimizer, a tensor or a vector of tensors. What `path`
/// held before stays until the new file is on the disk. torch::save itself ends the
/// program on a full disk, and leaves half a file when the program ends meanwhile.
/// Errors:  c10::ValueError where `path` is something else than a file; c10::Error
///          for what the system refuses, such as a full disk. Both begin with
///          "[save_to_file]", and the file is as it was before.
template <class Value>
void save_to_file(const Value& value, const std::string& path) {
  detail::save_to_file(path, [&](const detail::ArchiveWriter& writer) {
    torch::save(value, writer);
  });
}

}  // namespace tessera
