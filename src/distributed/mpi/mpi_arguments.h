// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::distributed {

/// The bytes of a tensor that go to one rank, or come from it.
struct ByteRange {
  int64_t begin;
  int64_t size;
};

// Each check raises c10::ValueError or c10::TypeError. `where` names the rank and
// the collective.

/// Both tensors must be defined, contiguous, strided CPU tensors of one dtype.
void check_tensors(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::string& where);

/// Divides a tensor along its first dimension: rank k gets `splits[k]` rows, or
/// every rank equally many if `splits` is empty. `name` is the argument's name.
std::vector<ByteRange> split_by_rank(
    const at::Tensor& tensor,
    const std::vector<int64_t>& splits,
    int num_ranks,
    const std::string& name,
    const std::string& where);

/// The tensors must differ in the first dimension only and share no memory.
/// `own_output` and `own_input` are the bytes that a rank sends to itself, which
/// must be as many in both.
void check_exchange(
    const at::Tensor& output,
    const at::Tensor& input,
    int64_t own_output,
    int64_t own_input,
    const std::string& where);

}  // namespace tessera::distributed
