// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/json_name.h>

#include <tessera/common/json_value.h>

#include "src/common/check.h"

namespace tessera::detail {

void use_name(
    const Json& json,
    const std::function<void(const std::string&)>& use,
    const std::string& where) {
  const std::string name = JsonValue<std::string>::read(json, where);
  try {
    use(name);
  } catch (const checks::ValueError& error) {
    checks::fail<checks::ValueError>(
        {__func__, __FILE__, __LINE__},
        "[{}] {}",
        where,
        checks::message_of_error(error));
  }
}

}  // namespace tessera::detail
