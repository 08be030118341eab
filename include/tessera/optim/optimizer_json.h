// SPDX-License-Identifier: Apache-2.0
#pragma once

// The JSON of optimizers, schedules and their parts.

#include <tessera/common/json_value.h>
#include <tessera/optim/custom_rule.h>
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizer.h>
#include <tessera/optim/schedule.h>
#include <tessera/optim/slot_creation.h>

#include <string>

namespace tessera {

/// A number, a schedule, or {"callable": name}, which is read as a placeholder.
template <>
struct JsonValue<optim::LearningRate> {
  static Json write(const optim::LearningRate& value);
  static optim::LearningRate read(const Json& json, const std::string& where);
};

template <>
struct JsonValue<optim::SlotCreation> {
  static Json write(const optim::SlotCreation& value);
  static optim::SlotCreation read(const Json& json, const std::string& where);
};

template <>
struct JsonValue<optim::CustomRule> {
  static Json write(const optim::CustomRule& value);
  static optim::CustomRule read(const Json& json, const std::string& where);
};

template <>
struct JsonValue<optim::Schedule> {
  static Json write(const optim::Schedule& value);
  static optim::Schedule read(const Json& json, const std::string& where);
};

template <>
struct JsonValue<optim::PlainSchedule> {
  static Json write(const optim::PlainSchedule& value);
  static optim::PlainSchedule read(const Json& json, const std::string& where);
};

template <>
struct JsonValue<optim::OptimizerSpec> {
  static Json write(const optim::OptimizerSpec& value);
  static optim::OptimizerSpec read(const Json& json, const std::string& where);
};

}  // namespace tessera
