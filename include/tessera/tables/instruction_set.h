// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace tessera {

/// Returns the name of the SIMD instruction set with which lookups and updates run, such
/// as "avx2" or "avx512". It is the best one that this machine has, or the one that the
/// environment variable TESSERA_ISA names. The first use of Tessera chooses it.
/// Errors:  c10::ValueError listing the choices if this machine lacks the named one.
std::string instruction_set();

}  // namespace tessera
