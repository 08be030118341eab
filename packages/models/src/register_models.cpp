// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/register_models.h>

#include <tessera/layers/dense/register_dense_layers.h>
#include <tessera/layers/layer_json.h>
#include <tessera/models/causal_self_attention.h>
#include <tessera/models/deep_fm.h>
#include <tessera/models/dice.h>
#include <tessera/models/din_attention.h>
#include <tessera/models/factorization_machine.h>
#include <tessera/models/matrix_factorization.h>
#include <tessera/models/mixture_of_experts.h>
#include <tessera/models/retrieval.h>
#include <tessera/models/sampling_probability.h>
#include <tessera/models/sasrec.h>
#include <tessera/models/simplex.h>
#include <tessera/models/transformer_block.h>

namespace tessera {

void register_models() {
  register_dense_layers();
  register_layer<CausalSelfAttention>();
  register_layer<DINAttention>();
  register_layer<DeepFM>();
  register_layer<Dice>();
  register_layer<FactorizationMachine>();
  register_layer<MMoE>();
  register_layer<MatrixFactorization>();
  register_layer<Retrieval>();
  register_layer<SASRec>();
  register_layer<SamplingProbability>();
  register_layer<SimpleX>();
  register_layer<TransformerBlock>();
}

}  // namespace tessera
