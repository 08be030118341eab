// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/sharded_engine.h"

#include "optim/row_update.h"
#include "src/active_kernels.h"
#include "src/kernels/row_sort.h"
#include "src/parallel.h"
#include "src/random_key.h"
#include "src/step_memory.h"
#include "src/table_memory.h"

#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>
#include <utility>

namespace tessera {

namespace {

constexpr int64_t kIdBytes = 32;  // of traffic, to sort one id
// Rows that one task gathers: some 50 us of work.
constexpr int64_t kGatherTaskBytes = int64_t{256} * 1024;

// The sums at their rows of a tensor, rounded to its dtype.
template <class To>
void place_rows(const RowGradients& gradients, int64_t dim, To* to) {
  for (size_t i = 0; i < gradients.rows.size(); ++i) {
    const float* from = gradients.sums.data() + static_cast<int64_t>(i) * dim;
    std::copy(from, from + dim, to + gradients.rows[i] * dim);
  }
}

void check_transport(const char* option, at::ScalarType dtype) {
  TORCH_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16,
      "[ShardingOptions] ",
      option,
      " must be kFloat or kBFloat16, but got ",
      c10::toString(dtype),
      ".");
}

void check_names(const EmbeddingState& state, const ShardingOptions& options) {
  for (const auto& [name, placement] : options.placement) {
    const bool is_known = std::any_of(
        state.tables.begin(),
        state.tables.end(),
        [&name = name](const TableState& table) { return table.name == name; });
    TORCH_CHECK_VALUE(
        is_known,
        "[ShardingOptions] placement names the table '",
        name,
        "', which the layer does not have. Correct its name.");
  }
}

bool calls_the_user(const optim::OptimizerSpec& optimizer) {
  const optim::LearningRate& rate = optim::learning_rate_of(optimizer);
  return std::holds_alternative<optim::CustomOptimizer>(optimizer) ||
      (!rate.is_constant() && rate.schedule() == nullptr);
}

void check_on_shards(const TableState& table) {
  TORCH_CHECK_VALUE(
      !table.optimizer || optim::accumulates_duplicates(*table.optimizer),
      "[table '",
      table.name,
      "'] use_gradient_accumulation = false takes duplicates one by one in the "
      "order of the batch, but over ranks there is no such order. Set it to "
      "true, or use Strategy::engine().");
}

}  // namespace

ShardedEngine::ShardedEngine(
    std::shared_ptr<EmbeddingState> state,
    std::shared_ptr<RankGroup> ranks,
    const ShardingOptions& options)
    : TableEngine(std::move(state), options.lookup_threads),
      ranks_(std::move(ranks)),
      options_(options) {
  check_transport("row_transport", options_.row_transport);
  check_transport("gradient_transport", options_.gradient_transport);
  check_names(this->state(), options_);
  for (const TableState& table : this->state().tables) {
    check_on_shards(table);
    partitions_.emplace_back(
        placement_of(table.name, options_, ranks_->size()),
        table.config->vocabulary_size,
        ranks_->size());
    may_fail_late_ =
        may_fail_late_ || (table.optimizer && calls_the_user(*table.optimizer));
  }
  group_tables();
}

void ShardedEngine::group_tables() {
  for (size_t i = 0; i < state().tables.size(); ++i) {
    const TableState& table = state().tables[i];
    group_of_.push_back(kNoGroup);
    if (table.rows.is_replica) {
      continue;
    }
    const Group like{
        .dim = table.config->dim,
        .dtype = table.config->dtype == at::kFloat ? options_.row_transport
                                                   : table.config->dtype,
        .is_updated = table.config->trainable && table.optimizer.has_value()};
    const auto found =
        std::find_if(groups_.begin(), groups_.end(), [&](const Group& group) {
          return group.dim == like.dim && group.dtype == like.dtype &&
              group.is_updated == like.is_updated;
        });
    group_of_[i] = found - groups_.begin();
    if (found == groups_.end()) {
      groups_.push_back(like);
    }
    groups_[group_of_[i]].tables.push_back(i);
  }
}

void ShardedEngine::give_up(const std::exception_ptr& error) {
  ++lookups_;  // as on the ranks that look up
  ranks_->meet(Meeting::kLookup, error);
}

// --- lookup ------------------------------------------------------------------

