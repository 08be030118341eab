// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/rater.h"
#include "examples/movielens/rating_data.h"

#include <tessera/engine/strategy.h>

#include <cstdint>

/// Which of the processes that train together this one is.
struct Place {
  tessera::Strategy strategy = tessera::Strategy::engine();
  int64_t rank = 0;
  int64_t ranks = 1;
};

/// The only one, or with --sharded the one that mpirun says: small tables on every rank,
/// the others spread over them.
Place find_place(bool is_sharded);

/// This rank's share of a batch.
Ratings share_of(const Ratings& batch, const Place& place);

/// Copies tables and dense weights of a model over ranks to one in this process. All ranks
/// call it.
void copy_weights(Rater& from, Rater& to);
