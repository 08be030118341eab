// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/optim/learning_rate.h>

#include <string>

namespace tessera::optim {

/// A number or a schedule of Keras.
LearningRate read_keras_learning_rate(
    const Json& json,
    const std::string& where);

/// The reverse for schedules that Keras has.
Json write_keras_schedule(const Schedule& schedule);

}  // namespace tessera::optim
