// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/ranks.h"

#include <tessera/distributed/gloo_backend.h>
#include <tessera/distributed/sharded_strategy.h>
#include <tessera/layers/dense_parameters.h>

namespace distributed = tessera::distributed;

Process join_processes() {
  const auto backend = distributed::make_gloo_backend();
  const auto strategy = distributed::sharded_strategy(
      backend,
      {.placement =
           {{"age", tessera::TablePlacement::data_parallel()},
            {"gender", tessera::TablePlacement::data_parallel()},
            {"genre", tessera::TablePlacement::data_parallel()},
            {"occupation", tessera::TablePlacement::data_parallel()},
            {"year", tessera::TablePlacement::data_parallel()}},
       .split = tessera::RowSplit::kMod});
  return {
      strategy,
      backend->getRank(),
      backend->getSize(),
      [strategy](const torch::nn::Module& model) {
        distributed::broadcast_parameters(
            tessera::dense_parameters(model), strategy);
      }};
}
