// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

/// Keeps the lowest frequencies of each column of each sequence of a jagged batch. Zeros are
/// put before a sequence, so that it has `length` rows:
///
///   result = irfft(rfft(rows) with all but the first num_frequencies set to 0)
///
/// All rows of a sequence depend on each other, also earlier rows on later ones. The
/// gradient is the same function of the gradient. Memory is linear in nnz.
///
/// Shapes:  x and the result [nnz, dim], row_splits [batch + 1] from checked_row_splits(), of
///          sequences of at most `length` rows.
/// Range:   num_frequencies in [1, length / 2 + 1].
at::Tensor low_frequencies(
    const at::Tensor& x,
    const at::Tensor& row_splits,
    int64_t length,
    int64_t num_frequencies);

}  // namespace tessera
