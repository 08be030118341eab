// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

// NumPy and the safetensors packages read and write these files. They can hold pretrained
// vectors for a table, for example:
//
//   layer->update_embedding_table("users", load_npy("users.npy"));
//   save_npy(layer->embedding_tables()["users"], "users.npy");
//
// Saving: the tensor must be a dense CPU tensor of float32, float64, float16, bfloat16
// (safetensors only), int8, int16, int32, int64, uint8 or bool. Only the elements of a
// view are saved, not all of its storage. The file appears whole or not at all: it is
// written under another name, synced and renamed. Tensors that were loaded from the
// replaced file thus keep their values.
//
// Loading: tensors are views of the file's pages, which are read at their first use.
// Writing to a loaded tensor does not change the file. A tensor whose data is not aligned
// to its dtype is copied. While the other tensors live, the file must not be shortened or
// written to in place: that changes their values or ends the process.
//
// Errors:  c10::ValueError naming the file and what is wrong with it;
//          c10::TypeError for a tensor that can't be saved; c10::Error with the
//          system's reason if the system refuses to read or write.

/// Writes a tensor in version 1.0 of NumPy's format, in C order.
/// Source:  numpy.lib.format.
void save_npy(const at::Tensor& tensor, const std::string& path);

/// Reads versions 1.0, 2.0 and 3.0 of NumPy's format, little endian. An array in Fortran
/// order becomes a view with strides of that order.
at::Tensor load_npy(const std::string& path);

}  // namespace tessera
