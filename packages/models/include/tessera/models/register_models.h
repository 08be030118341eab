// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace tessera {

// snippet: tests/docs/reference_layers_test.cpp register_models
/// Lets to_json() and layer_from_json() know the layers of this package.
///
///   register_models();
///   const auto model = layer_from_json(parse_json(text));
///
/// Call register_models() before these functions. A second call changes nothing.
void register_models();

}  // namespace tessera
