// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/optim/custom_rule.h>
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/optimizer.h>
#include <tessera/optim/schedule.h>
#include <tessera/optim/slot_creation.h>

#include <string>
#include <variant>

namespace tessera {

namespace detail {

template <class T>
concept OptimizerPart = optim::detail::kIsAlternative<
    T,
    std::variant<
        optim::LearningRate,
        optim::SlotCreation,
        optim::CustomRule,
        optim::Schedule,
        optim::PlainSchedule,
        optim::OptimizerSpec>>;

// The functions are not in the constrained JsonValue itself, because GCC 12 would not export
// them there.
template <class T>
struct OptimizerJson {
  static Json write(const T& value);
  static T read(const Json& json, const std::string& where);
};

}  // namespace detail

/// The JSON of optimizers and their parts:
///
///   LearningRate              a number, a schedule, or {"callable": name}, which is read
///                             as a placeholder
///   SlotCreation, CustomRule  null, or {"callable": name}, which is read as a placeholder
///   others                    {"class_name": name, "config": {...}}
template <detail::OptimizerPart T>
struct JsonValue<T> : detail::OptimizerJson<T> {};

}  // namespace tessera
