// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Joins lambdas to one function for std::visit(), with one lambda for each alternative.
/// c10::overloaded does the same, but needs LibTorch.
template <class... Functions>
struct Overloaded : Functions... {
  using Functions::operator()...;
};

// Clang before version 17 needs this.
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;

}  // namespace tessera
