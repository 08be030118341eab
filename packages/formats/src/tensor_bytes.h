// SPDX-License-Identifier: Apache-2.0
// The common parts of .npy and safetensors files: dtypes, sizes, tensors as bytes.
#pragma once

#include <tessera/common/json.h>

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
  /// The dtype in NumPy's `descr`; nullptr if NumPy has no such dtype.
  const char* npy;
  const char* safetensors;
};

/// All dtypes that files can hold.
std::span<const FileDtype> file_dtypes();

/// The place and type of a tensor in a file.
struct TensorBytes {
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> shape = {};
  /// Whether neighbours along the first dimension are neighbours in the file.
  bool is_fortran_order = false;
  /// The first byte, counted from the beginning of the file.
  size_t offset = 0;
};

/// The maximum number of dimensions. NumPy before 2.0 and many operators of LibTorch allow
/// fewer.
constexpr size_t kMaxRank = 64;

/// The number of bytes of a tensor, or nullopt if the number or a stride does not fit into
/// an int64.
std::optional<size_t> num_bytes(
    const std::vector<int64_t>& shape,
    at::ScalarType dtype);

/// Makes a tensor from bytes of the file and keeps the file mapped while the tensor lives.
/// The caller has checked that the bytes are inside the file. `where` names the tensor in
/// errors.
/// Errors:  c10::ValueError for a bool that is neither 0 nor 1.
at::Tensor tensor_in(
    const std::shared_ptr<MappedFile>& file,
    const TensorBytes& location,
    const std::string& where);

/// Returns the entry of file_dtypes() for a tensor.
/// Errors:  c10::TypeError beginning with `where` for a tensor that no file can
///          hold.
const FileDtype& check_saveable(
    const at::Tensor& tensor,
    const std::string& where);

/// Writes the elements of a tensor in C order.
void write_elements(AtomicFile& file, const at::Tensor& tensor);

/// Whether `value` is a list of integers in [0, 2^63).
bool is_list_of_sizes(const Json& value);

}  // namespace tessera
