// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}  // namespace c10d

namespace tessera::distributed {

/// An engine per rank of `backend`, such as make_mpi_backend() gives: rows are
/// spread over the ranks, lookups and updates reach all of them. Each rank
/// passes its own batch, which may be smaller than the others' or empty, and
/// gets its own activations; an update is the one that a single engine makes of
/// all batches together, so divide losses by the global batch size.
///
///   TPUEmbeddingOptions{.features = features, .optimizer = optim::Adagrad{},
///                       .strategy = sharded_strategy(make_mpi_backend())}
///
/// Constructing the layer, forward(), begin_forward(), backward(), read_rows(),
/// checkpoints, sum_gradients(), broadcast_parameters() and the
/// clip_grad_norm_() and step() of a Combined are collective: all ranks call
/// them, in the same order, with the same configs, and nothing else uses
/// `backend` at the same time. Several layers may share a backend; the number of
/// batches is the same on all ranks. A batch, a callable or a file that fails on
/// one rank alone raises on all, before any row changes; after an error of
/// the backend itself (a rank is gone) tables may be those of before on some
/// ranks: load a checkpoint. Gradients of a row are summed on each
/// rank in the order of its batch, these sums in the order of ranks; duplicates
/// are always accumulated.
/// Errors:  c10::ValueError for an empty backend; for options, from the layer's
///          constructor.
Strategy sharded_strategy(
    c10::intrusive_ptr<c10d::Backend> backend,
    ShardingOptions options = {});

}  // namespace tessera::distributed
