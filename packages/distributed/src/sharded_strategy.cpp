// SPDX-License-Identifier: Apache-2.0
#include <tessera/distributed/sharded_strategy.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>
#include <tessera/distributed/mpi_backend.h>  // defines c10d::Backend, whatever LibTorch has
#include <tessera/engine/sharding_options.h>
#include <tessera/optim/optimizers/custom_optimizer.h>

#include "optim/row_update.h"
#include "packages/distributed/src/backend_group.h"
#include "packages/distributed/src/partition.h"
#include "packages/distributed/src/row_exchange.h"
#include "src/common/check.h"
#include "src/common/random_key.h"
#include "src/common/rank_group.h"
#include "src/engine/finite_gradients.h"
#include "src/engine/table_store.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/FunctionRef.h>

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
      "[table '{}'] use_gradient_accumulation must be true under sharded_strategy(), but got false, which applies the gradients of duplicate ids one by one in the order of the batch. Several ranks have no common order. Set it to true, or use Strategy::fused().",
      shorten(table.name));
}

// The cast is valid, because ShardedTableStore::lookup() makes all routes of its gradients.
const Route& route_of(const LookupGradients& lookup) {
  return static_cast<const Route&>(*lookup.route);
}

// A TableStore whose tables are spread over ranks.
//
// In a lookup, each rank sends its distinct ids to their owners, receives the rows, and
// applies the combiner to them. In an update, each rank sends its sum per distinct row
// to the owner, which adds the sums in the order of the ranks and applies them once.
// For data-parallel tables, the ranks sum a gradient of all rows.
class ShardedTableStore : public TableStore {
 public:
  ShardedTableStore(
      std::shared_ptr<EmbeddingState> state,
      std::shared_ptr<RankGroup> ranks,
      const ShardingOptions& options)
      : TableStore(std::move(state), options.lookup_threads),
        ranks_(std::move(ranks)),
        exchange_(make_row_exchange(this->state(), ranks_, options)) {
    check_placement_names(
        this->state(), options.placement, "[ShardingOptions]");
    for (const TableState& table : this->state().tables) {
      check_shardable(table);
      // User code may fail on one rank alone, as may the initial values of new keys.
      needs_second_barrier_ = needs_second_barrier_ ||
          (table.optimizer &&
           (table.key_rows != nullptr || calls_user_code(*table.optimizer)));
    }
  }

