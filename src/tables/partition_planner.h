// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/key_index.h"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tessera {

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
      Scratch& scratch);
  ~PartitionPlanner();
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
  void decide();

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

  float frequency_of_used(uint32_t row) const;

  void find_admitted();

  // Makes room for `needed` more keys. Evicts the keys with the lowest scores, or
  // rejects admitted keys if theirs are not higher. The default key always stays.
  void make_room(int64_t needed);

  using Contenders = c10::SmallVector<Contender, 32>;
  Contenders sort_contenders() const;

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
  const Victim* lowest_victim(int64_t needed);

  // Reads the scores of all keys that do not occur in this update, and keeps the lowest
  // ones. Returns false if there are no such keys. Computes the hashes, the last
  // criterion of a score, only for the few keys that are left by then.
  bool collect_victims(int64_t needed);

  // Sets candidate_rows_ to about `share` rows of the lowest scores, and at least `needed`
  // of them if there are so many. order_of(row) is the first criterion of the score.
  template <class OrderOf>
  void collect_candidates(
      int64_t needed,
      int64_t share,
      const OrderOf& order_of);

  // Keeps the `count` candidates with the lowest scores, and all others whose score
  // equals the highest of these.
  void keep_lowest(size_t count);

  // Gives rows to the admitted keys, in the order of their hashes.
  void give_rows();

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

}  // namespace tessera
