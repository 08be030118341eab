// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

namespace tessera {

/// Joins lambdas to one function for std::visit(), with one lambda for each alternative.
/// c10::overloaded does the same, but needs LibTorch.
template <class... Functions>
struct Overloaded : Functions... {
  explicit Overloaded(Functions... functions)
      : Functions(std::move(functions))... {}

  using Functions::operator()...;
};

}  // namespace tessera
