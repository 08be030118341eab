// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace tessera {

/// Makes one torch::optim::Optimizer that trains each table with the table's own optimizer,
/// for a layer on Strategy::host() or padded().
///
///   auto tables = make_optimizer(model->embedding);
///   ...
///   loss.backward();
///   tables->step();
///
/// There is one param group per table that has an optimizer, in the order of the tables.
/// The slots and the gradients that gradient_accumulation_steps collects belong to the
/// layer. They are saved and loaded with it, under the same names as on Strategy::fused().
/// So make the optimizer before you load or save the layer: without an optimizer, the layer
/// has only the slots that a slot_creation makes. The step counter also belongs to the
/// layer. Each step with gradients advances it by one. As on Strategy::fused(), a feature
/// that is not in the loss has a gradient of zeros, so its rows count as touched. Don't add
/// param groups to the optimizer.
///
/// A lazy optimizer updates only the rows of the batch, with dense and with sparse
/// gradients. The layer remembers which rows a dense gradient belongs to, until the
/// gradient is zeroed. With dense gradients, each step takes time and memory for the
/// whole table. For large tables, choose Strategy::host({.sparse_gradients = true}).
/// Errors:  c10::ValueError for a layer on another strategy or without any optimizer, and
///          for an optimizer that applies the gradients of duplicate ids one by one.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const TPUEmbedding& layer);

}  // namespace tessera
