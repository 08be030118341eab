// SPDX-License-Identifier: Apache-2.0
#include "packages/distributed/src/row_exchange.h"

#include "packages/distributed/src/partition.h"

#include <c10/util/accumulate.h>
#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"
#include "src/kernels/row_sort.h"
#include "src/tables/key_table_rows.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <exception>
#include <numeric>
#include <utility>

namespace tessera::distributed {

namespace {

constexpr int64_t kWordBytes = sizeof(uint32_t);
constexpr int64_t kIdBytes = 32;  // memory traffic of sorting one id
// How much one task copies: up to some 50 us of work, or 12 us if many threads share it.
constexpr int64_t kMaxCopyTaskBytes = int64_t{256} * 1024;
constexpr int64_t kMinCopyTaskBytes = int64_t{64} * 1024;

// Returns how many of `rows` rows [dim] one task copies.
int64_t rows_of_a_task(int64_t rows, int64_t dim) {
  const int64_t row_bytes = dim * static_cast<int64_t>(sizeof(float));
  const int64_t bytes = rows * row_bytes;
  const int64_t task_bytes =
      task_size(bytes, bytes, kMinCopyTaskBytes, kMaxCopyTaskBytes);
  return std::max<int64_t>(1, task_bytes / row_bytes);
}

// Writes the sums [begin, end) to their rows of a tensor, rounded to the tensor's dtype.
template <class To>
void copy_gradients(
    const RowGradients& gradients,
    int64_t begin,
    int64_t end,
    int64_t dim,
    To* to) {
  for (int64_t i = begin; i < end; ++i) {
    const float* from = gradients.sums.data() + i * dim;
    std::copy(from, from + dim, to + gradients.rows[i] * dim);
  }
}

// Replaces the ids of the bags, in order.
void set_ids(
    const std::vector<IdBags*>& bags,
    const Buffer<uint32_t>& new_ids) {
  size_t next = 0;
  for (IdBags* feature : bags) {
    for (uint32_t& id : feature->ids) {
      id = new_ids[next++];
    }
  }
}

// The sum of two counts of occurrences, but at most the largest number of 32 bits.
uint32_t add_counts(uint32_t a, uint32_t b) {
  return static_cast<uint32_t>(std::min<uint64_t>(
      uint64_t{a} + b, std::numeric_limits<uint32_t>::max()));
}

void check_transport(const char* option, at::ScalarType dtype) {
  TESSERA_CHECK_VALUE(
      dtype == at::kFloat || dtype == at::kBFloat16,
      "[ShardingOptions] {} must be kFloat or kBFloat16, but got k{}. Set it to one of these.",
      option,
      c10::toString(dtype));
}

// A request is a sequence of 32-bit words: the number of ids of each sharded table, then
// the ids of each table, which are local rows of the owner. A key table has its keys
// instead, of two words each, and then their counts, of one word each.
class Exchange final : public RowExchange {
 public:
  Exchange(
      const EmbeddingState& state,
      std::shared_ptr<RankGroup> ranks,
      const ShardingOptions& options,
      int64_t max_rows)
      : state_(state),
        ranks_(std::move(ranks)),
        options_(options),
        max_rows_(max_rows) {
    check_transport("row_transport", options_.row_transport);
    check_transport("gradient_transport", options_.gradient_transport);
    for (const TableState& table : state_.tables) {
      partitions_.emplace_back(
          placement_of(table.name, *table.config, options_, ranks_->size()),
          *table.config,
          ranks_->size());
    }
    has_key_tables_ = tessera::has_key_tables(state_);
    for (size_t table = 0; table < state_.tables.size(); ++table) {
      if (has_default_key(table)) {
        with_default_key_.push_back(table);
      }
    }
    group_tables();
  }

