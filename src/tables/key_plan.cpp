// SPDX-License-Identifier: Apache-2.0
// Decides which keys an update admits and evicts.
#include "src/tables/key_plan.h"
#include "src/common/buffer.h"
#include "src/common/parallel.h"
#include "src/tables/key_index.h"

#include <bit>
#include <cstddef>
#include <tuple>

namespace tessera {

namespace {

// When the victims run out, at least rows / kVictimShare new ones are collected at
// once, because the search reads the whole partition.
constexpr int64_t kVictimShare = 16;

// A set of rows that is fast to query if most of the queried rows are not in it.
class RowFilter {
 public:
  explicit RowFilter(std::vector<uint32_t> rows) : rows_(std::move(rows)) {
    std::ranges::sort(rows_);
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

}  // namespace

// An occurrence of a key without a row.
struct KeyIndex::Missing {
  uint64_t hash;
  int64_t key;
  uint32_t count;
  uint32_t occurrence;  // over all terms
  uint32_t row;
};

// A new key that passes the admission. make_room() may still reject it.
struct KeyIndex::Admitted {
  int64_t key;
  EvictionScore score;
  size_t begin;  // in Scratch::missing
  size_t end;
  bool is_rejected = false;
};

// The occurrences of a row.
struct KeyIndex::RowUses {
  uint32_t row;
  uint32_t count;
};

// Memory that one thread uses for one partition after the other.
struct KeyIndex::Scratch {
  // Marks a row that this update evicts.
  static constexpr uint32_t kEvicted = std::numeric_limits<uint32_t>::max();

  // The occurrences of each row of the partition, or kEvicted. All are 0 between two
  // partitions.
  std::vector<uint32_t> uses;
  std::vector<uint32_t> touched;  // rows that occur
  std::vector<Missing> missing;
  std::vector<Admitted> admitted;
  std::vector<Victim> candidates;  // for eviction
  std::vector<uint16_t> candidate_rows;
};

// Decides which keys of one partition an update admits and evicts.
class KeyIndex::PartitionPlanner {
 public:
  // `known`: occurrences that are not passed to add(). The rows are those of the index.
  PartitionPlanner(
      KeyIndex& index,
      int64_t partition,
      uint32_t update,
      c10::ArrayRef<RowUses> known,
      KeyPlan::Part& part,
      Scratch& scratch)
      : index_(index),
        partition_(partition),
        state_(index.partition_[partition]),
        first_row_(index.first_row_[partition]),
        rows_(index.first_row_[partition + 1] - first_row_),
        update_(update),
        part_(part),
        uses_(scratch.uses),
        touched_(scratch.touched),
        missing_(scratch.missing),
        admitted_(scratch.admitted),
        candidates_(scratch.candidates),
        candidate_rows_(scratch.candidate_rows) {
    if (uses_.size() < rows_) {
      uses_.resize(rows_, 0);
    }
    touched_.clear();
    missing_.clear();
    admitted_.clear();
    for (const RowUses& uses : known) {
      add_uses(uses.row - first_row_, uses.count);
    }
    // An update usually evicts about this many keys from a partition.
    constexpr size_t kPrefetched = 16;
    state_.victims.visit_lowest(kPrefetched, [&](uint16_t row) {
      index_.prefetch_use(first_row_ + row);
    });
  }

  ~PartitionPlanner() {
    for (const uint32_t row : touched_) {
      uses_[row] = 0;
    }
    for (const uint32_t row : part_.evicted) {
      uses_[row - first_row_] = 0;
    }
  }

  PartitionPlanner(const PartitionPlanner&) = delete;
  PartitionPlanner& operator=(const PartitionPlanner&) = delete;

  // Adds `count` occurrences of a key. Returns the key's row, or kNoRow if it has none.
  // In that case, the occurrences are dropped if it had a row when it was looked up.
  // Otherwise, decide() may give it a row, and visit_new() then passes `occurrence` and
  // this row.
  uint32_t add(
      int64_t key,
      uint64_t hash,
      uint32_t count,
      bool had_row,
      uint32_t occurrence) {
    const uint32_t row = index_.find_in(partition_, key, hash);
    if (row != kNoRow) {
      add_uses(row, count);
      return first_row_ + row;
    }
    if (had_row) {
      part_.dropped += count;
      return kNoRow;
    }
    add_missing(key, hash, count, occurrence);
    return kNoRow;
  }

