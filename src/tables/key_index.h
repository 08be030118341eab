// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/kernels/prefetch.h"
#include "src/tables/key_partitions.h"
#include "src/tables/key_plan.h"
#include "src/tables/reserved_memory.h"

#include <tessera/tables/dynamic_keys.h>

#include <c10/util/ArrayRef.h>

#include <algorithm>
#include <bit>
#include <compare>
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// The keys of a key table and the row of each. It decides about admission and
/// eviction.
///
/// Each partition is a hash table with open addressing, whose chunks are cache lines. It
/// never grows, because it has room for all rows of the partition. What the index decides
/// depends on the occurrences of each update, but not on their order or on the number of
/// threads.
///
/// find() and would_admit() may run on several threads at the same time, and at the
/// same time as plan(). The functions that change the index must run alone.
class KeyIndex {
 public:
  /// `name` is the name of the table. `random_key` is its random_key(), which
  /// admission::WithProbability uses. `owned` are partitions of
  /// KeyPartitions(config.capacity).
  /// Errors:  c10::Error if the system can't reserve the memory.
  KeyIndex(
      const DynamicKeys& config,
      std::string name,
      uint64_t random_key,
      PartitionRange owned);
  KeyIndex(const KeyIndex& other);
  KeyIndex(KeyIndex&&) = default;
  KeyIndex& operator=(KeyIndex&&) = default;

  const KeyPartitions& partitions() const {
    return partitions_;
  }
  const DynamicKeys& config() const {
    return config_;
  }
  /// The partitions whose keys this index has. Only find(), is_default(), owns(), check()
  /// and assign() take keys of other partitions, too.
  const PartitionRange& owned() const {
    return owned_;
  }
  bool is_default(int64_t key) const {
    return config_.default_key == key;
  }
  /// The row of the default key. kNoRow: it has none here.
  uint32_t default_row() const;
  bool owns(int64_t key) const {
    return owned_.has(partitions_.of_hash(hash_of_key(key)));
  }
  /// The number of rows of the owned partitions.
  int64_t rows() const {
    return first_row_.back();
  }

  /// Writes the row of each key, or kNoRow. Returns the number of keys without a row.
  int64_t find(const int64_t* keys, int64_t size, uint32_t* rows) const;

  /// Returns true if the update `update`, in which the unknown `key` occurs `count`
  /// times, would admit it. Its partition may still have no room.
  bool would_admit(int64_t key, uint32_t count, int64_t update) const;

  /// Decides which keys get and lose a row in the update with the number `update`, which
  /// is 1 for the first one. The default key always gets a row, and never loses it.
  /// Nothing changes before apply().
  KeyPlan plan(c10::ArrayRef<KeyOccurrences> terms, int64_t update);

  /// Records that the key of `row` has occurred `count` times in the update `update`,
  /// unless apply() has recorded it. `count` only matters under LeastFrequentlyUsed.
  /// Threads may record different rows.
  void record_use(uint32_t row, uint32_t count, uint32_t update) {
    uint32_t* score = scores_.data() + row * score_size_;
    if (has_frequencies() && score[0] != update) {
      score[1] = std::bit_cast<uint32_t>(frequency_after(
          std::bit_cast<float>(score[1]), /*is_new=*/false, count, update));
    }
    score[0] = update;
  }
  /// Prefetches what record_use() writes.
  void prefetch_use(uint32_t row) const {
    kernels::prefetch_line(scores_.data() + row * score_size_);
  }

  /// Carries out a plan. Nothing else may have changed since plan().
  void apply(const KeyPlan& plan);

  /// Removes the keys whose last update has a smaller number than `update`, except the
  /// default key, and returns their number.
  int64_t evict_before(int64_t update);

  /// The key of a row, or nullopt if the row has none.
  std::optional<int64_t> key_of_row(uint32_t row) const;
  /// Keys that have lost their rows, by partition. Some may have got another row since
  /// then.
  using LostKeys = std::vector<std::vector<int64_t>>;
  /// Returns a list to which this index, but no copy of it, adds keys that lose their rows,
  /// as long as the caller keeps the list. assign() adds no keys.
  std::shared_ptr<LostKeys> collect_lost_keys();