  FetchedRows fetch(std::vector<IdBags>& bags, UnknownKeys unknown) override {
    auto route = std::make_shared<Route>();
    std::vector<Request> requests(state_.tables.size());
    std::vector<int64_t> words;
    const std::exception_ptr error = error_of([&] {
      for_sharded_tables(bags, [&](size_t table) {
        requests[table] = is_key_table(table) ? find_distinct_keys(table, bags)
                                              : find_distinct_rows(table, bags);
      });
      words = count_words(requests);
      const int64_t total = c10::sum_integers(words);
      TESSERA_CHECK_VALUE(
          total < max_rows_,
          "[sharded_strategy] one lookup must request fewer than {} distinct rows, but got {}. Split the batch.",
          max_rows_,
          total);
    });
    const std::vector<at::Tensor> incoming =
        exchange_requests(requests, words, error);
    route->number = ++lookups_;
    read_requests(incoming, *route);
    const ScratchRows scratch = find_served_keys(*route, unknown);
    exchange_unknown_keys(requests, *route);
    assign_positions(requests, *route);
    std::vector<std::function<at::Tensor()>> pending;
    for (size_t i = 0; i < groups_.size(); ++i) {
      const Route::Group& group = route->groups[i];
      pending.push_back(ranks_->exchange(
          gather_served(i, *route), group.served, group.requested));
    }
    set_positions(requests, bags);  // while the rows are in flight
    std::vector<at::Tensor> rows;
    for (const auto& wait : pending) {
      rows.push_back(wait());
    }
    remove_unused_default_keys(*route);
    FetchedRows fetched{.route = std::move(route)};
    for (size_t table = 0; table < requests.size(); ++table) {
      fetched.rows.push_back(
          group_of_[table] ? rows[*group_of_[table]]
                           : state_.tables[table].parameters);
    }
    return fetched;
  }

  std::function<at::Tensor()> return_gradients(
      size_t group,
      const Route& route,
      const std::vector<RowGradients>& sums) const override {
    const Route::Group& route_group = route.groups[group];
    return ranks_->exchange(
        pack_gradients(group, route, sums),
        route_group.requested,
        route_group.served);
  }

  const std::vector<TableGroup>& groups() const override {
    return groups_;
  }
  std::optional<size_t> group_of(size_t table) const override {
    return group_of_[table];
  }

 private:
  // The rows of a table that this rank requests.
  struct Request {
    Buffer<uint32_t> rows = {};  // distinct, ascending keys of a Partition
    Buffer<int64_t> keys = {};  // or distinct keys of a key table, by hash
    Buffer<uint32_t> key_counts = {};  // the number of occurrences of each key
    std::vector<int64_t> begin = {};  // [ranks + 1], the range of each owner
    std::vector<int64_t> position = {};  // [ranks], of each owner's first row
    // The index of the default key, which is among `keys` even if it does not occur.
    std::optional<int64_t> default_index = {};
    Buffer<uint32_t> is_unknown = {};  // the keys that look up the default key
  };

  // A range of the rows of one table that one task copies.
  struct Run {
    size_t table;
    int64_t begin;
    int64_t end;
  };

  void group_tables() {
    for (size_t i = 0; i < state_.tables.size(); ++i) {
      const TableState& table = state_.tables[i];
      group_of_.emplace_back();
      if (table.rows.is_data_parallel) {
        continue;
      }
      sharded_.push_back(i);
      const TableGroup new_group{
          .dim = table.config->dim,
          .dtype = table.config->dtype == at::kFloat ? options_.row_transport
                                                     : table.config->dtype,
          .is_updated = table.config->trainable && table.optimizer.has_value()};
      const auto found =
          std::ranges::find_if(groups_, [&](const TableGroup& group) {
            return group.dim == new_group.dim &&
                group.dtype == new_group.dtype &&
                group.is_updated == new_group.is_updated;
          });
      group_of_[i] = found - groups_.begin();
      if (found == groups_.end()) {
        groups_.push_back(new_group);
      }
      groups_[*group_of_[i]].tables.push_back(i);
    }
  }

  // Runs task(table) on all threads for the tables that are not data-parallel.
  void for_sharded_tables(
      const std::vector<IdBags>& bags,
      c10::function_ref<void(size_t)> task) const {
    int64_t ids = 0;
    for (const IdBags& feature : bags) {
      ids += feature.nnz();
    }
    run_tasks(
        static_cast<int64_t>(sharded_.size()), ids * kIdBytes, [&](int64_t i) {
          task(sharded_[i]);
        });
  }

