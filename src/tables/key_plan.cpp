// SPDX-License-Identifier: Apache-2.0
// Decides which keys an update admits and evicts.
#include "src/tables/key_index.h"

#include "src/common/buffer.h"
#include "src/common/parallel.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

namespace {

// When the victims run out, this share of a partition is collected at once, because the
// search reads the whole partition.
constexpr int64_t kVictimShare = 16;

// Marks a row that this update evicts where its occurrences are counted.
constexpr uint32_t kEvicted = std::numeric_limits<uint32_t>::max();

// A set of rows of a table.
class RowSet {
 public:
  RowSet() = default;
  explicit RowSet(int64_t capacity) : words_((capacity + 63) / 64, 0) {}

  bool empty() const {
    return words_.empty();
  }
  // Several threads may insert at the same time.
  void insert(uint32_t row) {
    const uint64_t bit = uint64_t{1} << (row % 64);
    std::atomic_ref<uint64_t> word(words_[row / 64]);
    if ((word.load(std::memory_order_relaxed) & bit) == 0) {
      word.fetch_or(bit, std::memory_order_relaxed);
    }
  }
  bool has(uint32_t row) const {
    return ((words_[row / 64] >> (row % 64)) & 1) != 0;
  }
  // Calls visit(row) for the rows of the set from `begin` to `end`, which are not equal.
  template <class Visit>
  void visit(uint32_t begin, uint32_t end, const Visit& visit) const {
    for (uint32_t w = begin / 64; w <= (end - 1) / 64; ++w) {
      for (uint64_t word = words_[w]; word != 0; word &= word - 1) {
        const uint32_t row = w * 64 + __builtin_ctzll(word);
        if (row >= begin && row < end) {
          visit(row);
        }
      }
    }
  }

 private:
  std::vector<uint64_t> words_;
};

}  // namespace

// A key without a row that occurs in the update.
struct KeyIndex::Missing {
  uint64_t hash;
  uint32_t occurrence;  // over all terms
  uint32_t row;
};

// Plans one partition.
class KeyIndex::PartPlanner {
 public:
  PartPlanner(
      KeyIndex& index,
      int64_t partition,
      uint32_t update,
      KeyPlan::Part& part,
      std::vector<uint32_t>& uses)
      : index_(index),
        partition_(partition),
        state_(index.partition_[partition]),
        first_row_(index.first_row_[partition]),
        rows_(index.first_row_[partition + 1] - first_row_),
        update_(update),
        part_(part),
        uses_(uses) {
    if (uses_.size() < rows_) {
      uses_.resize(rows_, 0);
    }
  }

  // One occurrence. Returns its row, or kNoRow for now.
  uint32_t add(
      int64_t key,
      uint64_t hash,
      uint32_t count,
      bool had_row,
      uint32_t occurrence) {
    const uint32_t row = index_.find_in(partition_, key, hash);
    if (row != kNoRow) {
      if (uses_[row] == 0) {
        touched_.push_back(row);
      }
      uses_[row] = saturated_sum(uses_[row], count);
      return first_row_ + row;
    }
    if (had_row) {
      part_.dropped += count;
      return kNoRow;
    }
    missing_.push_back({hash, occurrence, kNoRow});
    counts_.push_back(count);
    keys_.push_back(key);
    return kNoRow;
  }

  // Protects a row of the partition that occurs, and is in no add(), from eviction.
  void keep(uint32_t row) {
    uses_[row - first_row_] = 1;
    kept_.push_back(row - first_row_);
  }

  // Decides. Then missing() has the rows of the new keys.
  void decide() {
    find_admitted();
    // The row of a new default key is not among the free ones.
    const int64_t needed =
        static_cast<int64_t>(admitted_.size()) - (admits_default_ ? 1 : 0);
    make_room(needed - index_.free_rows(partition_));
    give_rows();
    for (const uint32_t row : touched_) {
      if (uses_[row] != kEvicted) {
        part_.used.push_back({first_row_ + row, frequency_of_used(row)});
      }
    }
  }

  bool is_evicted(uint32_t row) const {
    return uses_[row - first_row_] == kEvicted;
  }
  bool has_evicted_touched() const {
    return has_evicted_touched_;
  }

  // Calls visit(occurrence, row) for each occurrence of a new key with a row.
  template <class Visit>
  void visit_new(const Visit& visit) const {
    for (const Missing& missing : missing_) {
      if (missing.row != kNoRow) {
        visit(missing.occurrence, missing.row);
      }
    }
  }

