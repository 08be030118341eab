// SPDX-License-Identifier: Apache-2.0
#include "optim/keras_class_name.h"

#include "src/common/check.h"

#include <algorithm>
#include <vector>

namespace tessera::optim {

namespace {

bool begins_with_any(
    const std::string& text,
    const std::vector<const char*>& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(), [&](const char* prefix) {
    return text.starts_with(prefix);
  });
}

}  // namespace

std::string read_keras_class_name(const Json& json, const std::string& where) {
  check_known_keys(
      json, {"module", "class_name", "config", "registered_name"}, where);
  if (json.contains("module") && !json.at("module").is_null()) {
    const std::string module =
        JsonValue<std::string>::read(json.at("module"), where + ".module");
    TESSERA_CHECK_VALUE(
        begins_with_any(module + ".", {"keras.", "tf_keras.", "tensorflow."}),
        "[{}] module must be a module of Keras, such as keras.optimizers, but got '{}'. Your own class can't be translated. Use a native spec such as optim::Adam instead.",
        where,
        shorten(module));
  }
  return JsonValue<std::string>::read(
      field_of(json, "class_name", where), where + ".class_name");
}

}  // namespace tessera::optim