  bool is_key_table(size_t table) const {
    return state_.tables[table].key_rows != nullptr;
  }
  // The bags of the features of one table.
  // Errors:  c10::ValueError for 2^32 - 1 ids or more, because 32 bits number them.
  std::vector<IdBags*> bags_of(size_t table, std::vector<IdBags>& bags) const {
    std::vector<IdBags*> of_table;
    int64_t count = 0;
    for (size_t i = 0; i < bags.size(); ++i) {
      if (state_.features[i].table == table) {
        of_table.push_back(&bags[i]);
        count += bags[i].nnz();
      }
    }
    TESSERA_CHECK_VALUE(
        count < std::numeric_limits<uint32_t>::max(),
        "[table '{}'] one lookup must have fewer than 2^32 - 1 ids, but got {}. Split the batch.",
        shorten(state_.tables[table].name),
        count);
    return of_table;
  }

  // Finds the distinct rows of one table and replaces the table's ids by their indices.
  Request find_distinct_rows(size_t table, std::vector<IdBags>& bags) const {
    const Partition& partition = partitions_[table];
    const std::vector<IdBags*> features = bags_of(table, bags);
    Buffer<kernels::Contribution> unsorted;
    for (const IdBags* feature : features) {
      for (const uint32_t id : feature->ids) {
        unsorted.push_back(
            {partition.key_of(id), static_cast<uint32_t>(unsorted.size())});
      }
    }
    const size_t count = unsorted.size();
    Buffer<kernels::Contribution> scratch(count);
    const int64_t vocab = state_.tables[table].config->vocabulary_size;
    const kernels::Contribution* sorted = kernels::sort_by_row(
        unsorted.data(),
        scratch.data(),
        static_cast<int64_t>(count),
        static_cast<int>(std::bit_width(static_cast<uint64_t>(vocab - 1))));
    Request request;
    Buffer<uint32_t> index_of(count);
    request.rows.resize(count);
    size_t distinct = 0;
    for (size_t i = 0; i < count; ++i) {
      const kernels::Contribution& id = sorted[i];
      if (distinct == 0 || request.rows[distinct - 1] != id.row) {
        request.rows[distinct++] = id.row;
      }
      index_of[id.source] = static_cast<uint32_t>(distinct - 1);
    }
    request.rows.resize(distinct);
    set_ids(features, index_of);
    for (int64_t rank = 0; rank <= ranks_->size(); ++rank) {
      request.begin.push_back(
          std::ranges::lower_bound(request.rows, partition.begin(rank)) -
          request.rows.begin());
    }
    request.position.resize(ranks_->size());
    return request;
  }

  Request find_distinct_keys(size_t table, std::vector<IdBags>& bags) const {
    const std::vector<IdBags*> features = bags_of(table, bags);
    Buffer<int64_t> keys;
    Buffer<kernels::Contribution> unsorted;
    for (const IdBags* feature : features) {
      for (const uint32_t id : feature->ids) {
        const int64_t key = feature->keys[id];
        unsorted.push_back(
            {static_cast<uint32_t>(hash_of_key(key) >> 32),
             static_cast<uint32_t>(keys.size())});
        keys.push_back(key);
      }
    }
    const size_t occurrences = keys.size();
    if (has_default_key(table)) {  // one more key, which does not occur
      const int64_t key = *state_.tables[table].config->keys->default_key;
      unsorted.push_back(
          {static_cast<uint32_t>(hash_of_key(key) >> 32),
           static_cast<uint32_t>(occurrences)});
      keys.push_back(key);
    }
    const size_t count = keys.size();
    Buffer<kernels::Contribution> scratch(count);
    // Sorted by the upper half of the hash, which chooses the partition.
    kernels::Contribution* sorted = kernels::sort_by_row(
        unsorted.data(), scratch.data(), static_cast<int64_t>(count), 32);
    const auto is_less = [&](const kernels::Contribution& a,
                             const kernels::Contribution& b) {
      return hash_of_key(keys[a.source]) < hash_of_key(keys[b.source]);
    };
    for (size_t begin = 0; begin < count;) {
      size_t end = begin + 1;
      while (end < count && sorted[end].row == sorted[begin].row) {
        ++end;
      }
      std::sort(sorted + begin, sorted + end, is_less);
      begin = end;
    }
    Request request;
    Buffer<uint32_t> index_of(count);
    for (size_t i = 0; i < count; ++i) {
      const int64_t key = keys[sorted[i].source];
      if (request.keys.empty() || request.keys.back() != key) {
        request.keys.push_back(key);
        request.key_counts.push_back(0);
      }
      request.key_counts.back() += sorted[i].source < occurrences ? 1 : 0;
      index_of[sorted[i].source] =
          static_cast<uint32_t>(request.keys.size() - 1);
    }
    set_ids(features, index_of);
    if (count > occurrences) {
      request.default_index = index_of[occurrences];
    }
    const KeyPartitions& partitions =
        state_.tables[table].key_rows->index().partitions();
    for (int64_t rank = 0; rank <= ranks_->size(); ++rank) {
      request.begin.push_back(
          std::ranges::partition_point(
              request.keys,
              [&,
               first = partitions_[table].first_partition(rank)](int64_t key) {
                return partitions.of_hash(hash_of_key(key)) < first;
              }) -
          request.keys.begin());
    }
    request.position.resize(ranks_->size());
    return request;
  }