  // Like add(), for a key that has no row and had none when it was looked up.
  void add_missing(
      int64_t key,
      uint64_t hash,
      uint32_t count,
      uint32_t occurrence) {
    missing_.push_back({hash, key, count, occurrence, kNoRow});
  }

  // Decides which keys are admitted and evicted, and gives rows to new keys.
  void decide() {
    find_admitted();
    default_row_ = index_.default_row_in(partition_);
    // The row of a new default key is not among the free ones.
    const int64_t needed = std::ssize(admitted_) - (admits_default_ ? 1 : 0);
    make_room(needed - index_.free_rows(partition_));
    give_rows();
    part_.used.reserve(touched_.size());
    for (const uint32_t row : touched_) {
      if (uses_[row] != Scratch::kEvicted) {
        const float frequency = frequency_of_used(row);
        part_.used.push_back({first_row_ + row, frequency});
        // The keys that occur are no victims now, but some may be again in the next update.
        const EvictionScore score{frequency, update_, /*hash=*/0};
        if (index_.has_frequencies() && state_.victims.includes(score)) {
          const uint64_t hash = hash_of_key(index_.key_of(partition_, row));
          index_.push_victim(
              partition_,
              {{frequency, update_, hash}, static_cast<uint16_t>(row)});
        }
      }
    }
  }

  bool is_evicted(uint32_t row) const {
    return uses_[row - first_row_] == Scratch::kEvicted;
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
    EvictionScore score;
    bool is_new;
    uint32_t index;  // of admitted_, or a row
  };

  void add_uses(uint32_t row, uint32_t count) {
    if (uses_[row] == 0) {
      touched_.push_back(row);
    }
    uses_[row] = saturated_sum(uses_[row], count);
  }

  float frequency_of_used(uint32_t row) const {
    return index_.frequency_after(
        index_.frequency_of(first_row_ + row),
        /*is_new=*/false,
        uses_[row],
        update_);
  }

  void find_admitted() {
    // Different keys have different hashes, so this groups the keys.
    std::ranges::sort(missing_, {}, &Missing::hash);
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
        const EvictionScore score{
            .frequency = index_.frequency_after(0.0F, true, count, update_),
            .last_update = update_,
            .hash = hash};
        admitted_.push_back(
            {.key = key, .score = score, .begin = begin, .end = end});
      }
      begin = end;
    }
  }

