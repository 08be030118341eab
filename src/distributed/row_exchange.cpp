// SPDX-License-Identifier: Apache-2.0
#include "src/distributed/row_exchange.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"
#include "src/kernels/row_sort.h"
#include "src/tables/active_kernels.h"
#include "src/tables/table_memory.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <numeric>
#include <utility>

namespace tessera::distributed {

namespace {

constexpr int64_t kIdBytes = 32;  // of traffic, to sort one id
// Rows that one task gathers: some 50 us of work.
constexpr int64_t kGatherTaskBytes = int64_t{256} * 1024;
// Positions have 32 bits.
constexpr int64_t kMostRows = std::numeric_limits<uint32_t>::max();

// The sums at their rows of a tensor, rounded to its dtype.
template <class To>
void place_rows(const RowGradients& gradients, int64_t dim, To* to) {
  for (size_t i = 0; i < gradients.rows.size(); ++i) {
    const float* from = gradients.sums.data() + static_cast<int64_t>(i) * dim;
    std::copy(from, from + dim, to + gradients.rows[i] * dim);
  }
}

void check_transport(const char* option, at::ScalarType dtype) {
  TESSERA_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16,
      "[ShardingOptions] {} must be kFloat or kBFloat16, but got {}.",
      option,
      c10::toString(dtype));
}

}  // namespace

RowExchange::RowExchange(
    const EmbeddingState& state,
    std::shared_ptr<RankGroup> ranks,
    const ShardingOptions& options)
    : state_(state), ranks_(std::move(ranks)), options_(options) {
  check_transport("row_transport", options_.row_transport);
  check_transport("gradient_transport", options_.gradient_transport);
  for (const TableState& table : state_.tables) {
    partitions_.emplace_back(
        placement_of(table.name, options_, ranks_->size()),
        table.config->vocabulary_size,
        ranks_->size());
  }
  group_tables();
}

void RowExchange::group_tables() {
  for (size_t i = 0; i < state_.tables.size(); ++i) {
    const TableState& table = state_.tables[i];
    group_of_.push_back(kNoGroup);
    if (table.rows.is_data_parallel) {
      continue;
    }
    const TableGroup like{
        .dim = table.config->dim,
        .dtype = table.config->dtype == at::kFloat ? options_.row_transport
                                                   : table.config->dtype,
        .is_updated = table.config->trainable && table.optimizer.has_value()};
    const auto found = std::find_if(
        groups_.begin(), groups_.end(), [&](const TableGroup& group) {
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

FetchedRows RowExchange::fetch(std::vector<IdBags>& bags) {
  auto route = std::make_shared<Route>();
  std::vector<Wanted> wanted(state_.tables.size());
  std::vector<int64_t> words;
  std::exception_ptr error;
  try {
    int64_t ids = 0;
    for (const IdBags& feature : bags) {
      ids += feature.nnz();
    }
    run_tasks(
        static_cast<int64_t>(wanted.size()), ids * kIdBytes, [&](int64_t i) {
          if (is_split(i)) {
            wanted[i] = find_distinct(i, bags);
          }
        });
    words = count_words(wanted);
    TESSERA_CHECK_VALUE(
        std::accumulate(words.begin(), words.end(), int64_t{0}) < kMostRows,
        "[sharded_strategy] one lookup must want fewer than 2^32 - 1 different rows. Split the batch.");
  } catch (...) {
    error = std::current_exception();
  }
  const std::vector<int64_t> asked_words =
      ranks_->barrier({Rendezvous::kLookup, state_.layer}, error, words);
  route->number = ++lookups_;
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
  number_ids(wanted, bags);  // meanwhile
  std::vector<at::Tensor> rows;
  for (const auto& wait : coming) {
    rows.push_back(wait());
  }
  FetchedRows fetched{.route = std::move(route)};
  for (size_t table = 0; table < wanted.size(); ++table) {
    fetched.rows.push_back(
        is_split(table) ? rows[group_of_[table]]
                        : state_.tables[table].parameters);
  }
  return fetched;
}

// Ids, which are indices of the distinct ones, become positions of their rows.
void RowExchange::number_ids(
    const std::vector<Wanted>& wanted,
    std::vector<IdBags>& bags) const {
  for (size_t table = 0; table < wanted.size(); ++table) {
    if (!is_split(table)) {
      continue;
    }
    Buffer<uint32_t> positions(wanted[table].keys.size());
    for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
      std::iota(
          positions.begin() + wanted[table].begin[rank],
          positions.begin() + wanted[table].begin[rank + 1],
          static_cast<uint32_t>(wanted[table].position[rank]));
    }
    for (size_t i = 0; i < bags.size(); ++i) {
      if (state_.features[i].table == table) {
        for (uint32_t& id : bags[i].ids) {
          id = positions[id];
        }
      }
    }
  }
}

RowExchange::Wanted RowExchange::find_distinct(
    size_t table,
    std::vector<IdBags>& bags) const {
  const Partition& partition = partitions_[table];
  std::vector<IdBags*> features;
  int64_t count = 0;
  for (size_t i = 0; i < bags.size(); ++i) {
    if (state_.features[i].table == table) {
      features.push_back(&bags[i]);
      count += bags[i].nnz();
    }
  }
  TESSERA_CHECK_VALUE(
      count < std::numeric_limits<uint32_t>::max(),
      "[table '{}'] one lookup must have fewer than 2^32 - 1 ids, but got {}. Split the batch.",
      shorten(state_.tables[table].name),
      count);
  Buffer<kernels::Contribution> sorted(count);
  Buffer<kernels::Contribution> scratch(count);
  uint32_t next = 0;
  for (const IdBags* feature : features) {
    for (const uint32_t id : feature->ids) {
      sorted[next] = {partition.key_of(id), next};
      ++next;
    }
  }
  const int64_t vocab = state_.tables[table].config->vocabulary_size;
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

std::vector<int64_t> RowExchange::count_words(
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

at::Tensor RowExchange::pack_ids(
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

void RowExchange::read_asked(
    const at::Tensor& ids,
    const std::vector<int64_t>& words,
    Route& route) const {
  const size_t tables = state_.tables.size();
  const int64_t ranks = ranks_->size();
  route.groups.resize(groups_.size());
  route.asked.resize(tables);
  TESSERA_CHECK_VALUE(
      ids.numel() < kMostRows,
      "[sharded_strategy] the ranks want {} rows of this one, but there must be fewer than 2^32 - 1. Split the batch.",
      ids.numel());
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
      asked.rows.dim = state_.tables[table].config->dim;
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
      TESSERA_CHECK(
          std::all_of(
              id,
              id + *count,
              [rows = state_.tables[table].rows.count](uint32_t local) {
                return local < rows;
              }),
          "[sharded_strategy] rank {} asks for rows that this one does not have: something else uses the backend at the same time. Give the layers one of their own.",
          rank);
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

void RowExchange::place_wanted(std::vector<Wanted>& wanted, Route& route)
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

at::Tensor RowExchange::gather_asked(size_t group, const Route& route) const {
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
        const at::Tensor& parameters = state_.tables[run.table].parameters;
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

at::Tensor RowExchange::pack_gradients(
    size_t group,
    const Route& route,
    const std::vector<RowGradients>& sums) const {
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

std::function<at::Tensor()> RowExchange::return_gradients(
    size_t group,
    const Route& route,
    const std::vector<RowGradients>& sums) const {
  const Route::Group& way = route.groups[group];
  return ranks_->exchange(
      pack_gradients(group, route, sums), way.wanted, way.asked);
}

}  // namespace tessera::distributed
