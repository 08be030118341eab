// SPDX-License-Identifier: Apache-2.0
// Decides which keys an update admits and evicts.
#include "src/tables/key_index.h"

#include "src/common/buffer.h"
#include "src/common/parallel.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
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

}  // namespace

// An occurrence of a key without a row.
struct KeyIndex::Missing {
  uint64_t hash;
  int64_t key;
  uint32_t count;
  uint32_t occurrence;  // over all terms
  uint32_t row;
};

// A key that is admitted.
struct KeyIndex::Admitted {
  int64_t key;
  Rank rank;
  size_t begin;  // in Scratch::missing
  size_t end;
  bool is_rejected = false;
};

// Memory that one thread uses for one partition after the other.
struct KeyIndex::Scratch {
  // The occurrences of each row of the partition, or kEvicted. All are 0 between two
  // partitions.
  std::vector<uint32_t> uses;
  std::vector<uint32_t> touched;  // rows that occur
  std::vector<Missing> missing;
  std::vector<Admitted> admitted;
  std::vector<Victim> candidates;  // for eviction
};

// Plans one partition.
class KeyIndex::PartPlanner {
 public:
  // `has_kept_rows`: rows occur that are in no add(). KeyIndex::marked_rows_ has some of
  // them.
  PartPlanner(
      KeyIndex& index,
      int64_t partition,
      uint32_t update,
      bool has_kept_rows,
      KeyPlan::Part& part,
      Scratch& scratch)
      : index_(index),
        partition_(partition),
        state_(index.partition_[partition]),
        first_row_(index.first_row_[partition]),
        rows_(index.first_row_[partition + 1] - first_row_),
        update_(update),
        has_kept_rows_(has_kept_rows),
        part_(part),
        uses_(scratch.uses),
        touched_(scratch.touched),
        missing_(scratch.missing),
        admitted_(scratch.admitted),
        candidates_(scratch.candidates) {
    if (uses_.size() < rows_) {
      uses_.resize(rows_, 0);
    }
    touched_.clear();
    missing_.clear();
    admitted_.clear();
  }
  ~PartPlanner() {
    for (const uint32_t row : touched_) {
      uses_[row] = 0;
    }
    for (const uint32_t row : part_.evicted) {
      uses_[row - first_row_] = 0;
    }
  }
  PartPlanner(const PartPlanner&) = delete;
  PartPlanner& operator=(const PartPlanner&) = delete;

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
    missing_.push_back({hash, key, count, occurrence, kNoRow});
    return kNoRow;
  }

  // Decides. Then visit_new() knows the rows of the new keys. Returns false if a row of
  // has_kept_rows may have to be evicted, which only add() allows.
  bool decide() {
    find_admitted();
    default_row_ = index_.default_row_in(partition_);
    // The row of a new default key is not among the free ones.
    const int64_t needed =
        static_cast<int64_t>(admitted_.size()) - (admits_default_ ? 1 : 0);
    if (!make_room(needed - index_.free_rows(partition_))) {
      return false;
    }
    give_rows();
    part_.used.reserve(touched_.size());
    for (const uint32_t row : touched_) {
      if (uses_[row] != kEvicted) {
        part_.used.push_back({first_row_ + row, frequency_of_used(row)});
      }
    }
    return true;
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

 private:
  // A key that is admitted, or that has a row and occurs.
  struct Contender {
    Rank rank;
    bool is_new;
    uint32_t index;  // of admitted_, or a row
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
    std::sort(
        missing_.begin(),
        missing_.end(),
        [](const Missing& a, const Missing& b) { return a.hash < b.hash; });
    for (size_t begin = 0; begin < missing_.size();) {
      const uint64_t hash = missing_[begin].hash;
      const int64_t key = missing_[begin].key;
      uint32_t count = 0;
      size_t end = begin;
      for (; end < missing_.size() && missing_[end].hash == hash; ++end) {
        count = saturated_sum(count, missing_[end].count);
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
  }

  // Evicts the lowest ranks of all keys with a row and of all admitted keys, but not the
  // default key. Returns false if rows in use might have to be evicted.
  bool make_room(int64_t needed) {
    if (needed <= 0) {
      return true;
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
    part_.evicted.reserve(needed);
    for (; needed > 0; --needed) {
      if (const Victim* victim = lowest_victim(needed)) {
        const bool is_evicted = old_only != nullptr
            ? int64_t{update_} - victim->rank.last_update > old_only->updates
            : index_.frequency_.size() == 0 ||
                victim->rank < next_contender().rank;
        if (is_evicted) {
          evict(victim->row);
          state_.victims.pop();
          continue;
        }
      }
      // OlderThan never evicts keys that occur.
      if (has_kept_rows_ && old_only == nullptr) {
        return false;
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
    return true;
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

  bool occurs(uint32_t row) const {
    return uses_[row] != 0 || row == default_row_ ||
        (has_kept_rows_ && index_.marked_rows_.has(first_row_ + row));
  }

  // The key with the lowest rank of those that do not occur in this update. `needed`: how
  // many more will be requested at most. nullptr: there is none.
  const Victim* lowest_victim(int64_t needed) {
    if (is_exhausted_) {
      return nullptr;
    }
    for (bool is_fresh = false;; is_fresh = true) {
      while (!state_.victims.empty()) {
        state_.victims.visit_later([&](const Victim& later) {
          index_.prefetch_victim(partition_, later);
        });
        const Victim& victim = state_.victims.lowest();
        if (is_current(victim)) {
          return &victim;
        }
        state_.victims.pop();
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
    if (occurs(victim.row)) {
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
  // ones. Returns false if there are none. Most keys are left out before their hashes are
  // computed.
  bool collect_victims(int64_t needed) {
    const Bucket* buckets = index_.buckets_of(partition_);
    candidates_.clear();
    for (int64_t b = 0; b < index_.buckets_per_partition_; ++b) {
      for (uint32_t i = 0; i < buckets[b].size; ++i) {
        const uint16_t row = buckets[b].rows[i];
        if (!occurs(row)) {
          candidates_.push_back(
              {index_.rank_of(partition_, row, /*hash=*/0), row});
        }
      }
    }
    const auto share =
        static_cast<size_t>(std::max<int64_t>(needed, rows_ / kVictimShare));
    keep_lowest(share);
    for (Victim& victim : candidates_) {
      victim.rank.hash = hash_of_key(index_.key_of(partition_, victim.row));
    }
    keep_lowest(share);
    state_.victims.assign(candidates_);
    return !candidates_.empty();
  }

  // Keeps the `count` candidates with the lowest ranks, and those whose rank is equal to
  // the last one of them.
  void keep_lowest(size_t count) {
    const auto is_lower = [](const Victim& a, const Victim& b) {
      return a.rank < b.rank;
    };
    if (count >= candidates_.size()) {
      return;
    }
    const auto last =
        candidates_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
    std::nth_element(candidates_.begin(), last, candidates_.end(), is_lower);
    const Rank bound = last->rank;
    candidates_.erase(
        std::partition(
            last + 1,
            candidates_.end(),
            [&](const Victim& victim) { return victim.rank == bound; }),
        candidates_.end());
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
  bool has_kept_rows_;
  KeyPlan::Part& part_;
  std::vector<uint32_t>& uses_;  // these are of Scratch
  std::vector<uint32_t>& touched_;
  std::vector<Missing>& missing_;
  std::vector<Admitted>& admitted_;
  std::vector<Victim>& candidates_;
  uint32_t default_row_ = kNoRow;  // is never evicted
  bool admits_default_ = false;
  bool is_exhausted_ = false;
  bool has_evicted_touched_ = false;
};

// A set of rows, for many questions of which few have the answer yes.
class RowFilter {
 public:
  explicit RowFilter(std::vector<uint32_t> rows) : rows_(std::move(rows)) {
    std::sort(rows_.begin(), rows_.end());
    constexpr size_t kMinBits = 4096;
    constexpr size_t kBitsPerRow = 64;
    bits_.resize(
        std::bit_ceil(std::max(kMinBits, rows_.size() * kBitsPerRow)) / 64);
    mask_ = static_cast<uint32_t>(bits_.size() * 64 - 1);
    for (const uint32_t row : rows_) {
      const uint32_t bit = row & mask_;
      bits_[bit / 64] |= uint64_t{1} << (bit % 64);
    }
  }

  // Returns false for most rows that are not in the set.
  bool may_have(uint32_t row) const {
    const uint32_t bit = row & mask_;
    return ((bits_[bit / 64] >> (bit % 64)) & 1) != 0;
  }
  bool has(uint32_t row) const {
    return std::binary_search(rows_.begin(), rows_.end(), row);
  }

 private:
  std::vector<uint32_t> rows_;  // sorted
  std::vector<uint64_t> bits_;
  uint32_t mask_ = 0;
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

  ~Planner() {
    clear_marks();
  }
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Returns nothing if the lookups must not be trusted, because a partition may have to
  // evict keys that occur.
  std::optional<KeyPlan> run() {
    const int64_t count = index_.owned_.count();
    plan_.parts.resize(count);
    take_known_rows();
    if (unknown_ == 0) {
      return std::move(plan_);
    }
    group();
    std::vector<int64_t> partitions;
    for (int64_t p = 0; p < count; ++p) {
      if (begin_[p] < begin_[p + 1]) {
        partitions.push_back(p);
      }
    }
    // Few keys are evicted, and hardly one of them occurs. To look for the evicted rows
    // among those that occur takes a tenth of the time of marking all that occur.
    for (int round = 0; !partitions.empty(); ++round) {
      if (round == kMaxRounds) {
        return std::nullopt;
      }
      plan_parts(partitions);
      if (may_evict_used_) {
        return std::nullopt;
      }
      partitions = mark_evicted_in_use(partitions);
    }
    return std::move(plan_);
  }

 private:
  static constexpr int64_t kChunk = 16384;
  static constexpr int64_t kPartitionTasks = 16;
  static constexpr int kMaxRounds = 4;

  struct Chunk {
    const KeyOccurrences* term;
    int64_t begin;
    int64_t end;
    uint32_t limit;  // smaller rows of the lookup are trusted
    int64_t unknown = 0;  // occurrences that must be searched
    std::vector<uint32_t> evicted_in_use = {};  // rows
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

  // Marks the rows that lost their keys after the oldest lookup.
  void mark_stale_rows() {
    uint64_t oldest = index_.version_;
    for (const Chunk& chunk : chunks_) {
      if (chunk.limit > 0) {
        oldest = std::min(oldest, *chunk.term->version);
      }
    }
    for (const Evictions& evictions : index_.evictions_) {
      if (evictions.version >= oldest) {
        for (const uint32_t row : evictions.rows) {
          index_.marked_rows_.insert(row);
          marked_.push_back(row);
        }
      }
    }
  }

  // Gives each occurrence the row that its lookup found, or kNoRow if it must be searched.
  void take_known_rows() {
    mark_stale_rows();
    run_tasks(static_cast<int64_t>(chunks_.size()), total_ * 8, [&](int64_t c) {
      Chunk& chunk = chunks_[c];
      const uint32_t* looked_up = chunk.term->looked_up;
      uint32_t* rows = chunk.term->rows;
      if (chunk.limit == 0) {
        std::fill(rows + chunk.begin, rows + chunk.end, kNoRow);
        chunk.unknown = chunk.end - chunk.begin;
        return;
      }
      int64_t known = 0;
      for (int64_t i = chunk.begin; i < chunk.end; ++i) {
        const bool is_known = looked_up[i] < chunk.limit;
        rows[i] = is_known ? looked_up[i] : kNoRow;
        known += is_known ? 1 : 0;
      }
      for (int64_t i = chunk.begin; i < chunk.end && !marked_.empty(); ++i) {
        if (rows[i] != kNoRow && index_.marked_rows_.has(rows[i])) {
          rows[i] = kNoRow;
          --known;
        }
      }
      chunk.unknown = chunk.end - chunk.begin - known;
    });
    clear_marks();
    for (const Chunk& chunk : chunks_) {
      unknown_ += chunk.unknown;
    }
  }

  // Groups the occurrences that must be searched by partition. The order within a
  // partition is that of the batch.
  void group() {
    const int64_t count = index_.owned_.count();
    const auto chunks = static_cast<int64_t>(chunks_.size());
    std::vector<int64_t> next(chunks * count, 0);
    const auto visit_unknown = [&](int64_t c, const auto& visit) {
      const Chunk& chunk = chunks_[c];
      for (int64_t i = chunk.begin; i < chunk.end && chunk.unknown > 0; ++i) {
        if (chunk.term->rows[i] == kNoRow) {
          visit(i, hash_of_key(chunk.term->keys[i]));
        }
      }
    };
    run_tasks(chunks, total_ * 16, [&](int64_t c) {
      int64_t* sizes = next.data() + c * count;
      visit_unknown(c, [&](int64_t /*i*/, uint64_t hash) {
        ++sizes[index_.owned_partition_of(hash)];
      });
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
    run_tasks(chunks, total_ * 32, [&](int64_t c) {
      int64_t* positions = next.data() + c * count;
      visit_unknown(c, [&](int64_t i, uint64_t hash) {
        occurrences_[positions[index_.owned_partition_of(hash)]++] = {
            hash, static_cast<uint32_t>(c), static_cast<uint32_t>(i)};
      });
    });
  }

  void plan_parts(const std::vector<int64_t>& partitions) {
    const auto count = static_cast<int64_t>(partitions.size());
    // Several partitions share the memory of a task.
    const int64_t partitions_per_task =
        std::max<int64_t>(1, count / kPartitionTasks);
    run_tasks(
        (count + partitions_per_task - 1) / partitions_per_task,
        unknown_ * kFindBytes * 2,
        [&](int64_t task) {
          // Each thread keeps its own, because zeros for all rows of a partition would
          // take longer than a plan of a few keys.
          thread_local Scratch scratch;
          const int64_t end = std::min(count, (task + 1) * partitions_per_task);
          for (int64_t i = task * partitions_per_task; i < end; ++i) {
            plan_part(partitions[i], scratch);
          }
        });
  }

  // Marks the rows that the parts evict although lookups of this update have found them.
  // Returns their partitions, which must be planned again.
  std::vector<int64_t> mark_evicted_in_use(
      const std::vector<int64_t>& partitions) {
    std::vector<uint32_t> evicted;
    for (const int64_t p : partitions) {
      const std::vector<uint32_t>& rows = plan_.parts[p].evicted;
      evicted.insert(evicted.end(), rows.begin(), rows.end());
    }
    if (evicted.empty() || plan_.used_rows.empty()) {
      return {};
    }
    const RowFilter filter(std::move(evicted));
    run_tasks(static_cast<int64_t>(chunks_.size()), total_ * 8, [&](int64_t c) {
      Chunk& chunk = chunks_[c];
      const uint32_t* looked_up = chunk.term->looked_up;
      const uint32_t* rows = chunk.term->rows;
      for (int64_t i = chunk.begin; i < chunk.end && chunk.limit > 0; ++i) {
        // A new key may have got the row of an evicted one.
        if (filter.may_have(rows[i]) && rows[i] == looked_up[i] &&
            filter.has(rows[i])) {
          chunk.evicted_in_use.push_back(rows[i]);
        }
      }
    });
    std::vector<int64_t> again;
    for (Chunk& chunk : chunks_) {
      for (const uint32_t row : chunk.evicted_in_use) {
        index_.marked_rows_.insert(row);
        marked_.push_back(row);
        again.push_back(index_.partition_of_row(row));
      }
      chunk.evicted_in_use.clear();
    }
    std::sort(again.begin(), again.end());
    again.erase(std::unique(again.begin(), again.end()), again.end());
    for (const int64_t p : again) {
      for (const uint32_t row : plan_.parts[p].evicted) {
        index_.push_victim(p, row - index_.first_row_[p]);
      }
      plan_.parts[p] = {};
    }
    return again;
  }

  void clear_marks() {
    for (const uint32_t row : marked_) {
      index_.marked_rows_.clear_around(row);
    }
    marked_.clear();
  }

  const KeyOccurrences& term_of(const Occurrence& occurrence) const {
    return *chunks_[occurrence.chunk].term;
  }

  void plan_part(int64_t p, Scratch& scratch) {
    const auto rows = static_cast<uint32_t>(index_.rows());
    PartPlanner planner(
        index_,
        p,
        plan_.update,
        /*has_kept_rows=*/!plan_.used_rows.empty(),
        plan_.parts[p],
        scratch);
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
    if (!planner.decide()) {
      may_evict_used_ = true;
      return;
    }
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
  }

  KeyIndex& index_;
  bool trusts_lookups_;
  KeyPlan plan_;
  std::vector<Chunk> chunks_;
  int64_t total_ = 0;
  int64_t unknown_ = 0;  // occurrences that must be searched
  std::vector<uint32_t> marked_;  // those of index_.marked_rows_
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