  // Makes room for `needed` more keys. Evicts the keys with the lowest scores, or
  // rejects admitted keys if their scores are not higher. The default key always stays.
  void make_room(int64_t needed) {
    if (needed <= 0) {
      return;
    }
    const auto* old_only =
        std::get_if<eviction::OlderThan>(&index_.config_.eviction);
    // Contenders are sorted when they are first needed.
    Contenders contenders;
    size_t next = 0;
    const auto next_contender = [&]() -> const Contender& {
      if (contenders.empty()) {
        contenders = sort_contenders();
      }
      return contenders[next];
    };
    const auto goes_first = [&](const EvictionScore& victim) {
      if (old_only != nullptr) {
        return int64_t{update_} - victim.last_update > old_only->updates;
      }
      if (!index_.has_frequencies()) {
        return victim.last_update < update_;
      }
      const Contender& contender = next_contender();
      return contender.is_new ? victim.frequency < contender.score.frequency
                              : victim < contender.score;
    };
    part_.evicted.reserve(needed);
    for (; needed > 0; --needed) {
      const Victim* victim = lowest_victim(needed);
      if (victim != nullptr && goes_first(victim->score)) {
        evict(victim->row);
        state_.victims.pop();
        continue;
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

  using Contenders = c10::SmallVector<Contender, 32>;
  Contenders sort_contenders() const {
    Contenders contenders;
    contenders.reserve(admitted_.size() + touched_.size());
    for (size_t i = 0; i < admitted_.size(); ++i) {
      if (!index_.is_default(admitted_[i].key)) {
        contenders.push_back(
            {admitted_[i].score, true, static_cast<uint32_t>(i)});
      }
    }
    // Without frequencies, the keys that occur have the highest score, and keep their rows.
    for (size_t i = 0; i < touched_.size() && index_.has_frequencies(); ++i) {
      const uint32_t row = touched_[i];
      const int64_t key = index_.key_of(partition_, row);
      if (!index_.is_default(key)) {
        const EvictionScore score{
            .frequency = frequency_of_used(row),
            .last_update = update_,
            .hash = hash_of_key(key)};
        contenders.push_back({score, false, row});
      }
    }
    // If scores are equal, new keys come first.
    std::ranges::sort(contenders, [](const Contender& a, const Contender& b) {
      return std::tuple(a.score.frequency, !a.is_new, a.score.hash) <
          std::tuple(b.score.frequency, !b.is_new, b.score.hash);
    });
    return contenders;
  }

  void evict(uint32_t row) {
    uses_[row] = Scratch::kEvicted;
    part_.evicted.push_back(first_row_ + row);
  }

  bool occurs(uint32_t row) const {
    return uses_[row] != 0 || row == default_row_;
  }

  // Returns the key with the lowest score among those that do not occur in this update,
  // or nullptr if there is none. At most `needed` keys will be requested, this one
  // included.
  const Victim* lowest_victim(int64_t needed) {
    if (is_exhausted_) {
      return nullptr;
    }
    for (bool is_fresh = false;; is_fresh = true) {
      while (!state_.victims.empty()) {
        const Victim& victim = state_.victims.lowest();
        const uint16_t row = victim.row;
        const bool is_outdated = index_.last_update_of(first_row_ + row) !=
                victim.score.last_update ||
            index_.frequency_of(first_row_ + row) != victim.score.frequency;
        if (!is_outdated && !occurs(row)) {
          return &victim;
        }
        state_.victims.pop();
        if (!occurs(row)) {
          index_.push_victim(partition_, row);
        }
      }
      if (is_fresh || !collect_victims(needed)) {
        is_exhausted_ = true;
        return nullptr;
      }
    }
  }

  // Reads the scores of all keys that do not occur in this update, and keeps the lowest
  // ones. Returns false if there are no such keys. Computes the hashes, the last
  // criterion of a score, only for the few keys that are left by then.
  bool collect_victims(int64_t needed) {
    const auto share = std::max<int64_t>(needed, rows_ / kVictimShare);
    if (index_.has_frequencies()) {
      collect_candidates(needed, share, [&](uint32_t row) {
        // As whole numbers, the bits of floats have the order of the floats.
        const auto bits =
            std::bit_cast<uint32_t>(index_.frequency_of(first_row_ + row));
        return (bits >> 31) != 0 ? ~bits : bits | 0x80000000U;
      });
    } else {
      collect_candidates(needed, share, [&](uint32_t row) {
        return index_.last_update_of(first_row_ + row);
      });
    }
    candidates_.clear();
    constexpr size_t kAhead = 8;
    for (size_t i = 0; i < candidate_rows_.size(); ++i) {
      if (i + kAhead < candidate_rows_.size()) {
        kernels::prefetch_line(
            index_.chunks_of(partition_) +
            index_.chunk_of_row_[first_row_ + candidate_rows_[i + kAhead]]);
      }
      const uint16_t row = candidate_rows_[i];
      const uint64_t hash = hash_of_key(index_.key_of(partition_, row));
      candidates_.push_back({index_.score_of(partition_, row, hash), row});
    }
    // Many keys may have the same score.
    if (std::ssize(candidates_) > 2 * share) {
      keep_lowest(share);
    }
    state_.victims.assign(candidates_);
    return !state_.victims.empty();
  }

  // Sets candidate_rows_ to about `share` rows of the lowest scores, and at least `needed`
  // of them if there are so many. order_of(row) is the first criterion of the score.
  template <class OrderOf>
  void collect_candidates(
      int64_t needed,
      int64_t share,
      const OrderOf& order_of) {
    const auto is_candidate = [&](uint32_t row) {
      const bool is_used =
          index_.last_update_of(first_row_ + row) != kUnusedRow;
      return is_used & (uses_[row] == 0) & (row != default_row_);
    };
    const auto collect = [&](uint32_t bound) {
      candidate_rows_.resize(state_.used + 1);
      size_t count = 0;
      // There are no branches, because they can't be predicted.
      for (uint32_t row = 0; row < state_.used; ++row) {
        candidate_rows_[count] = static_cast<uint16_t>(row);
        const bool may_go = is_candidate(row);
        const bool is_first = order_of(row) <= bound;
        count += (may_go & is_first) ? 1 : 0;
      }
      candidate_rows_.resize(count);
      return static_cast<int64_t>(count);
    };
    // With a bound from a sample of the rows, about `share` rows are candidates.
    constexpr uint32_t kSample = 512;
    c10::SmallVector<uint32_t, kSample> sample;
    for (uint32_t i = 0; i < kSample && state_.used > 0; ++i) {
      const uint32_t row = i * state_.used / kSample;
      if (is_candidate(row)) {
        sample.push_back(order_of(row));
      }
    }
    const auto place = static_cast<size_t>(share) * sample.size() / rows_;
    if (place < sample.size()) {
      const auto bound = sample.begin() + static_cast<std::ptrdiff_t>(place);
      std::nth_element(sample.begin(), bound, sample.end());
      if (collect(*bound) >= needed) {
        return;
      }
    }
    collect(std::numeric_limits<uint32_t>::max());
  }

  // Keeps the `count` candidates with the lowest scores, and all others whose score
  // equals the highest of these. There must be more than `count`.
  void keep_lowest(int64_t count) {
    const auto last = candidates_.begin() + count - 1;
    std::ranges::nth_element(candidates_, last, {}, &Victim::score);
    const auto equal_end = std::partition(
        last + 1,
        candidates_.end(),
        [&, bound = last->score](const Victim& victim) {
          return victim.score == bound;
        });
    candidates_.erase(equal_end, candidates_.end());
  }

  // Gives rows to the admitted keys, in the order of their hashes.
  void give_rows() {
    part_.inserted.reserve(admitted_.size());
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
           .frequency = admitted.score.frequency});
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
  std::vector<uint32_t>& uses_;  // references into Scratch
  std::vector<uint32_t>& touched_;
  std::vector<Missing>& missing_;
  std::vector<Admitted>& admitted_;
  std::vector<Victim>& candidates_;
  std::vector<uint16_t>& candidate_rows_;
  uint32_t default_row_ = kNoRow;  // is never evicted
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
             .limit = is_trusted ? static_cast<uint32_t>(index.rows()) : 0,
             .knows_missing = term.looked_up != nullptr &&
                 term.insertions == index.insertions_});
      }
      total_ += term.size;
    }
  }

  ~Planner() {
    clear_marks();
  }
  Planner(const Planner&) = delete;
  Planner& operator=(const Planner&) = delete;

  // Returns nothing if kMaxRounds rounds were not enough. Then the lookups must not be
  // trusted.
  std::optional<KeyPlan> run() {
    const int64_t count = index_.owned_.count();
    plan_.parts.resize(count);
    known_uses_.resize(count);
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
    // Few keys are evicted, and hardly any of them occurs. To look for evicted rows among
    // the rows that lookups have found takes a tenth of the time of marking all those rows.
    for (int round = 0; !partitions.empty(); ++round) {
      if (round == kMaxRounds) {
        return std::nullopt;
      }
      plan_parts(partitions);
      partitions = count_known_uses(partitions);
    }
    drop_evicted_uses();
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
    uint32_t limit;  // rows of the lookup below this are trusted; 0: none
    bool knows_missing;  // keys that the lookup has not found need no search
    int64_t unknown = 0;  // occurrences that must be searched
    std::vector<uint32_t> found_rows = {};  // see count_known_uses()
  };
  struct Occurrence {
    uint64_t hash;
    uint32_t chunk;
    uint32_t index;  // in the term
  };

  // Frequencies exclude terms with counts, because KeyIndex::record_use() counts each
  // occurrence of a trusted term once.
  bool trusts(const KeyOccurrences& term) const {
    return trusts_lookups_ && term.looked_up != nullptr && term.version &&
        (term.counts == nullptr || !index_.has_frequencies()) &&
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
          marked_.push_back(row);
          index_.marked_rows_.insert(row);
        }
      }
    }
  }

  // Gives each occurrence the row that its lookup found, or kNoRow if it must be searched.
  void take_known_rows() {
    mark_stale_rows();
    run_tasks(std::ssize(chunks_), total_ * 8, [&](int64_t c) {
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
    const auto chunks = std::ssize(chunks_);
    std::vector<int64_t> next(chunks * count, 0);
    const auto visit_unknown = [&](int64_t c, const auto& visit) {
      const Chunk& chunk = chunks_[c];
      const auto visit_at = [&](int64_t i) {
        visit(i, hash_of_key(chunk.term->keys[i]));
      };
      visit_equal(chunk.term->rows, chunk.begin, chunk.end, kNoRow, visit_at);
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
    const auto count = std::ssize(partitions);
    // Several partitions share the memory of a task.
    const int64_t partitions_per_task =
        std::max<int64_t>(1, count / kPartitionTasks);
    run_ranges(
        count,
        partitions_per_task,
        unknown_ * kFindBytes * 2,
        [&](int64_t begin, int64_t end) {
          // Each thread keeps its own, because zeros for all rows of a partition would
          // take longer than a plan of a few keys.
          thread_local Scratch scratch;
          for (int64_t i = begin; i < end; ++i) {
            plan_part(partitions[i], scratch);
          }
        });
  }

  // Calls visit(chunk, i) for each occurrence that still has the row of its lookup, if this
  // row is in `rows` and the lookup is trusted. Chunks are visited in parallel.
  template <class Visit>
  void visit_known(std::vector<uint32_t> rows, const Visit& visit) {
    if (rows.empty()) {
      return;
    }
    const RowFilter filter(std::move(rows));
    run_tasks(std::ssize(chunks_), total_ * 8, [&](int64_t c) {
      Chunk& chunk = chunks_[c];
      const uint32_t* looked_up = chunk.term->looked_up;
      const uint32_t* row = chunk.term->rows;
      for (int64_t i = chunk.begin; i < chunk.end && chunk.limit > 0; ++i) {
        // A new key may have got the row of an evicted one.
        if (filter.may_have(row[i]) && row[i] == looked_up[i] &&
            filter.has(row[i])) {
          visit(chunk, i);
        }
      }
    });
  }

  // Returns the rows whose occurrences the parts of the plan must know: the rows that
  // they evict, and if the index has frequencies, the rows that they have found by a
  // search.
  std::vector<uint32_t> rows_to_count(const std::vector<int64_t>& partitions) {
    std::vector<uint32_t> rows;
    const auto add = [&](uint32_t row) {
      if (!index_.marked_rows_.has(row)) {
        rows.push_back(row);
      }
    };
    for (const int64_t p : partitions) {
      for (const uint32_t row : plan_.parts[p].evicted) {
        add(row);
      }
      for (const KeyPlan::Used& used : plan_.parts[p].used) {
        if (index_.has_frequencies()) {
          add(used.row);
        }
      }
    }
    return rows;
  }

  // Counts the occurrences of the rows of rows_to_count() that no search has found. Returns
  // the partitions that have such rows, and must be planned again.
  std::vector<int64_t> count_known_uses(
      const std::vector<int64_t>& partitions) {
    if (plan_.used_rows.empty()) {
      return {};
    }
    visit_known(rows_to_count(partitions), [](Chunk& chunk, int64_t i) {
      chunk.found_rows.push_back(chunk.term->rows[i]);
    });
    std::vector<uint32_t> found;
    for (Chunk& chunk : chunks_) {
      found.insert(
          found.end(), chunk.found_rows.begin(), chunk.found_rows.end());
      chunk.found_rows.clear();
    }
    std::ranges::sort(found);
    const std::vector<uint32_t> searched_rows =
        found.empty() ? std::vector<uint32_t>() : rows_found_twice();
    std::vector<int64_t> again;
    for (auto row = found.begin(); row != found.end();) {
      const auto end = std::upper_bound(row, found.end(), *row);
      const int64_t p = index_.partition_of_row(*row);
      const int64_t searched =
          std::ssize(std::ranges::equal_range(searched_rows, *row));
      marked_.push_back(*row);
      index_.marked_rows_.insert(*row);
      if (end - row > searched) {
        known_uses_[p].push_back(
            {*row, static_cast<uint32_t>(end - row - searched)});
        again.push_back(p);
      }
      row = end;
    }
    again.erase(std::unique(again.begin(), again.end()), again.end());
    for (const int64_t p : again) {
      for (const uint32_t row : plan_.parts[p].evicted) {
        index_.push_victim(p, row - index_.first_row_[p]);
      }
      plan_.parts[p] = {};
    }
    return again;
  }

  // Returns the rows that both a lookup and a search have found, sorted, once for each
  // occurrence.
  std::vector<uint32_t> rows_found_twice() const {
    std::vector<uint32_t> rows;
    for (const Occurrence& at : occurrences_) {
      const KeyOccurrences& term = term_of(at);
      const uint32_t row = term.rows[at.index];
      if (chunks_[at.chunk].limit > 0 && row != kNoRow &&
          term.looked_up[at.index] == row) {
        rows.push_back(row);
      }
    }
    std::ranges::sort(rows);
    return rows;
  }

  // Sets the row of each occurrence whose key the update evicts to kNoRow.
  void drop_evicted_uses() {
    std::vector<uint32_t> rows;
    for (size_t i = 0; i < plan_.parts.size() && !marked_.empty(); ++i) {
      for (const uint32_t row : plan_.parts[i].evicted) {
        if (index_.marked_rows_.has(row)) {
          rows.push_back(row);
        }
      }
    }
    visit_known(std::move(rows), [](Chunk& chunk, int64_t i) {
      chunk.term->rows[i] = kNoRow;
    });
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
  uint32_t& row_of(const Occurrence& occurrence) const {
    return term_of(occurrence).rows[occurrence.index];
  }

  void plan_part(int64_t p, Scratch& scratch) {
    const auto rows = static_cast<uint32_t>(index_.rows());
    PartitionPlanner planner(
        index_, p, plan_.update, known_uses_[p], plan_.parts[p], scratch);
    for (int64_t i = begin_[p]; i < begin_[p + 1]; ++i) {
      const Occurrence& at = occurrences_[i];
      const KeyOccurrences& term = term_of(at);
      const uint32_t looked_up =
          term.looked_up == nullptr ? kNoRow : term.looked_up[at.index];
      const uint32_t count = term.counts == nullptr ? 1 : term.counts[at.index];
      if (chunks_[at.chunk].knows_missing && looked_up >= rows) {
        row_of(at) = kNoRow;  // an earlier round may have set it
        planner.add_missing(
            term.keys[at.index], at.hash, count, static_cast<uint32_t>(i));
        continue;
      }
      // Few keys belong to a partition, so keys of the next partition are prefetched, too.
      if (i + kFindAhead < begin_.back()) {
        const uint64_t hash = occurrences_[i + kFindAhead].hash;
        kernels::prefetch_line(
            index_.chunks_of(index_.owned_partition_of(hash)) +
            index_.home_of(hash));
      }
      row_of(at) = planner.add(
          term.keys[at.index],
          at.hash,
          count,
          looked_up < rows,
          static_cast<uint32_t>(i));
    }
    planner.decide();
    if (planner.has_evicted_touched()) {
      for (int64_t i = begin_[p]; i < begin_[p + 1]; ++i) {
        uint32_t& row = row_of(occurrences_[i]);
        if (row != kNoRow && planner.is_evicted(row)) {
          row = kNoRow;
        }
      }
    }
    planner.visit_new(
        [&](uint32_t i, uint32_t row) { row_of(occurrences_[i]) = row; });
  }

  KeyIndex& index_;
  bool trusts_lookups_;
  KeyPlan plan_;
  std::vector<Chunk> chunks_;
  int64_t total_ = 0;
  int64_t unknown_ = 0;  // occurrences that must be searched
  std::vector<uint32_t> marked_;  // the rows in index_.marked_rows_
  // Occurrences that are not searched, but that the parts of the plan must know.
  std::vector<std::vector<RowUses>> known_uses_;  // [owned partitions]
  std::vector<int64_t> begin_;  // [partitions + 1], in occurrences_
  Buffer<Occurrence> occurrences_;
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
