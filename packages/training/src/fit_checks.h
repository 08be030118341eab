// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/fit.h>

#include <memory>
#include <string>

namespace tessera::training {

/// The beginning of the errors of the validation in fit().
inline constexpr const char* kFitValidation = "[fit] validation:";

/// FitOptions::strategy, or the strategy of the model's sharded tables, or Strategy::fused().
Strategy strategy_of(const FitOptions& options);

/// Refuses arguments that fit() can't run with: for example options out of range,
/// callbacks that write to the same place, or another strategy than that of the sharded
/// tables.
/// Errors:  c10::ValueError beginning with "[fit]".
void check_fit(const std::shared_ptr<Pass>& pass, const FitOptions& options);

}  // namespace tessera::training