  // Finds the rows of the keys that this rank serves. Collective if a table has keys.
  ScratchRows find_served_keys(Route& route, UnknownKeys unknown) const {
    ScratchRows scratch;
    if (!has_key_tables_) {
      return scratch;
    }
    // An initializer may fail for the keys of one rank, and then all ranks must know.
    ranks_->run_on_all_ranks({Rendezvous::kLookup, state_.layer}, [&] {
      for (size_t table = 0; table < state_.tables.size(); ++table) {
        if (is_key_table(table)) {
          IdBags* rows = &route.served[table].rows;
          find_table_keys(
              state_.tables[table],
              rows,
              unknown,
              updates_of(state_, state_.tables[table]) + 1,
              scratch);
        }
      }
    });
    return scratch;
  }

  // True if an unknown key of the table is looked up as the default key.
  bool has_default_key(size_t table) const {
    return is_key_table(table) &&
        state_.tables[table].config->keys->default_key;
  }
  // The rank that owns the default key of the table.
  int64_t owner_of_default_key(size_t table) const {
    const TableState& state = state_.tables[table];
    const int64_t partition = state.key_rows->index().partitions().of_hash(
        hash_of_key(*state.config->keys->default_key));
    int64_t owner = 0;
    while (partitions_[table].first_partition(owner + 1) <= partition) {
      ++owner;
    }
    return owner;
  }

  // Tells each rank which of its keys are unknown. Tells the owner of a default key how
  // often unknown keys look it up. Collective if a table has a default key.
  void exchange_unknown_keys(std::vector<Request>& requests, Route& route)
      const {
    if (with_default_key_.empty()) {
      return;
    }
    const int64_t ranks = ranks_->size();
    std::vector<std::vector<uint32_t>> words(ranks);
    std::vector<int64_t> received(ranks, 0);
    for (const size_t table : with_default_key_) {
      write_unknown_keys(table, route, words);
      const bool is_owner = owner_of_default_key(table) == ranks_->rank();
      for (int64_t rank = 0; rank < ranks; ++rank) {
        received[rank] += requests[table].begin[rank + 1] -
            requests[table].begin[rank] + (is_owner ? ranks : 0);
      }
    }
    std::vector<int64_t> sent;
    for (const std::vector<uint32_t>& to_rank : words) {
      sent.push_back(static_cast<int64_t>(to_rank.size()));
    }
    at::Tensor packed =
        empty_in_step_memory({c10::sum_integers(sent)}, at::kInt);
    auto* out = reinterpret_cast<uint32_t*>(packed.mutable_data_ptr<int32_t>());
    for (const std::vector<uint32_t>& to_rank : words) {
      out = std::copy(to_rank.begin(), to_rank.end(), out);
    }
    const at::Tensor answers = ranks_->exchange(packed, sent, received)();
    const auto* next =
        reinterpret_cast<const uint32_t*>(answers.const_data_ptr<int32_t>());
    for (int64_t rank = 0; rank < ranks; ++rank) {
      for (const size_t table : with_default_key_) {
        next = read_unknown_keys(
            next, table, rank, requests[table], route.served[table]);
      }
    }
  }

