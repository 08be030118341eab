// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/save_to_file.h>

#include <tessera/common/shorten.h>

#include "src/common/atomic_file.h"
#include "src/common/check.h"

namespace tessera {

void detail::save_to_file(
    const std::string& path,
    c10::function_ref<void(const ArchiveWriter&)> save) {
  AtomicFile file(path, "[save_to_file]");
  file.write_by(save);
  file.commit();
}

void detail::check_not_empty(bool is_empty, const std::string& path) {
  TESSERA_CHECK_VALUE(
      !is_empty,
      "[save_to_file] '{}': expected a module, an optimizer or defined tensors, but got an empty one. Make it before you save it.",
      shorten(path));
}

}  // namespace tessera
