// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace tessera {

/// Returns the line of an error's message that states the problem, without the stacks of
/// C++ and TorchScript.
std::string reason_of(const std::exception& error);

}  // namespace tessera
