// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>

#include <string>

namespace tessera::optim {

/// The class name of an object that Keras serialized, with a check of the keys around
/// it.
/// Errors:  c10::ValueError for a class that is not of Keras, too; `where` is the path
///          of the object.
std::string read_keras_class_name(const Json& json, const std::string& where);

}  // namespace tessera::optim
