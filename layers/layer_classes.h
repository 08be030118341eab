// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/layer_json.h>

#include <vector>

namespace tessera {

/// The layers of LibTorch that JSON supports.
std::vector<detail::LayerClass> stock_layer_classes();

}  // namespace tessera
