// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

namespace tessera::exporting {

/// The line of an error's message that states the problem, without TorchScript's stack.
std::string reason_of(const std::exception& error);

}  // namespace tessera::exporting
