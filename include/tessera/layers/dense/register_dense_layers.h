// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

/// Lets to_json() and layer_from_json() know the layers of this folder.
///
/// Programs that link with the CMake targets tessera::tessera, tessera::dense or
/// tessera::models need not call it, because it is called when they start. Other programs
/// call it before to_json() and layer_from_json(). A second call changes nothing.
void register_dense_layers();

}  // namespace tessera
