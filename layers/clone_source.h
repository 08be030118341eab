// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/check.h"

#include <torch/nn/module.h>

namespace tessera {

/// Returns the module that clone_() copies. `name` is the name of its class.
/// Errors:  c10::Error if the module is not an `Impl`.
template <class Impl>
const Impl& clone_source(const torch::nn::Module& other, const char* name) {
  const auto* source = dynamic_cast<const Impl*>(&other);
  TESSERA_CHECK(
      source != nullptr,
      "[{0}::clone] expected to copy another {0}, but got {1}. Let the constructor and the reset() of the model register the same modules.",
      name,
      other.name());
  return *source;
}

}  // namespace tessera