  Lookup lookup(std::vector<IdBags>& bags, UnknownKeys unknown) override {
    const ProfileScope scope("tessera::lookup");
    const auto reading = lock_for_reading();
    FetchedRows fetched = exchange_->fetch(bags, unknown);
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

  void abort(const std::exception_ptr& error) override {
    ranks_->barrier({Rendezvous::kLookup, state().layer}, error);
  }

  void confirm(const std::exception_ptr& error, int64_t passes) override {
    ranks_->barrier_and_compare(
        {Rendezvous::kUpdateIsReady, state().layer},
        error,
        static_cast<uint64_t>(passes),
        "has the gradients of another number of backward() calls for this step(). "
        "Call backward() and zero_grad() on all ranks.");
  }

  std::vector<double> gather(double value, uint64_t options) override {
    const RankGroup::Arrivals arrivals = ranks_->arrive(
        {Rendezvous::kNorm, state().layer},
        nullptr,
        {.value = static_cast<int64_t>(options),
         .problem =
             "clips or steps with other arguments or options. Use the same on all "
             "ranks.",
         .bodies = {as_bytes(at::full({1}, value, at::kDouble))}})();
    std::vector<double> values;
    for (const at::Tensor& body : arrivals.bodies) {
      std::memcpy(
          &values.emplace_back(), body.const_data_ptr(), sizeof(double));
    }
    return values;
  }

  // All layers of a group share a worker, so that their lookups keep their order.
  LookupWorker& worker() override {
    return ranks_->worker(lookup_threads());
  }

 protected:
  std::vector<TableUpdate> read_gradients(
      const std::vector<LookupGradients>& unordered,
      FiniteCheck finite_check,
      Update& update) override {
    wait_for_lookups();
    // The order of autograd may differ between ranks.
    std::vector<LookupGradients> lookups = unordered;
    std::ranges::sort(
        lookups, {}, [](const auto& one) { return route_of(one).number; });
    std::vector<TableSums> sums;
    auto fingerprint = static_cast<uint64_t>(state().passes);
    const std::exception_ptr error = error_of([&] {
      for (const LookupGradients& lookup : lookups) {
        fingerprint = mix_bits(fingerprint + route_of(lookup).number);
      }
      sums = sum_lookups(lookups, finite_check, update);
      if (finite_check == FiniteCheck::kRaise) {
        check_dense_parameters();  // all ranks get the error
      }
    });
    const DenseRows dense = find_dense_rows();
    at::Tensor values;
    RankGroup::Message message{
        .value = static_cast<int64_t>(fingerprint),
        .problem =
            "runs backward() over other forward() calls, or has made another number "
            "of updates. Make the same calls in the same order on all ranks."};
    const bool is_direct = ranks_->is_sum_direct(dense.floats);
    if (error == nullptr && dense.floats > 0) {
      values = pack_dense_rows(dense, sums);
      if (is_direct) {
        message.bodies = {as_bytes(values)};
      }
    }
    const auto wait_for_ranks = ranks_->arrive(
        {Rendezvous::kUpdate, state().layer}, error, std::move(message));
    const PendingGradients pending = send_gradients(lookups, sums);
    RankGroup::Arrivals arrivals;
    try {
      arrivals = wait_for_ranks();
    } catch (...) {
      for (const auto& of_group : pending) {
        RankGroup::drain(of_group);
      }
      throw;
    }
    std::vector<TableUpdate> updates(state().tables.size());
    for (size_t group = 0; group < pending.size(); ++group) {
      receive_gradients(group, pending[group], lookups, updates, update);
    }
    if (dense.floats > 0) {
      update.gradients.push_back(
          is_direct ? ranks_->add_bodies(values, arrivals)
                    : ranks_->sum_parts(values));
      add_dense_updates(dense, updates, update);
    }
    return updates;
  }

  // A callable may return different learning rates on different ranks.
  Update finish_plan(c10::function_ref<Update()> plan) override {
    if (!needs_second_barrier_) {
      return plan();
    }
    Update update;
    uint64_t rates_hash = 0;
    const std::exception_ptr error = error_of([&] {
      update = plan();
      for (const double learning_rate : update.learning_rates) {
        rates_hash =
            mix_bits(rates_hash + std::bit_cast<uint64_t>(learning_rate));
      }
    });
    ranks_->barrier_and_compare(
        {Rendezvous::kUpdateIsReady, state().layer},
        error,
        rates_hash,
        "has read other learning rates for this update. Make callables depend only "
        "on values that are the same on all ranks, such as iterations().");
    return update;
  }

  void wait_for_lookups() const override {
    ranks_->wait_for_worker();
  }

 private:
  using TableSums = std::vector<RowGradients>;  // one per table

  // Returns, for each lookup and each table, the sum of the gradients of each row. Rows of a
  // data-parallel table have their own numbers. Other rows are positions (see Route).
  std::vector<TableSums> sum_lookups(
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
          if (const auto group = exchange_->group_of(table)) {
            terms[table].id_limit =
                route_of(lookup).groups[*group].requested_count;
          }
        }
      }
      check_finite(terms, finite_check, update);
      std::erase_if(terms, [](const TableUpdate& sum) { return !sum.table; });
      std::vector<RowGradients> summed = updater().sum(terms);
      sums.emplace_back(tables);
      size_t next = 0;
      for (size_t table = 0; table < tables; ++table) {
        if (is_sent[table]) {
          sums.back()[table] = std::move(summed[next++]);
        }
      }
    }
    return sums;
  }

  // One function for each lookup, in a vector for each group of tables.
  using PendingGradients =
      std::vector<std::vector<std::function<at::Tensor()>>>;

  PendingGradients send_gradients(
      const std::vector<LookupGradients>& lookups,
      const std::vector<TableSums>& sums) const {
    static const TableSums kNothing;
    PendingGradients pending(exchange_->groups().size());
    for (size_t group = 0; group < pending.size(); ++group) {
      for (size_t i = 0;
           exchange_->groups()[group].is_updated && i < lookups.size();
           ++i) {
        pending[group].push_back(exchange_->return_gradients(
            group, route_of(lookups[i]), i < sums.size() ? sums[i] : kNothing));
      }
    }
    return pending;
  }

  void receive_gradients(
      size_t index,
      const std::vector<std::function<at::Tensor()>>& pending,
      const std::vector<LookupGradients>& lookups,
      std::vector<TableUpdate>& updates,
      Update& update) {
    const TableGroup& group = exchange_->groups()[index];
    for (size_t i = 0; i < pending.size(); ++i) {
      update.gradients.push_back(pending[i]().to(at::kFloat));
      for (const size_t table : group.tables) {
        const Route::ServedRows& served = route_of(lookups[i]).served[table];
        updates[table].table = &mutable_state().tables[table];
        updates[table].terms.push_back(
            {.bags = &served.rows,
             .gradient = update.gradients.back().const_data_ptr<float>(),
             .stride = group.dim,
             .positions = served.positions.data()});
      }
    }
  }

  // The data-parallel tables that are updated. All their rows are one vector of floats. A
  // count behind each row says whether any rank has touched it.
  struct DenseRows {
    struct Part {
      size_t table;
      int64_t begin;
    };
    std::vector<Part> tables = {};
    int64_t floats = 0;
  };

  DenseRows find_dense_rows() const {
    DenseRows rows;
    for (size_t i = 0; i < state().tables.size(); ++i) {
      const TableState& table = state().tables[i];
      if (!exchange_->group_of(i) && table.config->trainable &&
          table.optimizer) {
        rows.tables.push_back({i, rows.floats});
        rows.floats += table.rows.count * (table.config->dim + 1);
      }
    }
    return rows;
  }

  at::Tensor pack_dense_rows(
      const DenseRows& rows,
      const std::vector<TableSums>& lookups) const {
    at::Tensor values = at::zeros({rows.floats}, at::kFloat);
    for (const auto& [table, begin] : rows.tables) {
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
    return values;
  }

  void add_dense_updates(
      const DenseRows& rows,
      std::vector<TableUpdate>& updates,
      Update& update) {
    for (const auto& [table, begin] : rows.tables) {
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

  std::shared_ptr<RankGroup> ranks_;
  std::unique_ptr<RowExchange> exchange_;
  // Whether an update may fail on one rank alone after gradients have arrived.
  bool needs_second_barrier_ = false;
};

LocalRows rows_of(
    const Strategy::Sharded& strategy,
    const std::string& name,
    const TableConfig& table) {
  const int64_t ranks = strategy.ranks->size();
  return Partition(
             placement_of(name, table, strategy.options, ranks), table, ranks)
      .rows_of(strategy.ranks->rank());
}

std::shared_ptr<TableStore> make_store(
    const Strategy::Sharded& strategy,
    std::shared_ptr<EmbeddingState> state) {
  return std::make_shared<ShardedTableStore>(
      std::move(state), strategy.ranks, strategy.options);
}

}  // namespace

Strategy sharded_strategy(
    c10::intrusive_ptr<c10d::Backend> backend,
    ShardingOptions options) {
  auto ranks = group_of(std::move(backend), options.device);
  return Strategy::sharded(
      {.ranks = std::move(ranks),
       .options = std::move(options),
       .rows_of = rows_of,
       .make_store = make_store});
}

}  // namespace tessera::distributed
