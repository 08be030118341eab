// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <string>
#include <vector>

namespace tessera::training {

/// The result of a metric that is not defined for its examples.
constexpr double kUndefined = std::numeric_limits<double>::quiet_NaN();

/// The beginning of the error messages of a metric.
std::string where_of(const std::string& metric);

at::Tensor metric_state(const std::vector<double>& numbers);

/// Errors:  c10::ValueError naming the metric unless `state` is float64 [n].
std::vector<double> read_state(
    const at::Tensor& state,
    const std::string& metric);

/// Adds an id to a state. An id has two numbers, because a double would round large ids.
void append_id(std::vector<double>& numbers, int64_t id);
/// Reads the id that append_id() wrote at `position`.
int64_t id_at(const std::vector<double>& numbers, size_t position);

}  // namespace tessera::training