Lookup ShardedEngine::look_up(std::vector<IdBags>& bags) {
  const auto reading = stop_updates();
  const size_t tables = state().tables.size();
  auto route = std::make_shared<Route>();
  route->number = ++lookups_;
  std::vector<Wanted> wanted(tables);
  std::vector<int64_t> words;
  std::exception_ptr error;
  try {
    int64_t ids = 0;
    for (const IdBags& feature : bags) {
      ids += feature.nnz();
    }
    run_tasks(static_cast<int64_t>(tables), ids * kIdBytes, [&](int64_t i) {
      if (is_split(i)) {
        wanted[i] = find_distinct(i, bags);
      }
    });
    words = count_words(wanted);
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<int64_t> asked_words =
      ranks_->meet(Meeting::kLookup, error, words);
  const at::Tensor asked_ids =
      ranks_->exchange(pack_ids(wanted, words), words, asked_words)();
  read_asked(asked_ids, asked_words, *route);
  place_wanted(wanted, *route);
  std::vector<std::function<at::Tensor()>> coming;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Route::Group& group = route->groups[i];
    coming.push_back(
        ranks_->exchange(gather_asked(i, *route), group.asked, group.wanted));
  }
  // Meanwhile ids become positions in what comes.
  run_tasks(static_cast<int64_t>(bags.size()), 0, [&](int64_t i) {
    const size_t table = state().features[i].table;
    if (!is_split(table)) {
      return;
    }
    const Wanted& of_table = wanted[table];
    Buffer<uint32_t> positions(of_table.keys.size());
    for (size_t rank = 0; rank + 1 < of_table.begin.size(); ++rank) {
      std::iota(
          positions.begin() + of_table.begin[rank],
          positions.begin() + of_table.begin[rank + 1],
          static_cast<uint32_t>(of_table.position[rank]));
    }
    for (uint32_t& id : bags[i].ids) {
      id = positions[id];
    }
  });
  std::vector<at::Tensor> rows;
  for (const auto& wait : coming) {
    rows.push_back(wait());
  }
  Lookup lookup;
  for (const FeatureState& feature : state().features) {
    const TableState& table = state().tables[feature.table];
    const size_t group = group_of_[feature.table];
    lookup.tables.push_back(
        {group == kNoGroup ? table.parameters : rows[group],
         buckets_of(*table.config)});
  }
  lookup.activations = tessera::look_up(bags, lookup.tables);
  lookup.route = std::move(route);
  return lookup;
}

ShardedEngine::Wanted ShardedEngine::find_distinct(
    size_t table,
    std::vector<IdBags>& bags) const {
  const Partition& partition = partitions_[table];
  std::vector<IdBags*> features;
  int64_t count = 0;
  for (size_t i = 0; i < bags.size(); ++i) {
    if (state().features[i].table == table) {
      features.push_back(&bags[i]);
      count += bags[i].nnz();
    }
  }
  TORCH_CHECK_VALUE(
      count < std::numeric_limits<uint32_t>::max(),
      "[table '",
      state().tables[table].name,
      "'] one lookup must have fewer than 2^32 - 1 ids, but got ",
      count,
      ". Split the batch.");
  Buffer<kernels::Contribution> sorted(count);
  Buffer<kernels::Contribution> scratch(count);
  uint32_t next = 0;
  for (const IdBags* feature : features) {
    for (const uint32_t id : feature->ids) {
      sorted[next] = {partition.key_of(id), next};
      ++next;
    }
  }
  const int64_t vocab = state().tables[table].config->vocabulary_size;
  kernels::sort_by_row(
      sorted.data(),
      scratch.data(),
      count,
      0,
      static_cast<int>(std::bit_width(static_cast<uint64_t>(vocab - 1))));
  Wanted wanted;
  Buffer<uint32_t> index_of(count);
  wanted.keys.resize(count);
  size_t distinct = 0;
  for (const kernels::Contribution& id : sorted) {
    if (distinct == 0 || wanted.keys[distinct - 1] != id.row) {
      wanted.keys[distinct++] = id.row;
    }
    index_of[id.source] = static_cast<uint32_t>(distinct - 1);
  }
  wanted.keys.resize(distinct);
  next = 0;
  for (IdBags* feature : features) {
    for (uint32_t& id : feature->ids) {
      id = index_of[next++];
    }
  }
  for (int64_t rank = 0; rank <= ranks_->size(); ++rank) {
    wanted.begin.push_back(
        std::lower_bound(
            wanted.keys.begin(), wanted.keys.end(), partition.begin(rank)) -
        wanted.keys.begin());
  }
  wanted.position.resize(ranks_->size());
  return wanted;
}

// To each rank go the number of ids of each table, then the ids: the owner's
// local rows.

