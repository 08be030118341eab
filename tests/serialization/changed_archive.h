// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/checked_archive.h"
#include "tests/test_util.h"

namespace tessera::test {

/// May replace the key and the tensor of an entry. It leaves the entry out by returning
/// false. For entries without a tensor, `value` is undefined.
using ChangeEntry = std::function<bool(std::string& key, at::Tensor& value)>;

inline void copy_archive(
    torch::serialize::InputArchive& from,
    torch::serialize::OutputArchive& to,
    const ChangeEntry& change) {
  for (std::string key : from.keys()) {
    if (key == kChecksumsKey) {
      continue;
    }
    torch::serialize::InputArchive child;
    at::Tensor tensor;
    c10::IValue value;
    if (from.try_read(key, tensor, /*is_buffer=*/true)) {
      if (change(key, tensor)) {
        to.write(key, tensor, /*is_buffer=*/true);
      }
    } else if (from.try_read(key, child)) {
      torch::serialize::OutputArchive entry(to.compilation_unit());
      copy_archive(child, entry, change);
      to.write(key, entry);
    } else if (from.try_read(key, value) && change(key, tensor)) {
      to.write(key, value);
    }
  }
}

/// Returns a copy of an archive without its checksums.
inline std::string changed_archive(
    const std::string& bytes,
    const ChangeEntry& change) {
  auto from = archive_of(bytes);
  torch::serialize::OutputArchive to;
  copy_archive(from, to, change);
  std::ostringstream result;
  to.save_to(result);
  return result.str();
}

}  // namespace tessera::test
