// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

// Tensors in files that NumPy and the safetensors packages read and write, such
// as pretrained vectors for a table:
//
//   layer->update_embedding_table("users", load_npy("users.npy"));
//   save_npy(layer->embedding_tables()["users"], "users.npy");
//
// Saving: dense CPU tensors of float32, float64, float16, bfloat16 (safetensors
// only), int8, int16, int32, int64, uint8 or bool; of a view, its elements alone.
// The file appears whole or not at all: it is written beside its place, synced
// and renamed. Tensors loaded from a file that is replaced so keep their values.
//
// Loading: tensors are views of the file's pages, which are read when they are
// used; writing to them never reaches the file. One whose data is not aligned to
// its dtype is copied. A file must not be written to in place or shortened while
// such tensors live: that changes their values or ends the process.
//
// Errors:  c10::ValueError naming the file and what is wrong with it;
//          c10::TypeError for a tensor that can't be saved; c10::Error for what
//          the system refuses, with its reason.

/// Writes NumPy's format, version 1.0, in C order.
/// Source:  numpy.lib.format.
void save_npy(const at::Tensor& tensor, const std::string& path);

/// Reads versions 1.0, 2.0 and 3.0, little endian. An array in Fortran order
/// comes as a view with its strides.
at::Tensor load_npy(const std::string& path);

}  // namespace tessera