  void clear_uses() {
    for (const uint32_t row : touched_) {
      uses_[row] = 0;
    }
    for (const uint32_t row : kept_) {
      uses_[row] = 0;
    }
    for (const uint32_t row : part_.evicted) {
      uses_[row - first_row_] = 0;
    }
  }

 private:
  // A key that is admitted, or that has a row and occurs.
  struct Contender {
    Rank rank;
    bool is_new;
    uint32_t index;  // of admitted_, or a row
  };
  struct Admitted {
    int64_t key;
    Rank rank;
    size_t begin;  // in missing_
    size_t end;
    bool is_rejected = false;
  };

  float frequency_of_used(uint32_t row) const {
    return index_.frequency_.size() == 0
        ? 0.0F
        : index_.frequency_after(
              index_.frequency_[first_row_ + row],
              /*is_new=*/false,
              uses_[row],
              update_);
  }

  void find_admitted() {
    // Different keys have different hashes, so this groups the keys.
    std::vector<uint32_t> order(missing_.size());
    std::iota(order.begin(), order.end(), 0U);
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
      return missing_[a].hash < missing_[b].hash;
    });
    std::vector<Missing> sorted;
    sorted.reserve(order.size());
    for (size_t begin = 0; begin < order.size();) {
      const uint64_t hash = missing_[order[begin]].hash;
      const int64_t key = keys_[order[begin]];
      uint32_t count = 0;
      size_t end = begin;
      for (; end < order.size() && missing_[order[end]].hash == hash; ++end) {
        count = saturated_sum(count, counts_[order[end]]);
        sorted.push_back(missing_[order[end]]);
      }
      const bool is_default = index_.is_default(key);
      admits_default_ = admits_default_ || is_default;
      if (index_.counters_per_row_ > 0 && !is_default) {
        part_.counted.emplace_back(key, count);
      }
      if (index_.would_admit(key, count, update_)) {
        const Rank rank{
            .frequency = index_.frequency_after(0.0F, true, count, update_),
            .last_update = update_,
            .hash = hash};
        admitted_.push_back(
            {.key = key, .rank = rank, .begin = begin, .end = end});
      }
      begin = end;
    }
    missing_ = std::move(sorted);
  }

  // Evicts the lowest ranks of all keys with a row and of all admitted keys, but not the
  // default key.
  void make_room(int64_t needed) {
    if (needed <= 0) {
      return;
    }
    if (const uint32_t row = index_.default_row_in(partition_);
        row != kNoRow && uses_[row] == 0) {
      keep(first_row_ + row);
    }
    const auto* old_only =
        std::get_if<eviction::OlderThan>(&index_.config_.eviction);
    // Without frequencies, a key that does not occur ranks below all that do.
    std::vector<Contender> contenders;
    size_t next = 0;
    const auto next_contender = [&]() -> const Contender& {
      if (contenders.empty()) {
        contenders = sort_contenders();
      }
      while (old_only != nullptr && !contenders[next].is_new) {
        ++next;
      }
      return contenders[next];
    };
    for (; needed > 0; --needed) {
      if (const Victim* victim = lowest_victim(needed)) {
        const bool is_evicted = old_only != nullptr
            ? int64_t{update_} - victim->rank.last_update > old_only->updates
            : index_.frequency_.size() == 0 ||
                victim->rank < next_contender().rank;
        if (is_evicted) {
          evict(victim->row);
          pop_victim();
          continue;
        }
      }
      const Contender contender = next_contender();
      ++next;
      if (contender.is_new) {
        admitted_[contender.index].is_rejected = true;
      } else {
        part_.dropped += uses_[contender.index];
        evict(contender.index);
        has_evicted_touched_ = true;
      }
    }
  }

  std::vector<Contender> sort_contenders() const {
    std::vector<Contender> contenders;
    contenders.reserve(admitted_.size() + touched_.size());
    for (size_t i = 0; i < admitted_.size(); ++i) {
      if (!index_.is_default(admitted_[i].key)) {
        contenders.push_back(
            {admitted_[i].rank, true, static_cast<uint32_t>(i)});
      }
    }
    for (const uint32_t row : touched_) {
      const int64_t key = index_.key_of(partition_, row);
      if (!index_.is_default(key)) {
        const Rank rank{
            .frequency = frequency_of_used(row),
            .last_update = update_,
            .hash = hash_of_key(key)};
        contenders.push_back({rank, false, row});
      }
    }
    std::sort(
        contenders.begin(),
        contenders.end(),
        [](const Contender& a, const Contender& b) { return a.rank < b.rank; });
    return contenders;
  }

  void evict(uint32_t row) {
    uses_[row] = kEvicted;
    part_.evicted.push_back(first_row_ + row);
  }

  static bool is_later(const Victim& a, const Victim& b) {
    return a.rank > b.rank;
  }

  void pop_victim() {
    std::pop_heap(state_.victims.begin(), state_.victims.end(), is_later);
    state_.victims.pop_back();
  }

  // The key with the lowest rank of those that do not occur in this update. `needed`: how
  // many more will be requested at most. nullptr: there is none.
  const Victim* lowest_victim(int64_t needed) {
    if (is_exhausted_) {
      return nullptr;
    }
    for (bool is_fresh = false;; is_fresh = true) {
      while (!state_.victims.empty()) {
        const Victim& victim = state_.victims.front();
        if (is_current(victim)) {
          return &victim;
        }
        pop_victim();
      }
      if (is_fresh || !collect_victims(needed)) {
        is_exhausted_ = true;
        return nullptr;
      }
    }
  }

  // Returns true if the key still has the row and the rank, and does not occur in this
  // update.
  bool is_current(const Victim& victim) const {
    if (uses_[victim.row] != 0) {
      return false;
    }
    const Bucket& bucket = index_.buckets_of(
        partition_)[index_.bucket_of_row_[first_row_ + victim.row]];
    for (uint32_t i = 0; i < bucket.size; ++i) {
      if (bucket.rows[i] == victim.row) {
        return index_.rank_of(
                   partition_, victim.row, hash_of_key(bucket.keys[i])) ==
            victim.rank;
      }
    }
    return false;
  }

  // Reads the ranks of all keys that do not occur in this update, and keeps the lowest
  // ones. Returns false if there are none.
  bool collect_victims(int64_t needed) {
    std::vector<Victim>& victims = state_.victims;
    victims.clear();
    const Bucket* buckets = index_.buckets_of(partition_);
    for (int64_t b = 0; b < index_.buckets_per_partition_; ++b) {
      for (uint32_t i = 0; i < buckets[b].size; ++i) {
        const uint16_t row = buckets[b].rows[i];
        if (uses_[row] == 0) {
          const Rank rank =
              index_.rank_of(partition_, row, hash_of_key(buckets[b].keys[i]));
          victims.push_back({rank, row});
        }
      }
    }
    if (victims.empty()) {
      return false;
    }
    const auto share =
        static_cast<size_t>(std::max<int64_t>(needed, rows_ / kVictimShare));
    const auto is_earlier = [](const Victim& a, const Victim& b) {
      return a.rank < b.rank;
    };
    if (share < victims.size()) {
      std::nth_element(
          victims.begin(),
          victims.begin() + static_cast<std::ptrdiff_t>(share) - 1,
          victims.end(),
          is_earlier);
      victims.resize(share);
    }
    state_.bound =
        std::max_element(victims.begin(), victims.end(), is_earlier)->rank;
    std::make_heap(victims.begin(), victims.end(), is_later);
    return true;
  }

  // Gives rows to the admitted keys, in the order of their hashes.
  void give_rows() {
    size_t free = state_.free.size();
    uint32_t used = state_.used;
    size_t evicted = 0;
    for (const Admitted& admitted : admitted_) {
      if (admitted.is_rejected) {
        continue;
      }
      uint32_t row = 0;
      if (free > 0) {
        row = first_row_ + state_.free[--free];
      } else if (used < rows_) {
        row = first_row_ + used++;
      } else {
        row = part_.evicted[evicted++];
      }
      part_.inserted.push_back(
          {.key = admitted.key,
           .row = row,
           .last_update = update_,
           .frequency = admitted.rank.frequency});
      for (size_t i = admitted.begin; i < admitted.end; ++i) {
        missing_[i].row = row;
      }
    }
  }

  KeyIndex& index_;
  int64_t partition_;
  Partition& state_;
  uint32_t first_row_;
  uint32_t rows_;
  uint32_t update_;
  KeyPlan::Part& part_;
  std::vector<uint32_t>&
      uses_;  // [rows], the occurrences of each row, or kEvicted
  std::vector<uint32_t> touched_;  // rows that occur
  std::vector<uint32_t> kept_;  // rows of keep()
  std::vector<Missing> missing_;
  std::vector<uint32_t> counts_;  // of missing_, before it is sorted
  std::vector<int64_t> keys_;  // of missing_, before it is sorted
  std::vector<Admitted> admitted_;
  bool admits_default_ = false;
  bool is_exhausted_ = false;
  bool has_evicted_touched_ = false;
};

