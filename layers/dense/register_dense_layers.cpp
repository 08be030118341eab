// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/register_dense_layers.h>

#include <tessera/layers/dense/concatenate.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/layers/layer_json.h>

namespace tessera {

void register_dense_layers() {
  register_layer<Concatenate>();
  register_layer<Cross>();
  register_layer<DotInteraction>();
  register_layer<EmbedReduce>();
  register_layer<MLP>();
  register_layer<MultiLayerDCN>();
}

namespace {

// A linker leaves out the objects of a static library that nobody names. So the target
// tessera_dense has a link option that names register_dense_layers(), and each program that
// links with it has this object.
[[maybe_unused]] const bool is_registered = (register_dense_layers(), true);

}  // namespace

}  // namespace tessera