std::vector<int64_t> ShardedEngine::count_words(
    const std::vector<Wanted>& wanted) const {
  std::vector<int64_t> words(ranks_->size(), 0);
  for (size_t table = 0; table < wanted.size(); ++table) {
    for (int64_t rank = 0; is_split(table) && rank < ranks_->size(); ++rank) {
      const std::vector<int64_t>& begin = wanted[table].begin;
      words[rank] += 1 + begin[rank + 1] - begin[rank];
    }
  }
  return words;
}

at::Tensor ShardedEngine::pack_ids(
    const std::vector<Wanted>& wanted,
    const std::vector<int64_t>& words) const {
  const int64_t total = std::accumulate(words.begin(), words.end(), int64_t{0});
  at::Tensor packed = empty_in_step_memory({total}, at::kInt);
  auto* next = reinterpret_cast<uint32_t*>(packed.mutable_data_ptr<int32_t>());
  for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
    for (size_t table = 0; table < wanted.size(); ++table) {
      if (is_split(table)) {
        const std::vector<int64_t>& begin = wanted[table].begin;
        *next++ = static_cast<uint32_t>(begin[rank + 1] - begin[rank]);
      }
    }
    for (size_t table = 0; table < wanted.size(); ++table) {
      if (!is_split(table)) {
        continue;
      }
      const std::vector<int64_t>& begin = wanted[table].begin;
      const auto first = static_cast<uint32_t>(partitions_[table].begin(rank));
      for (int64_t i = begin[rank]; i < begin[rank + 1]; ++i) {
        *next++ = wanted[table].keys[i] - first;
      }
    }
  }
  return packed;
}

void ShardedEngine::read_asked(
    const at::Tensor& ids,
    const std::vector<int64_t>& words,
    Route& route) const {
  const size_t tables = state().tables.size();
  const int64_t ranks = ranks_->size();
  route.groups.resize(groups_.size());
  route.asked.resize(tables);
  const auto* next =
      reinterpret_cast<const uint32_t*>(ids.const_data_ptr<int32_t>());
  // Each rank's counts stand before its ids.
  std::vector<const uint32_t*> counts;
  std::vector<int64_t> totals(tables, 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    counts.push_back(next);
    const uint32_t* count = next;
    for (size_t table = 0; table < tables; ++table) {
      totals[table] += is_split(table) ? *count++ : 0;
    }
    next += words[rank];
  }
  for (size_t table = 0; table < tables; ++table) {
    if (is_split(table)) {
      Route::Asked& asked = route.asked[table];
      asked.rows.ids.resize(totals[table]);
      asked.rows.bags = totals[table];
      asked.rows.dim = state().tables[table].config->dim;
      asked.positions.resize(totals[table]);
    }
  }
  std::vector<int64_t> filled(tables, 0);
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const uint32_t* count = counts[rank];
    const uint32_t* id = count;
    std::vector<int64_t> before(groups_.size());
    for (size_t group = 0; group < groups_.size(); ++group) {
      before[group] = route.groups[group].asked_count;
      id += groups_[group].tables.size();
    }
    for (size_t table = 0; table < tables; ++table) {
      if (!is_split(table)) {
        continue;
      }
      Route::Group& group = route.groups[group_of_[table]];
      Route::Asked& asked = route.asked[table];
      const int64_t begin = filled[table];
      std::copy(id, id + *count, asked.rows.ids.begin() + begin);
      std::iota(
          asked.positions.begin() + begin,
          asked.positions.begin() + begin + *count,
          static_cast<uint32_t>(group.asked_count));
      group.asked_count += *count;
      filled[table] += *count;
      id += *count++;
    }
    for (size_t group = 0; group < groups_.size(); ++group) {
      route.groups[group].asked.push_back(
          route.groups[group].asked_count - before[group]);
    }
  }
}

void ShardedEngine::place_wanted(std::vector<Wanted>& wanted, Route& route)
    const {
  for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
    for (size_t i = 0; i < groups_.size(); ++i) {
      Route::Group& group = route.groups[i];
      const int64_t before = group.wanted_count;
      for (const size_t table : groups_[i].tables) {
        Wanted& of_table = wanted[table];
        of_table.position[rank] = group.wanted_count;
        group.wanted_count += of_table.begin[rank + 1] - of_table.begin[rank];
      }
      group.wanted.push_back(group.wanted_count - before);
    }
  }
}

