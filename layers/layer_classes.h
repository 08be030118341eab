// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/layer_json.h>

#include <vector>

namespace tessera {

/// LibTorch's layers that JSON knows.
std::vector<detail::LayerClass> stock_layer_classes();

}  // namespace tessera
