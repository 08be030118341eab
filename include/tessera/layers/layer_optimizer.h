// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace tessera {

/// The tables' own optimizers as one torch::optim::Optimizer, for a layer on
/// Strategy::host() or dense().
///
///   auto tables = make_optimizer(model->embedding);
///   ...
///   loss.backward();
///   tables->step();
///
/// There is one param group per table that has an optimizer, in order. The slots and
/// the gradients that gradient_accumulation_steps collects belong to the layer. They
/// are saved and loaded with it, under the same keys as on the engine. So make the
/// optimizer before loading or saving; only the slots of a slot_creation exist from
/// the layer's construction on. The step counter belongs to the layer, too, and each
/// step with gradients advances it by one. The rows of a feature without gradient stay
/// untouched. Don't add param groups to the optimizer.
///
/// A lazy optimizer updates only the rows of the batch, with dense and with sparse
/// gradients. The layer remembers which rows a dense gradient belongs to, until the
/// gradient is zeroed. Dense gradients cost time and memory for the whole table in
/// each step: for large tables choose Strategy::host({.sparse_gradients = true}).
/// Errors:  c10::ValueError for a layer on another strategy or without any
///          optimizer, and for an optimizer that takes duplicates one by one.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const TPUEmbedding& layer);

}  // namespace tessera
