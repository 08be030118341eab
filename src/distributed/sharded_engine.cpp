// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/sharded_engine.h"

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>
#include <tessera/optim/optimizers/custom_optimizer.h>

#include "optim/row_update.h"
#include "src/common/check.h"
#include "src/common/random_key.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace tessera::distributed {

namespace {

bool calls_user_code(const optim::OptimizerSpec& optimizer) {
  const optim::LearningRate& learning_rate = optim::learning_rate_of(optimizer);
  return optimizer.get_if<optim::CustomOptimizer>() != nullptr ||
      (!learning_rate.is_constant() && learning_rate.schedule() == nullptr);
}

void check_shardable(const TableState& table) {
  TESSERA_CHECK_VALUE(
      !table.optimizer || optim::accumulates_duplicates(*table.optimizer),
      "[table '{}'] use_gradient_accumulation must be true under sharded_strategy(), but got false, which applies the gradients of duplicate ids one by one in the order of the batch. Several ranks have no common order. Set it to true, or use Strategy::engine().",
      shorten(table.name));
}

}  // namespace

ShardedEngine::ShardedEngine(
    std::shared_ptr<EmbeddingState> state,
    std::shared_ptr<RankGroup> ranks,
    const ShardingOptions& options)
    : TableEngine(std::move(state), options.lookup_threads),
      ranks_(std::move(ranks)),
      exchange_(this->state(), ranks_, options) {
  check_placement_names(this->state(), options.placement, "[ShardingOptions]");
  for (const TableState& table : this->state().tables) {
    check_shardable(table);
    // Initial values of new keys may be unusable.
    needs_second_barrier_ = needs_second_barrier_ ||
        (table.optimizer &&
         (table.dynamic != nullptr || calls_user_code(*table.optimizer)));
  }
}

LookupWorker& ShardedEngine::worker() {
  return ranks_->worker(lookup_threads());
}

void ShardedEngine::wait_for_lookups() const {
  ranks_->wait_for_worker();
}

void ShardedEngine::abort(const std::exception_ptr& error) {
  ranks_->barrier({Rendezvous::kLookup, state().layer}, error);
}

Lookup ShardedEngine::lookup(std::vector<IdBags>& bags, UnknownKeys unknown) {
  const ProfileScope scope("tessera::lookup");
  const auto reading = lock_for_reading();
  FetchedRows fetched = exchange_.fetch(bags, unknown);
  std::vector<LookupTable> tables;
  for (const FeatureState& feature : state().features) {
    tables.push_back(
        {fetched.rows[feature.table],
         buckets_of(*state().tables[feature.table].config)});
  }
  std::vector<at::Tensor> activations = tessera::lookup(bags, tables);
  return {
      .activations = std::move(activations),
      .tables =
          std::make_shared<const std::vector<LookupTable>>(std::move(tables)),
      .route = std::move(fetched.route)};
}

// A callable may return different learning rates on different ranks.
TableEngine::Update ShardedEngine::finish_plan(
    c10::function_ref<Update()> plan) {
  if (!needs_second_barrier_) {
    return plan();
  }
  Update update;
  std::exception_ptr error;
  uint64_t rates_hash = 0;
  try {
    update = plan();
    for (const double learning_rate : update.learning_rates) {
      rates_hash =
          mix_bits(rates_hash + std::bit_cast<uint64_t>(learning_rate));
    }
  } catch (...) {
    error = std::current_exception();
  }
  ranks_->barrier_and_compare(
      {Rendezvous::kUpdateIsReady, state().layer},
      error,
      rates_hash,
      "has read other learning rates for this update. Make callables depend only "
      "on values that are the same on all ranks, such as iterations().");
  return update;
}

void ShardedEngine::confirm(const std::exception_ptr& error, int64_t passes) {
  ranks_->barrier_and_compare(
      {Rendezvous::kUpdateIsReady, state().layer},
      error,
      static_cast<uint64_t>(passes),
      "has the gradients of another number of backward() calls for this step(). "
      "Call backward() and zero_grad() on all ranks.");
}

std::vector<ShardedEngine::TableSums> ShardedEngine::sum_lookups(
    const std::vector<LookupGradients>& lookups,
    FiniteCheck finite_check,
    Update& update) {
  const size_t tables = state().tables.size();
  std::vector<bool> is_sent(tables);
  for (size_t table = 0; table < tables; ++table) {
    is_sent[table] = is_updated(lookups, table);
  }
  std::vector<TableSums> sums;
  for (const LookupGradients& lookup : lookups) {
    check(lookup);
    std::vector<TableUpdate> terms(tables);
    for (size_t i = 0; i < state().features.size(); ++i) {
      const size_t table = state().features[i].table;
      if (is_sent[table]) {
        terms[table].terms.push_back(term_of(lookup, i, update));
      }
    }
    for (size_t table = 0; table < tables; ++table) {
      if (is_sent[table]) {
        terms[table].table = &mutable_state().tables[table];
      }
    }
    check_finite(terms, finite_check, update);
    std::vector<TableUpdate> to_sum;
    std::vector<size_t> index;
    for (size_t table = 0; table < tables; ++table) {
      if (is_sent[table]) {
        if (exchange_.is_sharded(table)) {
          terms[table].id_limit =
              lookup.route->groups[exchange_.group_of(table)].requested_count;
        }
        to_sum.push_back(std::move(terms[table]));
        index.push_back(table);
      }
    }
    std::vector<RowGradients> summed = updater().sum(to_sum);
    sums.emplace_back(tables);
    for (size_t i = 0; i < index.size(); ++i) {
      sums.back()[index[i]] = std::move(summed[i]);
    }
  }
  return sums;
}

