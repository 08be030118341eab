// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/kernels.h"

namespace tessera {

/// The kernels in use: the best of this machine, or those that the environment
/// variable TESSERA_ISA names. Chosen at the first call.
/// Errors:  c10::ValueError listing the choices when this machine lacks them.
const kernels::KernelTable& active_kernels();

}  // namespace tessera