  /// The number of keys.
  int64_t size() const;
  /// Increases when keys lose their rows. While it stays the same, the rows that find()
  /// has returned still belong to their keys.
  uint64_t version() const {
    return version_;
  }
  /// Increases when keys get rows. Until then, keys that find() has not found have no row.
  uint64_t insertions() const {
    return insertions_;
  }
  const KeyCounts& counts() const {
    return counts_;
  }
  void set_random_key(uint64_t random_key) {
    random_key_ = random_key;
  }
  void set_counts(const KeyCounts& counts) {
    counts_ = counts;
  }
  /// Counts more occurrences in KeyCounts::dropped.
  void count_dropped(int64_t count) {
    counts_.dropped += count;
  }
  /// Calls visit(first, count) with the rows of each owned partition that have ever had a
  /// key. Those whose keys were evicted are among them.
  template <class Visit>
  void visit_used_rows(const Visit& visit) const {
    for (int64_t p = 0; p < owned_.count(); ++p) {
      visit(int64_t{first_row_[p]}, int64_t{partition_[p].used});
    }
  }
  /// The bytes that a full index takes, with the sketch, but without the rows and their
  /// slots.
  int64_t bytes_at_capacity() const;

  /// Calls visit(entry) for each key of a partition. 0 is the first owned partition.
  template <class Visit>
  void visit_entries(int64_t partition, const Visit& visit) const {
    const int64_t chunks =
        partition_[partition].used > 0 ? chunks_per_partition_ : 0;
    for (int64_t c = 0; c < chunks; ++c) {
      const Chunk& chunk = chunks_of(partition)[c];
      for (uint32_t i = 0; i < chunk.size; ++i) {
        const uint32_t row = first_row_[partition] + chunk.rows[i];
        visit(KeyEntry{
            .key = chunk.keys[i],
            .row = row,
            .last_update = last_update_of(row),
            .frequency = frequency_of(row)});
      }
    }
  }
  /// All keys of the owned partitions, by partition.
  std::vector<KeyEntry> entries() const;
  /// All keys, in ascending order.
  std::vector<KeyEntry> sorted_entries() const;
  /// The counters of the owned partitions. They are empty unless the admission is
  /// AfterOccurrences. The counters of all partitions, in order, are the sketch of the
  /// table, whose layout depends on the config alone.
  c10::ArrayRef<uint8_t> sketch() const;
  /// The sketch of the table, with zeros for partitions that are not owned.
  std::vector<uint8_t> table_sketch() const;
  /// The number of counters of the table's sketch.
  int64_t sketch_size() const;

  /// Refuses entries that assign() can't take. `sketch` is that of the whole table. Returns
  /// the hash of each entry with its position, by partition.
  /// Errors:  c10::ValueError beginning with `where` for a duplicate key, the padding key,
  ///          more keys than a partition can hold, or a sketch of another size.
  std::vector<std::pair<uint64_t, size_t>> check(
      const std::vector<KeyEntry>& entries,
      const std::vector<uint8_t>& sketch,
      const std::string& where) const;

  /// Replaces all keys. Each entry gets a row of its partition, and entry.row is set to it.
  /// Entries of partitions that are not owned are left out, and their row is kNoRow. Of
  /// all ranks, only the owner of the first partition takes the counts.
  /// Errors:  those of check(); nothing is changed.
  void assign(
      std::vector<KeyEntry>& entries,
      const std::vector<uint8_t>& sketch,
      const KeyCounts& counts,
      const std::string& where);

 private:
  // Stands in place of the last update for a row of Partition::free.
  static constexpr uint32_t kUnusedRow = std::numeric_limits<uint32_t>::max();
  // How many keys ahead of its use a chunk is prefetched.
  static constexpr int64_t kFindAhead = 16;
  // Reading the chunk of a key takes about as long as moving this number of bytes.
  static constexpr int64_t kFindBytes = 64;

  // The sum of two counts, but at most the largest uint32 minus 1.
  static uint32_t saturated_sum(uint32_t a, uint32_t b) {
    constexpr uint32_t kMax = std::numeric_limits<uint32_t>::max() - 1;
    return b > kMax - a ? kMax : a + b;
  }

  // Keys that hash to the same place.
  struct Chunk {
    static constexpr uint32_t kSize = 6;

    int64_t keys[kSize];
    uint16_t rows[kSize];  // in the partition
    // The number of keys that found this chunk full and went on.
    uint16_t passed;
    uint8_t size;
    uint8_t unused;

    // Bit i is set if the key has position i. There are no branches, because they can't be
    // predicted.
    uint32_t matches(int64_t key) const {
      uint32_t matches = 0;
      for (uint32_t i = 0; i < kSize; ++i) {
        matches |= static_cast<uint32_t>(keys[i] == key) << i;
      }
      return matches & ((1U << size) - 1U);
    }
    // The position of the key, or kSize.
    uint32_t find(int64_t key) const {
      const uint32_t found = matches(key);
      return found == 0 ? kSize : static_cast<uint32_t>(__builtin_ctz(found));
    }
    // The position of the row's key, or `size`.
    uint32_t position_of(uint32_t local_row) const {
      return static_cast<uint32_t>(
          std::find(rows, rows + size, local_row) - rows);
    }
  };
  static_assert(sizeof(Chunk) == 64);

