// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/optim/learning_rate.h>

#include <string>

namespace tessera::optim {

/// Reads a number or a schedule that Keras serialized.
LearningRate read_keras_learning_rate(
    const Json& json,
    const std::string& where);

/// Writes a schedule as Keras serializes it. `schedule` is not a Warmup, which Keras does
/// not have.
Json write_keras_schedule(const Schedule& schedule);

}  // namespace tessera::optim
