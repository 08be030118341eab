// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera {

/// Allocates an uninitialised tensor for a table or slot.
///
/// The tensor is aligned to 64 bytes. If it is at least as large as a huge page, it is
/// aligned to one, and transparent huge pages are requested, which makes random row access
/// twice as fast. A huge page has 2 MiB, or 32 MiB on an aarch64 whose pages have 16 KiB.
/// Shapes:  [rows, dim].
at::Tensor allocate_rows(
    int64_t rows,
    int64_t dim,
    at::ScalarType dtype = at::kFloat);

/// Reserves addresses for a tensor of zeros, whose pages take memory when they are first
/// written. Only the pages of the first `touched_rows` rows take memory at once. `what`
/// names the tensor in the error.
/// Shapes:  [rows, dim].
/// Errors:  c10::Error if the system can't reserve the addresses or does not have the
///          memory.
at::Tensor reserve_rows(
    int64_t rows,
    int64_t dim,
    at::ScalarType dtype,
    const std::string& what,
    int64_t touched_rows = 0);

}  // namespace tessera