// Plans an update of all partitions. If it can, it takes the rows that the lookups found,
// and searches only the other keys.
class KeyIndex::Planner {
 public:
  Planner(
      KeyIndex& index,
      c10::ArrayRef<KeyOccurrences> terms,
      int64_t update,
      bool trusts_lookups)
      : index_(index), trusts_lookups_(trusts_lookups) {
    plan_.update = static_cast<uint32_t>(update);
    for (const KeyOccurrences& term : terms) {
      const bool is_trusted = trusts(term);
      if (is_trusted) {
        plan_.used_rows.emplace_back(term.rows, term.size);
      }
      for (int64_t begin = 0; begin < term.size; begin += kChunk) {
        chunks_.push_back(
            {.term = &term,
             .begin = begin,
             .end = std::min(term.size, begin + kChunk),
             .limit = is_trusted ? static_cast<uint32_t>(index.rows()) : 0});
      }
      total_ += term.size;
    }
  }

  // Returns nothing if the lookups must not be trusted, because a partition may have to
  // evict keys that occur.
  std::optional<KeyPlan> run() {
    mark_stale_rows();
    group();
    mark_used_rows();
    const int64_t count = index_.owned_.count();
    plan_.parts.resize(count);
    // Several partitions share the memory of a task.
    const int64_t partitions_per_task =
        std::max<int64_t>(1, count / kPartitionTasks);
    run_tasks(
        (count + partitions_per_task - 1) / partitions_per_task,
        grouped() * kFindBytes * 2,
        [&](int64_t task) {
          std::vector<uint32_t> uses;
          const int64_t end = std::min(count, (task + 1) * partitions_per_task);
          for (int64_t p = task * partitions_per_task; p < end; ++p) {
            if (begin_[p] < begin_[p + 1]) {
              plan_part(p, uses);
            }
          }
        });
    if (may_evict_used_) {
      return std::nullopt;
    }
    return std::move(plan_);
  }

