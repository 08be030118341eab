// SPDX-License-Identifier: Apache-2.0
#include "optim/keras_class_name.h"

#include "src/common/check.h"

#include <cctype>

namespace tessera::optim {

std::string lower_case(std::string text) {
  for (char& letter : text) {
    letter =
        static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  return text;
}

std::string read_keras_class_name(const Json& json, const std::string& where) {
  check_known_keys(
      json, {"module", "class_name", "config", "registered_name"}, where);
  if (json.contains("module") && !json.at("module").is_null()) {
    const std::string module =
        JsonValue<std::string>::read(json.at("module"), where + ".module");
    const std::string package = module.substr(0, module.find('.'));
    TESSERA_CHECK_VALUE(
        package == "keras" || package == "tf_keras" || package == "tensorflow",
        "[{}] module must be a module of Keras, such as keras.optimizers, but got '{}'. Your own class can't be translated. Use a native spec such as optim::Adam instead.",
        where,
        shorten(module));
  }
  return JsonValue<std::string>::read(
      field_of(json, "class_name", where), where + ".class_name");
}

}  // namespace tessera::optim
