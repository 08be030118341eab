// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

namespace tessera {

/// Returns the best kernels that this machine can run, or those that the environment
/// variable TESSERA_ISA names. The first call chooses them.
/// Errors:  c10::ValueError listing the choices if this machine can't run the named ones.
const kernels::KernelTable& active_kernels();

}  // namespace tessera