std::vector<TableUpdate> ShardedEngine::read_gradients(
    const std::vector<LookupGradients>& unordered,
    FiniteCheck finite_check,
    Update& update) {
  wait_for_lookups();
  // The order of autograd may differ between ranks.
  std::vector<LookupGradients> lookups = unordered;
  std::sort(lookups.begin(), lookups.end(), [](const auto& a, const auto& b) {
    return a.route->number < b.route->number;
  });
  std::vector<TableSums> sums;
  std::exception_ptr error;
  auto fingerprint = static_cast<uint64_t>(state().iterations);
  try {
    for (const LookupGradients& lookup : lookups) {
      fingerprint = mix_bits(fingerprint + lookup.route->number);
    }
    sums = sum_lookups(lookups, finite_check, update);
  } catch (...) {
    error = std::current_exception();
  }
  ranks_->barrier_and_compare(
      {Rendezvous::kUpdate, state().layer},
      error,
      fingerprint,
      "runs backward() over other forward() calls, or has made another number "
      "of updates. Make the same calls in the same order on all ranks.");
  std::vector<TableUpdate> updates(state().tables.size());
  for (size_t group = 0; group < exchange_.groups().size(); ++group) {
    if (exchange_.groups()[group].is_updated) {
      exchange_gradients(group, lookups, sums, updates, update);
    }
  }
  sum_data_parallel(sums, updates, update);
  return updates;
}

void ShardedEngine::exchange_gradients(
    size_t index,
    const std::vector<LookupGradients>& lookups,
    const std::vector<TableSums>& sums,
    std::vector<TableUpdate>& updates,
    Update& update) {
  const TableGroup& group = exchange_.groups()[index];
  std::vector<std::function<at::Tensor()>> pending;
  for (size_t i = 0; i < lookups.size(); ++i) {
    pending.push_back(
        exchange_.return_gradients(index, *lookups[i].route, sums[i]));
  }
  for (size_t i = 0; i < lookups.size(); ++i) {
    update.gradients.push_back(pending[i]().to(at::kFloat));
    for (const size_t table : group.tables) {
      const Route::ServedRows& served = lookups[i].route->served[table];
      updates[table].table = &mutable_state().tables[table];
      updates[table].terms.push_back(
          {.bags = &served.rows,
           .gradient = update.gradients.back().const_data_ptr<float>(),
           .stride = group.dim,
           .positions = served.positions.data()});
    }
  }
}

// Sums all rows of the tables as one vector of floats. A count behind each row says
// whether any rank has touched it.
void ShardedEngine::sum_data_parallel(
    const std::vector<TableSums>& lookups,
    std::vector<TableUpdate>& updates,
    Update& update) {
  struct Part {
    size_t table;
    int64_t begin;
  };
  std::vector<Part> parts;
  int64_t floats = 0;
  for (size_t i = 0; i < state().tables.size(); ++i) {
    const TableState& table = state().tables[i];
    if (!exchange_.is_sharded(i) && table.config->trainable &&
        table.optimizer) {
      parts.push_back({i, floats});
      floats += table.rows.count * (table.config->dim + 1);
    }
  }
  if (parts.empty()) {
    return;
  }
  at::Tensor values = at::zeros({floats}, at::kFloat);
  for (const auto& [table, begin] : parts) {
    const int64_t dim = state().tables[table].config->dim;
    float* first = values.mutable_data_ptr<float>() + begin;
    for (const TableSums& sums : lookups) {
      const RowGradients& gradients = sums[table];
      for (size_t i = 0; i < gradients.rows.size(); ++i) {
        float* row = first + gradients.rows[i] * (dim + 1);
        const float* sum =
            gradients.sums.data() + static_cast<int64_t>(i) * dim;
        for (int64_t column = 0; column < dim; ++column) {
          row[column] += sum[column];
        }
        row[dim] = 1.0F;
      }
    }
  }
  update.gradients.push_back(ranks_->sum(values));
  for (const auto& [table, begin] : parts) {
    TableState& state = mutable_state().tables[table];
    const int64_t dim = state.config->dim;
    const float* first =
        update.gradients.back().const_data_ptr<float>() + begin;
    IdBags& bags = update.bags.emplace_back();
    for (int64_t row = 0; row < state.rows.count; ++row) {
      if (first[row * (dim + 1) + dim] > 0.0F) {
        bags.ids.push_back(static_cast<uint32_t>(row));
      }
    }
    bags.bags = bags.nnz();
    bags.dim = dim;
    updates[table].table = &state;
    updates[table].terms.push_back(
        {.bags = &bags,
         .gradient = first,
         .stride = dim + 1,
         .positions = bags.ids.data()});
  }
}

std::vector<double> ShardedEngine::gather(double value, uint64_t options) {
  ranks_->barrier_and_compare(
      {Rendezvous::kNorm, state().layer},
      nullptr,
      options,
      "clips or steps with other arguments or options. Use the same on all "
      "ranks.");
  return ranks_->all_gather(value);
}

}  // namespace tessera::distributed
