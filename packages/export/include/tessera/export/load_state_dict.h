// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/formats/safetensors.h>
#include <torch/nn/module.h>

namespace tessera {

// snippet: tests/docs/reference_layers_test.cpp load_state_dict
/// Replaces the weights of a model with those of a Python model that has the same names.
///
///   load_state_dict(*ranker, load_safetensors("trained.safetensors"));
///
/// The names are those of a `.pt2` file: parameters and buffers have their names in
/// named_parameters() and named_buffers(), and the rows of a table are named `<path of the
/// layer>.table_0`, and so on. All weights must be there, even tables that forward() does
/// not use. A tensor that several modules share needs only its first name. Layers such as
/// MLP must be built, by build() or the first forward(). In Python,
/// `safetensors.torch.save_file(model.state_dict(), "trained.safetensors")` writes the file.
///
/// Values are converted to the dtype of the model, as copy_() does. Slots and steps of
/// optimizers do not change. No other thread may use the model meanwhile.
/// Errors:  c10::ValueError for a name that is missing or that the model does not have,
///          for wrong sizes, and for tensors that are not dense or not on the CPU;
///          c10::TypeError for a dtype of another kind, such as int8 for float32;
///          c10::NotImplementedError for tables with TableConfig::keys. After an error, no
///          weight has changed.
void load_state_dict(torch::nn::Module& model, const NamedTensors& state_dict);

}  // namespace tessera
