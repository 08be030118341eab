// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// An uninitialised float32 tensor for a table or slot.
///
/// 64-byte aligned; from 2 MiB on it begins on a huge page and asks for
/// transparent huge pages, which makes random row access twice as fast.
/// Shapes:  [rows, dim].
at::Tensor allocate_rows(int64_t rows, int64_t dim);

}  // namespace tessera
