// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/save_to_file.h>

#include "serialization/durable_file.h"

namespace tessera {

void detail::save_to_file(
    const std::string& path,
    c10::function_ref<void(const ArchiveWriter&)> save) {
  DurableFile file(path, "[save_to_file]");
  file.write_by(save);
  file.commit();
}

}  // namespace tessera