 private:
  static constexpr int64_t kChunk = 16384;
  static constexpr int64_t kPartitionTasks = 16;

  struct Chunk {
    const KeyOccurrences* term;
    int64_t begin;
    int64_t end;
    uint32_t limit;  // smaller rows of the lookup are trusted
  };
  struct Occurrence {
    uint64_t hash;
    uint32_t chunk;
    uint32_t index;  // in the term
  };

  // Frequencies need the count of each key, so they need all keys grouped.
  bool trusts(const KeyOccurrences& term) const {
    return trusts_lookups_ && term.looked_up != nullptr && term.version &&
        index_.frequency_.size() == 0 &&
        (*term.version == index_.version_ ||
         (!index_.evictions_.empty() &&
          *term.version >= index_.evictions_.front().version));
  }

  bool is_known(const Chunk& chunk, int64_t i) const {
    return chunk.limit > 0 && chunk.term->looked_up[i] < chunk.limit &&
        (stale_.empty() || !stale_.has(chunk.term->looked_up[i]));
  }

  // Marks the rows that lost their keys after the oldest lookup.
  void mark_stale_rows() {
    uint64_t oldest = index_.version_;
    for (const Chunk& chunk : chunks_) {
      if (chunk.limit > 0) {
        oldest = std::min(oldest, *chunk.term->version);
      }
    }
    if (oldest == index_.version_) {
      return;
    }
    stale_ = RowSet(index_.rows());
    for (const Evictions& evictions : index_.evictions_) {
      if (evictions.version >= oldest) {
        for (const uint32_t row : evictions.rows) {
          stale_.insert(row);
        }
      }
    }
  }

  int64_t grouped() const {
    return begin_.back();
  }

  // Groups the occurrences that must be searched by partition. The order within a
  // partition is that of the batch.
  void group() {
    const int64_t count = index_.owned_.count();
    const auto chunks = static_cast<int64_t>(chunks_.size());
    std::vector<int64_t> next(chunks * count, 0);
    run_tasks(chunks, total_ * 16, [&](int64_t c) {
      const Chunk& chunk = chunks_[c];
      int64_t* sizes = next.data() + c * count;
      for (int64_t i = chunk.begin; i < chunk.end; ++i) {
        if (is_known(chunk, i)) {
          chunk.term->rows[i] = chunk.term->looked_up[i];
        } else {
          const uint64_t hash = hash_of_key(chunk.term->keys[i]);
          ++sizes[index_.owned_partition_of(hash)];
        }
      }
    });
    begin_.assign(count + 1, 0);
    int64_t position = 0;
    for (int64_t p = 0; p < count; ++p) {
      begin_[p] = position;
      for (int64_t c = 0; c < chunks; ++c) {
        position += std::exchange(next[c * count + p], position);
      }
    }
    begin_[count] = position;
    occurrences_.resize(position);
    if (position == 0) {
      return;
    }
    run_tasks(chunks, total_ * 32, [&](int64_t c) {
      const Chunk& chunk = chunks_[c];
      int64_t* positions = next.data() + c * count;
      for (int64_t i = chunk.begin; i < chunk.end; ++i) {
        if (!is_known(chunk, i)) {
          const uint64_t hash = hash_of_key(chunk.term->keys[i]);
          occurrences_[positions[index_.owned_partition_of(hash)]++] = {
              hash, static_cast<uint32_t>(c), static_cast<uint32_t>(i)};
        }
      }
    });
  }

