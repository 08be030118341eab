// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <c10/util/intrusive_ptr.h>

namespace c10d {
class Backend;
}  // namespace c10d

namespace tessera::distributed {

/// Spreads the rows of the tables over the ranks of `backend`, for example
/// make_gloo_backend(). Lookups and updates reach the rows of all ranks. Each rank
/// passes its own batch and gets its own activations; a batch may be smaller than
/// those of other ranks, or empty. An update is the same as that of a single process
/// for all batches together, so divide losses by the global batch size.
///
///   TPUEmbeddingOptions{.features = features, .optimizer = optim::Adagrad{},
///                       .strategy = sharded_strategy(make_gloo_backend())}
///
/// Some calls are collective: all ranks must make them in the same order and with the
/// same configs. These are the layer's constructor, forward(), begin_forward(),
/// backward(), read_rows(), saving and loading checkpoints, sum_gradients(),
/// broadcast_parameters(), Combined::clip_grad_norm_(), and Combined::step(). The
/// number of batches must be the same on all ranks. Several layers may share a
/// backend, but nothing else may use it at the same time.
///
/// If a batch, a callable or a file fails on one rank, all ranks raise an error before
/// any row changes. After an error of the backend itself, such as a lost rank, some
/// ranks may have applied an update that others have not. Then load a checkpoint.
///
/// Each rank sums the gradients of a row in the order of its batch. These sums are
/// added in the order of the ranks. Duplicates are always accumulated.
/// Errors:  c10::ValueError for an empty backend. The layer's constructor checks the
///          options.
Strategy sharded_strategy(
    c10::intrusive_ptr<c10d::Backend> backend,
    ShardingOptions options = {});

}  // namespace tessera::distributed
