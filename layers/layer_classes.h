// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/layer_json.h>

#include <string>
#include <vector>

namespace tessera {

/// Reads the dtype of a layer's weights. The JSON has LibTorch's name of the dtype.
/// Errors:  c10::ValueError naming `where` unless it is Double, Half or BFloat16.
at::ScalarType weights_dtype_from_json(
    const Json& json,
    const std::string& where);

/// The layers of LibTorch that JSON supports.
std::vector<detail::LayerClass> stock_layer_classes();

}  // namespace tessera