at::Tensor ShardedEngine::gather_asked(size_t group, const Route& route) const {
  const int64_t dim = groups_[group].dim;
  const at::ScalarType dtype = groups_[group].dtype;
  const int64_t count = route.groups[group].asked_count;
  at::Tensor rows = empty_in_step_memory({count, dim}, dtype);
  // Runs of one table whose places follow each other.
  struct Run {
    size_t table;
    int64_t begin;
    int64_t end;
  };
  std::vector<Run> runs;
  const int64_t most = std::max<int64_t>(
      1, kGatherTaskBytes / (dim * static_cast<int64_t>(sizeof(float))));
  for (const size_t table : groups_[group].tables) {
    const Route::Asked& asked = route.asked[table];
    const auto rows_asked = static_cast<int64_t>(asked.positions.size());
    for (int64_t begin = 0; begin < rows_asked;) {
      int64_t end = begin + 1;
      while (end < rows_asked && end - begin < most &&
             asked.positions[end] == asked.positions[end - 1] + 1) {
        ++end;
      }
      runs.push_back({table, begin, end});
      begin = end;
    }
  }
  const bool widens = dtype == at::kFloat;
  const int64_t row_bytes = dim * static_cast<int64_t>(c10::elementSize(dtype));
  auto* out = static_cast<char*>(rows.mutable_data_ptr());
  const kernels::KernelTable& kernels = active_kernels();
  run_tasks(
      static_cast<int64_t>(runs.size()), count * row_bytes, [&](int64_t i) {
        const Run& run = runs[i];
        const at::Tensor& parameters = state().tables[run.table].parameters;
        const Route::Asked& asked = route.asked[run.table];
        const uint32_t* ids = asked.rows.ids.data() + run.begin;
        const int64_t n = run.end - run.begin;
        char* to = out + asked.positions[run.begin] * row_bytes;
        if (widens) {
          kernels.combine(
              {.table = stored_rows(parameters),
               .ids = ids,
               .nnz = n,
               .out = reinterpret_cast<float*>(to),
               .end_bag = n});
        } else if (parameters.scalar_type() == dtype) {
          const auto* from =
              static_cast<const char*>(parameters.const_data_ptr());
          for (int64_t row = 0; row < n; ++row) {
            std::memcpy(
                to + row * row_bytes, from + ids[row] * row_bytes, row_bytes);
          }
        } else {
          const auto* from = parameters.const_data_ptr<float>();
          auto* rounded = reinterpret_cast<at::BFloat16*>(to);
          for (int64_t row = 0; row < n; ++row) {
            std::copy_n(from + ids[row] * dim, dim, rounded + row * dim);
          }
        }
      });
  return rows;
}

// --- update ------------------------------------------------------------------

TableEngine::Update ShardedEngine::plan(
    const std::vector<LookupGradients>& lookups) {
  Update update;
  std::vector<TableUpdate> updates = read(lookups, update);
  warn_of_missing_gradients(lookups);
  const auto finish = [&] {
    return TableEngine::plan(std::move(updates), std::move(update));
  };
  return may_fail_late_ ? agree_on(finish) : finish();
}

TableEngine::Update ShardedEngine::plan(
    const std::vector<GradientPile>& piles,
    double gain) {
  wait_for_lookups();
  return agree_on([&] { return TableEngine::plan(piles, gain); });
}

// A callable may give a learning rate here and another one there.
TableEngine::Update ShardedEngine::agree_on(
    c10::function_ref<Update()> plan) const {
  Update update;
  std::exception_ptr error;
  uint64_t rates = 0;
  try {
    update = plan();
    for (const double rate : update.rates) {
      rates = mix_bits(rates + std::bit_cast<uint64_t>(rate));
    }
  } catch (...) {
    error = std::current_exception();
  }
  check_equal(
      ranks_->meet(Meeting::kUpdateIsReady, error, same_for_all(rates)),
      rates,
      "has read other learning rates for this update. Make callables depend on "
      "what all ranks know, such as iterations().");
  return update;
}

std::vector<int64_t> ShardedEngine::same_for_all(uint64_t value) const {
  return std::vector<int64_t>(ranks_->size(), std::bit_cast<int64_t>(value));
}

void ShardedEngine::check_equal(
    const std::vector<int64_t>& told,
    uint64_t own,
    const char* problem) const {
  for (size_t rank = 0; rank < told.size(); ++rank) {
    TORCH_CHECK_VALUE(
        std::bit_cast<uint64_t>(told[rank]) == own,
        "[Strategy::sharded] rank ",
        rank,
        ", compared with rank ",
        ranks_->rank(),
        ", ",
        problem);
  }
}

