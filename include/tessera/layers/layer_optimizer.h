// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>
#include <torch/optim/optimizer.h>

#include <memory>

namespace tessera {

/// The tables' own optimizers as one torch::optim::Optimizer, for a layer on
/// Strategy::host({.sparse_gradients = true}).
///
///   auto tables = make_optimizer(model->embedding);
///   ...
///   loss.backward();
///   tables->step();
///
/// One param group per table that has an optimizer, in order. The slots, and
/// what gradient_accumulation_steps collects, belong to the layer: they are saved and loaded with it, under the same keys as on
/// the engine, so make the optimizer before loading or saving. So does the step
/// counter, which a step with gradients advances by one. A feature without
/// gradient leaves its rows untouched. Don't add param groups to it.
/// Errors:  c10::ValueError for a layer on another strategy or without any
///          optimizer, for one that takes duplicates one by one, from a
///          slot_creation, and for a table whose optimizer updates the rows of
///          the batch only while the host gives dense gradients, which do not
///          say which rows these are.
std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const TPUEmbedding& layer);

}  // namespace tessera
