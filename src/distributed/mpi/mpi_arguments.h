// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::distributed {

/// Bytes of a tensor that go to one rank, or come from it.
struct Part {
  char* data;
  int64_t num_bytes;
};

// Each check raises c10::ValueError or c10::TypeError; `where` names rank and
// collective, `name` the argument.

/// A defined, contiguous, strided CPU tensor.
void check_tensor(
    const at::Tensor& tensor,
    const std::string& name,
    const std::string& where);

void check_same_dtype(
    const at::Tensor& output,
    const at::Tensor& input,
    const std::string& where);

void check_count(
    size_t count,
    int64_t expected,
    const std::string& name,
    const std::string& where);

/// The whole tensor.
Part part_to_read(const at::Tensor& tensor);
Part part_to_write(const at::Tensor& tensor);

/// Cuts `whole`, the bytes of `tensor`: rows of its first dimension, `splits[k]`
/// of them for rank k; without splits equally many.
std::vector<Part> split_parts(
    Part whole,
    const at::Tensor& tensor,
    const std::vector<int64_t>& splits,
    int num_ranks,
    const std::string& name,
    const std::string& where);

/// No byte is both sent and received, except that a rank's own part may stay
/// where it is; and that part is as long on both sides.
void check_exchange(
    const std::vector<Part>& outputs,
    const std::vector<Part>& inputs,
    int rank,
    const std::string& where);

}  // namespace tessera::distributed
