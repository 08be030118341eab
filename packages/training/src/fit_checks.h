// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/fit.h>

#include <memory>
#include <string>

namespace tessera::training {

/// The beginning of the errors of the validation in fit().
inline constexpr const char* kFitValidation = "[fit] validation:";

/// FitOptions::strategy, or that of the sharded tables of the model, or Strategy::fused().
Strategy strategy_of(const FitOptions& options);

/// Checks the arguments of fit().
/// Errors:  c10::ValueError.
void check_fit(const std::shared_ptr<Pass>& pass, const FitOptions& options);

}  // namespace tessera::training