  // Adds to `words` what each rank must know about the unknown keys of a table.
  void write_unknown_keys(
      size_t table,
      const Route& route,
      std::vector<std::vector<uint32_t>>& words) const {
    const TableState& state = state_.tables[table];
    const Route::ServedRows& served = route.served[table];
    const uint32_t zero_row = state.key_rows->zero_row();
    const int64_t default_key = *state.config->keys->default_key;
    std::vector<uint32_t> unknown(ranks_->size(), 0);
    for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
      for (int64_t i = served.begin[rank]; i < served.begin[rank + 1]; ++i) {
        const bool is_unknown = served.rows.ids[i] == zero_row &&
            served.rows.keys[i] != default_key;
        words[rank].push_back(is_unknown ? 1 : 0);
        if (is_unknown) {
          unknown[rank] = add_counts(unknown[rank], served.rows.key_counts[i]);
        }
      }
    }
    std::vector<uint32_t>& to_owner = words[owner_of_default_key(table)];
    to_owner.insert(to_owner.end(), unknown.begin(), unknown.end());
  }

  // Reads what `rank` has written about one table. Returns the end of this part.
  const uint32_t* read_unknown_keys(
      const uint32_t* words,
      size_t table,
      int64_t rank,
      Request& request,
      Route::ServedRows& served) const {
    request.is_unknown.resize(request.keys.size());
    const int64_t begin = request.begin[rank];
    const int64_t count = request.begin[rank + 1] - begin;
    std::copy_n(words, count, request.is_unknown.begin() + begin);
    words += count;
    if (owner_of_default_key(table) != ranks_->rank()) {
      return words;
    }
    const int64_t default_key = *state_.tables[table].config->keys->default_key;
    for (int64_t i = 0; i < served.rows.nnz(); ++i) {
      if (served.rows.keys[i] ==
          default_key) {  // requested once by each rank, in order
        uint32_t& key_count = served.rows.key_counts[i];
        key_count = add_counts(key_count, *words++);
      }
    }
    return words;
  }

  // Removes the default keys that were requested, but do not occur, so that they are not
  // updated.
  void remove_unused_default_keys(Route& route) const {
    for (const size_t table : with_default_key_) {
      Route::ServedRows& served = route.served[table];
      IdBags& rows = served.rows;
      int64_t kept = 0;
      for (int64_t i = 0; i < rows.nnz(); ++i) {
        if (rows.key_counts[i] > 0) {
          rows.ids[kept] = rows.ids[i];
          rows.keys[kept] = rows.keys[i];
          rows.key_counts[kept] = rows.key_counts[i];
          served.positions[kept++] = served.positions[i];
        }
      }
      rows.ids.resize(kept);
      rows.keys.resize(kept);
      rows.key_counts.resize(kept);
      served.positions.resize(kept);
      rows.bags = kept;
    }
  }

  // The number of words that pack_requests() writes for each rank.
  std::vector<int64_t> count_words(const std::vector<Request>& requests) const {
    std::vector<int64_t> words(ranks_->size(), 0);
    for (const size_t table : sharded_) {
      for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
        const std::vector<int64_t>& begin = requests[table].begin;
        words[rank] +=
            1 + words_per_id(table) * (begin[rank + 1] - begin[rank]);
      }
    }
    return words;
  }