  // The place of a key in the order of eviction. The lowest is evicted first.
  struct EvictionScore {
    float frequency = 0.0F;
    uint32_t last_update = 0;
    uint64_t hash = 0;

    auto operator<=>(const EvictionScore&) const = default;
  };
  struct Victim {
    EvictionScore score;
    uint16_t row;
  };
  // The keys of a partition with the lowest scores. The set has all keys whose score is at
  // most a bound. Their scores in the set may be outdated, and too low then.
  class Victims {
   public:
    bool empty() const {
      return sorted_.empty() && added_.empty();
    }
    const Victim& lowest() const {
      return is_added_lowest() ? added_.front() : sorted_.back();
    }
    // Removes the lowest one.
    void pop();
    // Calls visit(row) for about the `count` lowest ones.
    template <class Visit>
    void visit_lowest(size_t count, const Visit& visit) const {
      for (size_t i = 0; i < std::min(count, sorted_.size()); ++i) {
        visit(sorted_[sorted_.size() - 1 - i].row);
      }
    }
    void assign(std::vector<Victim>& victims);
    // Returns true if the set must have a key with this score.
    bool includes(const EvictionScore& score) const {
      return !empty() && score <= bound_;
    }
    // Adds a key that the set includes. With more than `max_added` added keys, the set
    // becomes empty.
    void add(const Victim& victim, size_t max_added);
    void clear();

   private:
    bool is_added_lowest() const {
      return sorted_.empty() ||
          (!added_.empty() && added_.front().score < sorted_.back().score);
    }

    std::vector<Victim> sorted_;  // the lowest is the last
    std::vector<Victim> added_;  // a heap with the lowest on top
    EvictionScore bound_ = {};
  };
  struct Partition {
    uint32_t used = 0;  // see visit_used_rows()
    std::vector<uint16_t> free = {};  // rows below `used` without a key
    int64_t counted = 0;  // the sum of the counters of the sketch
    Victims victims = {};
  };
  // A set of rows, with one bit per row.
  class RowSet {
   public:
    RowSet() = default;
    RowSet(int64_t rows, const std::string& what)
        : words_((rows + kRowsPerWord - 1) / kRowsPerWord, what) {}

    void insert(uint32_t row) {
      words_[row / kRowsPerWord] |= uint64_t{1} << (row % kRowsPerWord);
    }
    bool has(uint32_t row) const {
      return ((words_[row / kRowsPerWord] >> (row % kRowsPerWord)) & 1) != 0;
    }
    // Removes the row and all other rows in the same word. A call for each row of the
    // set empties it, in time proportional to the number of these rows.
    void clear_around(uint32_t row) {
      words_[row / kRowsPerWord] = 0;
    }
    int64_t bytes() const {
      return words_.size() * static_cast<int64_t>(sizeof(uint64_t));
    }

   private:
    static constexpr int64_t kRowsPerWord = 64;

    ReservedArray<uint64_t> words_;
  };
  // The rows that lost their keys in one update.
  struct Evictions {
    uint64_t version;  // KeyIndex::version() before the update
    std::vector<uint32_t> rows;
  };
  struct Missing;
  struct Admitted;
  struct RowUses;
  struct Scratch;
  class PartitionPlanner;
  class Planner;
  class Finder;

