// SPDX-License-Identifier: Apache-2.0
#include <tessera/serialization/json_file.h>

#include "serialization/mapped_file.h"

#include <nlohmann/json.hpp>

namespace tessera {

Json load_json(
    const std::string& path,
    const std::string& where,
    const JsonLimits& limits) {
  const MappedFile file(path, where);
  return parse_json(file.text(), where + " " + path + ":", limits);
}

}  // namespace tessera
