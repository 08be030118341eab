// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace tessera {

/// Checks the row splits of a jagged batch and returns them as contiguous int64. The
/// sequence b is rows [row_splits[b], row_splits[b + 1]) of a matrix of `rows` rows.
/// Errors:  c10::ValueError or TypeError beginning with the class name.
at::Tensor checked_row_splits(
    const at::Tensor& row_splits,
    int64_t rows,
    const std::string& class_name);

/// Causal attention in each sequence of a jagged batch:
///
///   result[i] = sum over j <= i of softmax_j(query[i] key[j] / sqrt(head_dim)) value[j]
///
/// `projected` [nnz, 3 dim] has the query, the key and the value of each position, each
/// with the columns of all heads. The result is [nnz, dim]. Memory is linear in the length
/// of a sequence. `row_splits` is the result of checked_row_splits(). `dropout` is the
/// probability with which an attention weight is set to 0; the others are divided by
/// 1 - dropout. torch::manual_seed() determines which.
at::Tensor jagged_causal_attention(
    const at::Tensor& projected,
    const at::Tensor& row_splits,
    int64_t num_heads,
    double dropout = 0.0);

}  // namespace tessera