  // Arrives at a lookup with the requests of this rank. Returns the requests of all ranks.
  // Errors:  on all ranks, the error of one rank, or c10::ValueError if too many rows are
  //          requested from one rank.
  std::vector<at::Tensor> exchange_requests(
      const std::vector<Request>& requests,
      const std::vector<int64_t>& words,
      const std::exception_ptr& error) const {
    const RendezvousPoint point(Rendezvous::kLookup, state_.layer);
    RankGroup::Message message{.value = c10::sum_integers(words)};
    if (error == nullptr) {
      std::vector<int64_t> sizes = words;
      for (int64_t& size : sizes) {
        size *= kWordBytes;
      }
      message.bodies =
          as_bytes(pack_requests(requests, words)).split_with_sizes(sizes);
    }
    RankGroup::Arrivals arrivals = ranks_->arrive(point, error, message)();
    const int64_t to_all_ranks = c10::sum_integers(arrivals.values);
    // Only the owner sees that too many of its rows are requested, and must report this to
    // the others. All ranks have the same `to_all_ranks`, so they agree on whether a report
    // is possible.
    if (to_all_ranks >= max_rows_) {
      int64_t to_this_rank = 0;
      for (const at::Tensor& body : arrivals.bodies) {
        to_this_rank += body.numel() / kWordBytes;
      }
      ranks_->run_on_all_ranks(point, [&] {
        TESSERA_CHECK_VALUE(
            to_this_rank < max_rows_,
            "[sharded_strategy] all ranks together must request fewer than {} rows from one rank, but requested {}. Split the batch.",
            max_rows_,
            to_this_rank);
      });
    }
    return std::move(arrivals.bodies);
  }

