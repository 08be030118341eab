// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>

#include <string>

namespace tessera::optim {

/// The text with its ASCII letters in lower case.
std::string lower_case(std::string text);

/// Returns the class name of an object that Keras serialized, and checks its other keys.
/// Errors:  c10::ValueError for wrong keys and for classes outside Keras; `where` is the
///          path of the object.
std::string read_keras_class_name(const Json& json, const std::string& where);

}  // namespace tessera::optim