  Chunk* chunks_of(int64_t partition) {
    return chunks_.data() + partition * chunks_per_partition_;
  }
  const Chunk* chunks_of(int64_t partition) const {
    return chunks_.data() + partition * chunks_per_partition_;
  }
  uint32_t home_of(uint64_t hash) const {
    return static_cast<uint32_t>(
        ((hash & 0xFFFFFFFFU) * static_cast<uint64_t>(chunks_per_partition_)) >>
        32);
  }
  uint32_t next_of(uint32_t chunk) const {
    return chunk + 1 == chunks_per_partition_ ? 0 : chunk + 1;
  }
  int64_t partition_of_row(uint32_t row) const {
    return partitions_.of_row(partitions_.first_row(owned_.begin) + row) -
        owned_.begin;
  }
  int64_t rows_of(int64_t partition) const {
    return first_row_[partition + 1] - first_row_[partition];
  }
  // The number of the hash's partition among the owned ones, as `partition` is everywhere
  // in this class. It is out of range if the partition is not owned.
  int64_t owned_partition_of(uint64_t hash) const {
    return partitions_.of_hash(hash) - owned_.begin;
  }
  bool has_frequencies() const {
    return half_life_ > 0.0;
  }
  // The number of the last update of the row's key, or kUnusedRow.
  uint32_t last_update_of(int64_t row) const {
    return scores_[row * score_size_];
  }
  float frequency_of(int64_t row) const {
    return has_frequencies()
        ? std::bit_cast<float>(scores_[row * score_size_ + 1])
        : 0.0F;
  }
  void set_score(int64_t row, uint32_t last_update, float frequency) {
    scores_[row * score_size_] = last_update;
    if (has_frequencies()) {
      scores_[row * score_size_ + 1] = std::bit_cast<uint32_t>(frequency);
    }
  }
  // Returns true if the default key belongs to the partition.
  bool has_default_key(int64_t partition) const {
    return config_.default_key &&
        owned_partition_of(hash_of_key(*config_.default_key)) == partition;
  }
  // The row of the default key in the partition. kNoRow: it has none there.
  uint32_t default_row_in(int64_t partition) const;
  // The number of rows that keys other than the default key can get without an eviction.
  // One row is reserved for the default key while it has none.
  int64_t free_rows(int64_t partition) const;
  // The key's row in the partition, or kNoRow.
  uint32_t find_in(int64_t partition, int64_t key, uint64_t hash) const;
  // Like find_in(), for a key that is not in its own chunk, `chunk`, but may be in a later
  // one.
  uint32_t find_after(int64_t partition, uint32_t chunk, int64_t key) const;
  void insert(int64_t partition, int64_t key, uint32_t local_row);
  void erase(int64_t partition, uint32_t local_row);
  int64_t key_of(int64_t partition, uint32_t local_row) const;
  EvictionScore score_of(int64_t partition, uint32_t local_row, uint64_t hash)
      const;
  // Makes the row one of Partition::free.
  void free_row(int64_t partition, uint32_t local_row);
  // log2 of the sum of 2^(update / half_life) of all occurrences, or 0 if the eviction
  // needs no frequencies.
  float frequency_after(
      float frequency,
      bool is_new,
      uint32_t count,
      uint32_t update) const;
  void apply_part(
      int64_t partition,
      const KeyPlan::Part& part,
      uint32_t update);
  // Prefetches what apply_part() reads and writes.
  void prefetch_part(int64_t partition, const KeyPlan::Part& part);
  void record_rows(const KeyPlan& plan);
  void set_last_update(c10::ArrayRef<uint32_t> rows, uint32_t update);
  // Adds the key of the row to the victims, if their set includes it.
  void push_victim(int64_t partition, uint32_t local_row);
  void push_victim(int64_t partition, const Victim& victim);
  // The counters of a key, one per row of the sketch.
  template <class Visit>
  void visit_counters(int64_t partition, uint64_t hash, const Visit& visit)
      const;
  // The counters of the partition, [kSketchRows * counters_per_row_].
  uint8_t* counters_of(int64_t partition);
  // Halves the counters of the partition while their mean is too large.
  void age_sketch(int64_t partition);
  void clear_victims();
  void remember_evictions(std::vector<uint32_t> rows);
  void forget_evictions();

  DynamicKeys config_;
  std::string name_;
  uint64_t random_key_;
  KeyPartitions partitions_;
  PartitionRange owned_;
  int64_t chunks_per_partition_;
  int64_t counters_per_row_ = 0;  // of the sketch of one partition
  double max_counted_;  // the largest Partition::counted after an update
  std::vector<uint32_t> first_row_;  // [owned partitions + 1], from 0 on
  std::vector<Partition> partition_;  // [owned partitions]
  ReservedArray<Chunk> chunks_;
  ReservedArray<uint16_t> chunk_of_row_;  // [rows()]
  double half_life_ = 0.0;  // of LeastFrequentlyUsed, else 0
  // For each row, the number of the last update of its key, and under LeastFrequentlyUsed
  // the bits of the frequency. They share a cache line, because both change together.
  ReservedArray<uint32_t> scores_;  // [rows(), score_size_]
  int64_t score_size_ = 1;
  ReservedArray<uint8_t> sketch_;
  RowSet marked_rows_;  // empty, unless plan() is running
  KeyCounts counts_;
  uint64_t version_ = 0;
  uint64_t insertions_ = 0;  // see insertions()
  // The evictions of the last versions, in their order. Keys that were looked up at
  // older versions are searched again.
  std::deque<Evictions> evictions_;
  int64_t remembered_rows_ = 0;  // in evictions_
  std::shared_ptr<LostKeys> lost_keys_;  // [owned partitions], or nullptr
  // Whether plan() has taken victims and no apply() has followed.
  bool has_open_plan_ = false;
};

}  // namespace tessera
