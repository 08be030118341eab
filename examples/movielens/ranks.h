// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/rater.h"
#include "examples/movielens/rating_data.h"

#include <tessera/engine/strategy.h>

#include <cstdint>

/// This process, among those that train together.
struct Process {
  tessera::Strategy strategy = tessera::Strategy::fused();
  int64_t rank = 0;
  int64_t ranks = 1;
};

/// Without --sharded this process is the only one. With --sharded the environment says
/// which rank this is. Each rank has all small tables, and the other tables are spread
/// over the ranks.
Process join_processes(bool is_sharded);

/// The examples of a batch that this rank trains on.
Ratings share_of(const Ratings& batch, const Process& process);

/// Copies tables and dense weights of a sharded model to a model in this process. All
/// ranks call it.
void copy_weights(Rater& from, Rater& to);
