// SPDX-License-Identifier: Apache-2.0
// What .npy and safetensors files share: dtypes, sizes, tensors as bytes.
#pragma once

#include "serialization/mapped_file.h"
#include "src/common/atomic_file.h"

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// A dtype that files can hold.
struct FileDtype {
  at::ScalarType dtype;
  /// As in NumPy's `descr`; nullptr where NumPy has none.
  const char* npy;
  const char* safetensors;
};

/// Every one of them.
std::span<const FileDtype> file_dtypes();

/// A tensor's place in a file.
struct TensorBytes {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
  /// Whether the first dimension is the one whose elements are neighbours.
  bool is_fortran_order = false;
  /// From the beginning of the file.
  size_t offset = 0;
};

/// More dimensions than NumPy and many operators of LibTorch take.
constexpr size_t kMaxRank = 64;

/// The bytes of a tensor, or nothing when they, or its strides, do not fit into
/// an int64.
std::optional<size_t> num_bytes(
    const std::vector<int64_t>& shape,
    at::ScalarType dtype);

/// The tensor whose bytes the caller has found to be inside of the file; keeps
/// the mapping alive. `where` names it in errors.
/// Errors:  c10::ValueError for a bool that is neither 0 nor 1.
at::Tensor tensor_in(
    const std::shared_ptr<MappedFile>& file,
    const TensorBytes& place,
    const std::string& where);

/// The entry of a tensor's dtype.
/// Errors:  c10::TypeError beginning with `where` for a tensor that no file can
///          hold.
const FileDtype& require_saveable(
    const at::Tensor& tensor,
    const std::string& where);

/// The elements in C order.
void write_elements(AtomicFile& file, const at::Tensor& tensor);

}  // namespace tessera