  at::Tensor pack_requests(
      const std::vector<Request>& requests,
      const std::vector<int64_t>& words) const {
    at::Tensor packed =
        empty_in_step_memory({c10::sum_integers(words)}, at::kInt);
    auto* next =
        reinterpret_cast<uint32_t*>(packed.mutable_data_ptr<int32_t>());
    for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
      for (const size_t table : sharded_) {
        const std::vector<int64_t>& begin = requests[table].begin;
        *next++ = static_cast<uint32_t>(begin[rank + 1] - begin[rank]);
      }
      for (const size_t table : sharded_) {
        const Request& request = requests[table];
        const int64_t begin = request.begin[rank];
        const int64_t end = request.begin[rank + 1];
        if (is_key_table(table)) {
          std::memcpy(
              next,
              request.keys.data() + begin,
              (end - begin) * sizeof(int64_t));
          next += 2 * (end - begin);
          next = std::copy(
              request.key_counts.begin() + begin,
              request.key_counts.begin() + end,
              next);
          continue;
        }
        const auto first =
            static_cast<uint32_t>(partitions_[table].begin(rank));
        for (int64_t i = begin; i < end; ++i) {
          *next++ = request.rows[i] - first;
        }
      }
    }
    return packed;
  }

  // Reads the requests of all ranks into `route`.
  void read_requests(const std::vector<at::Tensor>& incoming, Route& route)
      const {
    const size_t tables = state_.tables.size();
    route.groups.resize(groups_.size());
    route.served.resize(tables);
    // In each message, the counts come before the ids.
    std::vector<const uint32_t*> counts;
    std::vector<int64_t> totals(tables, 0);
    for (const at::Tensor& of_rank : incoming) {
      counts.push_back(static_cast<const uint32_t*>(of_rank.const_data_ptr()));
      const uint32_t* count = counts.back();
      for (const size_t table : sharded_) {
        totals[table] += *count++;
      }
    }
    for (const size_t table : sharded_) {
      Route::ServedRows& served = route.served[table];
      served.rows.ids.resize(totals[table]);
      served.rows.bags = totals[table];
      served.rows.dim = state_.tables[table].config->dim;
      served.positions.resize(totals[table]);
      served.begin.assign(1, 0);
      if (is_key_table(table)) {
        served.rows.keys.resize(totals[table]);
        served.rows.key_counts.resize(totals[table]);
        std::iota(served.rows.ids.begin(), served.rows.ids.end(), 0U);
      }
    }
    for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
      read_request(rank, counts[rank], route);
    }
  }

  int64_t words_per_id(size_t table) const {
    return is_key_table(table) ? 3 : 1;
  }
  // Reads the requested ids of one table to rows.ids, or those of a key table to rows.keys,
  // from `begin` on. Returns false if this rank does not have them all.
  bool read_ids(
      size_t table,
      const uint32_t* words,
      int64_t count,
      int64_t begin,
      IdBags& rows) const {
    if (!is_key_table(table)) {
      std::copy(words, words + count, rows.ids.begin() + begin);
      return std::all_of(
          words,
          words + count,
          [local_rows = state_.tables[table].rows.count](uint32_t row) {
            return row < local_rows;
          });
    }
    std::memcpy(rows.keys.data() + begin, words, count * sizeof(int64_t));
    std::copy_n(words + 2 * count, count, rows.key_counts.begin() + begin);
    const KeyIndex& index = state_.tables[table].key_rows->index();
    return std::all_of(
        rows.keys.begin() + begin,
        rows.keys.begin() + begin + count,
        [&](int64_t key) { return index.owns(key); });
  }

  // Reads the request of one rank, behind those of the ranks before it.
  void read_request(int64_t rank, const uint32_t* counts, Route& route) const {
    const uint32_t* count = counts;
    const uint32_t* id = counts + sharded_.size();
    for (Route::Group& group : route.groups) {
      group.served.push_back(0);
    }
    for (const size_t table : sharded_) {
      Route::Group& group = route.groups[*group_of_[table]];
      Route::ServedRows& served = route.served[table];
      const int64_t begin = served.begin.back();
      // The other ranks get no report, because later messages may be mixed up, too.
      TESSERA_CHECK(
          read_ids(table, id, *count, begin, served.rows),
          "[sharded_strategy] rank {} requests rows that this rank does not have, because something else uses the backend at the same time. Give the layers a backend of their own.",
          rank);
      std::iota(
          served.positions.begin() + begin,
          served.positions.begin() + begin + *count,
          static_cast<uint32_t>(group.served_count));
      group.served.back() += *count;
      group.served_count += *count;
      served.begin.push_back(begin + *count);
      id += words_per_id(table) * *count++;
    }
  }

  // Sets the positions at which this rank's requested rows arrive.
  void assign_positions(std::vector<Request>& requests, Route& route) const {
    for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
      for (size_t i = 0; i < groups_.size(); ++i) {
        Route::Group& group = route.groups[i];
        const int64_t before = group.requested_count;
        for (const size_t table : groups_[i].tables) {
          Request& request = requests[table];
          request.position[rank] = group.requested_count;
          group.requested_count +=
              request.begin[rank + 1] - request.begin[rank];
        }
        group.requested.push_back(group.requested_count - before);
      }
    }
  }

  at::Tensor gather_served(size_t group, const Route& route) const {
    const int64_t dim = groups_[group].dim;
    const at::ScalarType dtype = groups_[group].dtype;
    const int64_t count = route.groups[group].served_count;
    const int64_t columns = stored_columns(dim, dtype);
    at::Tensor rows = empty_in_step_memory({count, columns}, dtype);
    const std::vector<Run> runs = find_runs(group, route);
    const int64_t row_bytes =
        columns * static_cast<int64_t>(c10::elementSize(dtype));
    auto* out = static_cast<char*>(rows.mutable_data_ptr());
    run_tasks(
        static_cast<int64_t>(runs.size()), count * row_bytes, [&](int64_t i) {
          copy_run(runs[i], route, dtype, out);
        });
    return rows;
  }

  // Splits the served rows of a group into runs with consecutive positions.
  std::vector<Run> find_runs(size_t group, const Route& route) const {
    const int64_t max_rows =
        rows_of_a_task(route.groups[group].served_count, groups_[group].dim);
    std::vector<Run> runs;
    for (const size_t table : groups_[group].tables) {
      const Buffer<uint32_t>& positions = route.served[table].positions;
      const auto count = static_cast<int64_t>(positions.size());
      for (int64_t begin = 0; begin < count;) {
        int64_t end = begin + 1;
        while (end < count && end - begin < max_rows &&
               positions[end] == positions[end - 1] + 1) {
          ++end;
        }
        runs.push_back({table, begin, end});
        begin = end;
      }
    }
    return runs;
  }

  // Copies the rows of one run to their positions in `out`.
  void copy_run(
      const Run& run,
      const Route& route,
      at::ScalarType dtype,
      char* out) const {
    const at::Tensor& parameters = lookup_rows_of(state_.tables[run.table]);
    const Route::ServedRows& served = route.served[run.table];
    const int64_t dim = served.rows.dim;
    const int64_t row_bytes = stored_columns(dim, dtype) *
        static_cast<int64_t>(c10::elementSize(dtype));
    const uint32_t* ids = served.rows.ids.data() + run.begin;
    const int64_t count = run.end - run.begin;
    char* to = out + served.positions[run.begin] * row_bytes;
    if (dtype == at::kFloat) {
      active_kernels().combine(
          {.table = stored_rows(parameters),
           .ids = ids,
           .nnz = count,
           .out = reinterpret_cast<float*>(to),
           .end_bag = count});
    } else if (parameters.scalar_type() == dtype) {
      const auto* from = static_cast<const char*>(parameters.const_data_ptr());
      for (int64_t row = 0; row < count; ++row) {
        std::memcpy(
            to + row * row_bytes, from + ids[row] * row_bytes, row_bytes);
      }
    } else {
      const auto* from = parameters.const_data_ptr<float>();
      auto* rounded = reinterpret_cast<at::BFloat16*>(to);
      for (int64_t row = 0; row < count; ++row) {
        std::copy_n(from + ids[row] * dim, dim, rounded + row * dim);
      }
    }
  }

  // Replaces indices of distinct rows or keys by the positions of the fetched rows.
  void set_positions(
      const std::vector<Request>& requests,
      std::vector<IdBags>& bags) const {
    for_sharded_tables(bags, [&](size_t table) {
      Buffer<uint32_t> positions(requests[table].begin.back());
      for (int64_t rank = 0; rank < ranks_->size(); ++rank) {
        std::iota(
            positions.begin() + requests[table].begin[rank],
            positions.begin() + requests[table].begin[rank + 1],
            static_cast<uint32_t>(requests[table].position[rank]));
      }
      const Request& request = requests[table];
      for (size_t i = 0; i < request.is_unknown.size(); ++i) {
        if (request.is_unknown[i] != 0) {
          positions[i] = positions[*request.default_index];
        }
      }
      for (size_t i = 0; i < bags.size(); ++i) {
        if (state_.features[i].table == table) {
          for (uint32_t& id : bags[i].ids) {
            id = positions[id];
          }
          bags[i].keys.clear();  // the ids are positions now
        }
      }
    });
  }

  at::Tensor pack_gradients(
      size_t group,
      const Route& route,
      const std::vector<RowGradients>& sums) const {
    const int64_t dim = groups_[group].dim;
    const int64_t rows = route.groups[group].requested_count;
    at::Tensor packed =
        empty_in_step_memory({rows, dim}, options_.gradient_transport);
    const int64_t max_rows = rows_of_a_task(rows, dim);
    if (sums.empty()) {
      return packed.zero_();
    }
    std::vector<Run> runs;
    for (const size_t table : groups_[group].tables) {
      const auto count = static_cast<int64_t>(sums[table].rows.size());
      for (int64_t begin = 0; begin < count; begin += max_rows) {
        runs.push_back({table, begin, std::min(count, begin + max_rows)});
      }
    }
    void* to = packed.mutable_data_ptr();
    run_tasks(
        static_cast<int64_t>(runs.size()),
        static_cast<int64_t>(packed.nbytes()),
        [&](int64_t i) {
          const auto& [table, begin, end] = runs[i];
          if (packed.scalar_type() == at::kFloat) {
            copy_gradients(
                sums[table], begin, end, dim, static_cast<float*>(to));
          } else {
            copy_gradients(
                sums[table], begin, end, dim, static_cast<at::BFloat16*>(to));
          }
        });
    return packed;
  }

  const EmbeddingState& state_;
  std::shared_ptr<RankGroup> ranks_;
  ShardingOptions options_;
  int64_t max_rows_;
  std::vector<Partition> partitions_;  // one per table
  std::vector<std::optional<size_t>> group_of_;  // one per table
  std::vector<size_t> sharded_;  // the tables with a group
  std::vector<TableGroup> groups_;
  bool has_key_tables_ = false;
  std::vector<size_t> with_default_key_;  // tables
  uint64_t lookups_ = 0;
};

}  // namespace

std::unique_ptr<RowExchange> make_row_exchange(
    const EmbeddingState& state,
    std::shared_ptr<RankGroup> ranks,
    const ShardingOptions& options,
    int64_t max_rows) {
  return std::make_unique<Exchange>(state, std::move(ranks), options, max_rows);
}

}  // namespace tessera::distributed