  // Returns true if the partition may have fewer rows left than it needs.
  bool may_evict(int64_t partition) const {
    return begin_[partition + 1] - begin_[partition] >
        index_.free_rows(partition);
  }

  // Marks the trusted rows, which must not be evicted, if anything may be.
  void mark_used_rows() {
    bool may_evict_any = false;
    for (int64_t p = 0; p < index_.owned_.count(); ++p) {
      may_evict_any = may_evict_any || may_evict(p);
    }
    if (!may_evict_any || plan_.used_rows.empty()) {
      return;
    }
    used_ = RowSet(index_.rows());
    run_tasks(
        static_cast<int64_t>(chunks_.size()), total_ * 16, [&](int64_t c) {
          const Chunk& chunk = chunks_[c];
          for (int64_t i = chunk.begin; i < chunk.end; ++i) {
            if (is_known(chunk, i)) {
              used_.insert(chunk.term->looked_up[i]);
            }
          }
        });
  }

  const KeyOccurrences& term_of(const Occurrence& occurrence) const {
    return *chunks_[occurrence.chunk].term;
  }

  void plan_part(int64_t p, std::vector<uint32_t>& uses) {
    const auto rows = static_cast<uint32_t>(index_.rows());
    PartPlanner planner(index_, p, plan_.update, plan_.parts[p], uses);
    if (!used_.empty() && may_evict(p)) {
      const Partition& state = index_.partition_[p];
      int64_t others = state.used - static_cast<int64_t>(state.free.size()) -
          (index_.has_default_key(p) ? 1 : 0);
      used_.visit(
          index_.first_row_[p], index_.first_row_[p + 1], [&](uint32_t row) {
            planner.keep(row);
            --others;
          });
      if (others < begin_[p + 1] - begin_[p]) {
        may_evict_used_ = true;
        return;
      }
    }
    for (int64_t i = begin_[p]; i < begin_[p + 1]; ++i) {
      if (i + kFindAhead < begin_[p + 1]) {
        __builtin_prefetch(
            index_.buckets_of(p) +
            index_.home_of(occurrences_[i + kFindAhead].hash));
      }
      const Occurrence& at = occurrences_[i];
      const KeyOccurrences& term = term_of(at);
      const uint32_t looked_up =
          term.looked_up == nullptr ? kNoRow : term.looked_up[at.index];
      term.rows[at.index] = planner.add(
          term.keys[at.index],
          at.hash,
          term.counts == nullptr ? 1 : term.counts[at.index],
          looked_up < rows,
          static_cast<uint32_t>(i));
    }
    planner.decide();
    if (planner.has_evicted_touched()) {
      for (int64_t i = begin_[p]; i < begin_[p + 1]; ++i) {
        uint32_t& row = term_of(occurrences_[i]).rows[occurrences_[i].index];
        if (row != kNoRow && planner.is_evicted(row)) {
          row = kNoRow;
        }
      }
    }
    planner.visit_new([&](uint32_t i, uint32_t row) {
      term_of(occurrences_[i]).rows[occurrences_[i].index] = row;
    });
    planner.clear_uses();
  }

  KeyIndex& index_;
  bool trusts_lookups_;
  KeyPlan plan_;
  std::vector<Chunk> chunks_;
  int64_t total_ = 0;
  RowSet stale_;
  RowSet used_;
  std::vector<int64_t> begin_;  // [partitions + 1], in occurrences_
  Buffer<Occurrence> occurrences_;
  std::atomic<bool> may_evict_used_ = false;
};

KeyPlan KeyIndex::plan(c10::ArrayRef<KeyOccurrences> terms, int64_t update) {
  const auto plan_once = [&](bool trusts_lookups) {
    if (has_open_plan_) {
      clear_victims();
    }
    has_open_plan_ = true;
    return Planner(*this, terms, update, trusts_lookups).run();
  };
  std::optional<KeyPlan> plan = plan_once(/*trusts_lookups=*/true);
  return plan ? *std::move(plan) : *plan_once(/*trusts_lookups=*/false);
}

}  // namespace tessera