std::vector<ShardedEngine::Sums> ShardedEngine::sum_lookups(
    const std::vector<LookupGradients>& lookups,
    Update& update) {
  const size_t tables = state().tables.size();
  std::vector<bool> is_sent(tables);
  for (size_t table = 0; table < tables; ++table) {
    is_sent[table] = is_updated(lookups, table);
  }
  std::vector<Sums> sums;
  for (const LookupGradients& lookup : lookups) {
    check(lookup);
    std::vector<TableUpdate> terms(tables);
    for (size_t i = 0; i < state().features.size(); ++i) {
      const size_t table = state().features[i].table;
      if (is_sent[table]) {
        terms[table].terms.push_back(term_of(lookup, i, update));
      }
    }
    std::vector<TableUpdate> asked;
    std::vector<size_t> index;
    for (size_t table = 0; table < tables; ++table) {
      if (is_sent[table]) {
        terms[table].table = &mutable_state().tables[table];
        if (is_split(table)) {
          terms[table].id_limit =
              lookup.route->groups[group_of_[table]].wanted_count;
        }
        asked.push_back(std::move(terms[table]));
        index.push_back(table);
      }
    }
    std::vector<RowGradients> summed = updater().sum(asked);
    sums.emplace_back(tables);
    for (size_t i = 0; i < index.size(); ++i) {
      sums.back()[index[i]] = std::move(summed[i]);
    }
  }
  return sums;
}

at::Tensor ShardedEngine::pack_gradients(
    size_t group,
    const Route& route,
    const Sums& sums) const {
  const int64_t dim = groups_[group].dim;
  const int64_t rows = route.groups[group].wanted_count;
  at::Tensor packed =
      empty_in_step_memory({rows, dim}, options_.gradient_transport);
  const std::vector<size_t>& tables = groups_[group].tables;
  run_tasks(
      static_cast<int64_t>(tables.size()),
      static_cast<int64_t>(packed.nbytes()),
      [&](int64_t i) {
        const RowGradients& gradients = sums[tables[i]];
        if (packed.scalar_type() == at::kFloat) {
          place_rows(gradients, dim, packed.mutable_data_ptr<float>());
        } else {
          place_rows(gradients, dim, packed.mutable_data_ptr<at::BFloat16>());
        }
      });
  return packed;
}

std::vector<TableUpdate> ShardedEngine::read(
    const std::vector<LookupGradients>& unordered,
    Update& update) {
  wait_for_lookups();
  // Autograd's order may differ between ranks.
  std::vector<LookupGradients> lookups = unordered;
  std::sort(lookups.begin(), lookups.end(), [](const auto& a, const auto& b) {
    return a.route->number < b.route->number;
  });
  std::vector<Sums> sums;
  std::exception_ptr error;
  uint64_t numbers = 0;
  try {
    for (const LookupGradients& lookup : lookups) {
      numbers = mix_bits(numbers + lookup.route->number);
    }
    sums = sum_lookups(lookups, update);
  } catch (...) {
    error = std::current_exception();
  }
  check_equal(
      ranks_->meet(Meeting::kUpdate, error, same_for_all(numbers)),
      numbers,
      "runs backward() over other forwards. All ranks must make the same calls "
      "in the same order.");
  std::vector<TableUpdate> updates(state().tables.size());
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (!groups_[group].is_updated) {
      continue;
    }
    std::vector<std::function<at::Tensor()>> coming;
    for (size_t i = 0; i < lookups.size(); ++i) {
      const Route& route = *lookups[i].route;
      const Route::Group& way = route.groups[group];
      coming.push_back(ranks_->exchange(
          pack_gradients(group, route, sums[i]), way.wanted, way.asked));
    }
    for (size_t i = 0; i < lookups.size(); ++i) {
      update.gradients.push_back(coming[i]().to(at::kFloat));
      for (const size_t table : groups_[group].tables) {
        const Route::Asked& asked = lookups[i].route->asked[table];
        updates[table].table = &mutable_state().tables[table];
        updates[table].terms.push_back(
            {.bags = &asked.rows,
             .gradient = update.gradients.back().const_data_ptr<float>(),
             .stride = groups_[group].dim,
             .positions = asked.positions.data()});
      }
    }
  }
  sum_replicated(sums, updates, update);
  return updates;
}

// All rows of the tables as one vector of floats, each with a count behind it
// that says whether any rank has touched the row.
void ShardedEngine::sum_replicated(
    const std::vector<Sums>& lookups,
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
    if (!is_split(i) && table.config->trainable && table.optimizer) {
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
    for (const Sums& sums : lookups) {
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

std::vector<double> ShardedEngine::gather(double value) {
  ranks_->meet(Meeting::kNorm, nullptr);
  return ranks_->all_gather(value);
}

bool ShardedEngine::is_counted_elsewhere(size_t table) const {
  return state().tables[table].rows.is_replica && ranks_->rank() != 0;
}

}  // namespace tessera
