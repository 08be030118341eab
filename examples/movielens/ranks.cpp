// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/ranks.h"

#include <tessera/distributed/gloo_backend.h>
#include <tessera/distributed/sharded_strategy.h>
#include <tessera/layers/dense_parameters.h>

#include <ATen/core/grad_mode.h>

#include <vector>

Process join_processes(bool is_sharded) {
  if (!is_sharded) {
    return {};
  }
  const auto backend = tessera::distributed::make_gloo_backend();
  return {
      tessera::distributed::sharded_strategy(
          backend,
          {.placement =
               {{"age", tessera::TablePlacement::data_parallel()},
                {"gender", tessera::TablePlacement::data_parallel()},
                {"genre", tessera::TablePlacement::data_parallel()},
                {"occupation", tessera::TablePlacement::data_parallel()},
                {"year", tessera::TablePlacement::data_parallel()}},
           .split = tessera::RowSplit::kMod}),
      backend->getRank(),
      backend->getSize()};
}

Ratings share_of(const Ratings& batch, const Process& process) {
  Ratings share;
  for (size_t i = process.rank; i < batch.size(); i += process.ranks) {
    share.push_back(batch[i]);
  }
  return share;
}

void copy_weights(Rater& from, Rater& to) {
  for (const auto& table : to->embedding->embedding_tables()) {
    to->embedding->update_embedding_table(
        table.name,
        from->embedding->read_rows(table.name, 0, table.parameters.size(0)));
  }
  const at::NoGradGuard no_grad;
  const std::vector<at::Tensor> weights = tessera::dense_parameters(*from);
  const std::vector<at::Tensor> copies = tessera::dense_parameters(*to);
  for (size_t i = 0; i < copies.size(); ++i) {
    copies[i].copy_(weights[i]);
  }
}
