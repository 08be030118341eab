// SPDX-License-Identifier: Apache-2.0
#include "src/tables/partition_planner.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tessera {

namespace {

// When the victims run out, at least rows / kVictimShare new ones are collected at
// once, because the search reads the whole partition.
constexpr int64_t kVictimShare = 16;

}  // namespace

KeyIndex::PartitionPlanner::PartitionPlanner(
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

KeyIndex::PartitionPlanner::~PartitionPlanner() {
  for (const uint32_t row : touched_) {
    uses_[row] = 0;
  }
  for (const uint32_t row : part_.evicted) {
    uses_[row - first_row_] = 0;
  }
}

bool KeyIndex::PartitionPlanner::decide() {
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
    if (uses_[row] != Scratch::kEvicted) {
      part_.used.push_back({first_row_ + row, frequency_of_used(row)});
    }
  }
  return true;
}

float KeyIndex::PartitionPlanner::frequency_of_used(uint32_t row) const {
  return index_.frequency_.size() == 0
      ? 0.0F
      : index_.frequency_after(
            index_.frequency_[first_row_ + row],
            /*is_new=*/false,
            uses_[row],
            update_);
}

void KeyIndex::PartitionPlanner::find_admitted() {
  // Different keys have different hashes, so this groups the keys.
  std::sort(
      missing_.begin(), missing_.end(), [](const Missing& a, const Missing& b) {
        return a.hash < b.hash;
      });
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

bool KeyIndex::PartitionPlanner::make_room(int64_t needed) {
  if (needed <= 0) {
    return true;
  }
  const auto* old_only =
      std::get_if<eviction::OlderThan>(&index_.config_.eviction);
  // Contenders are sorted when they are first needed. Without frequencies, a key that
  // does not occur always has a lower score than those that do.
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
          ? int64_t{update_} - victim->score.last_update > old_only->updates
          : index_.frequency_.size() == 0 ||
              victim->score < next_contender().score;
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

std::vector<KeyIndex::PartitionPlanner::Contender> KeyIndex::PartitionPlanner::
    sort_contenders() const {
  std::vector<Contender> contenders;
  contenders.reserve(admitted_.size() + touched_.size());
  for (size_t i = 0; i < admitted_.size(); ++i) {
    if (!index_.is_default(admitted_[i].key)) {
      contenders.push_back(
          {admitted_[i].score, true, static_cast<uint32_t>(i)});
    }
  }
  for (const uint32_t row : touched_) {
    const int64_t key = index_.key_of(partition_, row);
    if (!index_.is_default(key)) {
      const EvictionScore score{
          .frequency = frequency_of_used(row),
          .last_update = update_,
          .hash = hash_of_key(key)};
      contenders.push_back({score, false, row});
    }
  }
  std::sort(
      contenders.begin(),
      contenders.end(),
      [](const Contender& a, const Contender& b) { return a.score < b.score; });
  return contenders;
}

const KeyIndex::Victim* KeyIndex::PartitionPlanner::lowest_victim(
    int64_t needed) {
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

bool KeyIndex::PartitionPlanner::is_current(const Victim& victim) const {
  if (occurs(victim.row)) {
    return false;
  }
  const Chunk& chunk = index_.chunks_of(
      partition_)[index_.chunk_of_row_[first_row_ + victim.row]];
  for (uint32_t i = 0; i < chunk.size; ++i) {
    if (chunk.rows[i] == victim.row) {
      return index_.score_of(
                 partition_, victim.row, hash_of_key(chunk.keys[i])) ==
          victim.score;
    }
  }
  return false;
}

bool KeyIndex::PartitionPlanner::collect_victims(int64_t needed) {
  const Chunk* chunks = index_.chunks_of(partition_);
  candidates_.clear();
  for (int64_t b = 0; b < index_.chunks_per_partition_; ++b) {
    for (uint32_t i = 0; i < chunks[b].size; ++i) {
      const uint16_t row = chunks[b].rows[i];
      if (!occurs(row)) {
        candidates_.push_back(
            {index_.score_of(partition_, row, /*hash=*/0), row});
      }
    }
  }
  const auto share =
      static_cast<size_t>(std::max<int64_t>(needed, rows_ / kVictimShare));
  keep_lowest(share);
  for (Victim& victim : candidates_) {
    victim.score.hash = hash_of_key(index_.key_of(partition_, victim.row));
  }
  keep_lowest(share);
  state_.victims.assign(candidates_);
  return !candidates_.empty();
}

void KeyIndex::PartitionPlanner::keep_lowest(size_t count) {
  const auto is_lower = [](const Victim& a, const Victim& b) {
    return a.score < b.score;
  };
  if (count >= candidates_.size()) {
    return;
  }
  const auto last =
      candidates_.begin() + static_cast<std::ptrdiff_t>(count) - 1;
  std::nth_element(candidates_.begin(), last, candidates_.end(), is_lower);
  const EvictionScore bound = last->score;
  candidates_.erase(
      std::partition(
          last + 1,
          candidates_.end(),
          [&](const Victim& victim) { return victim.score == bound; }),
      candidates_.end());
}

void KeyIndex::PartitionPlanner::give_rows() {
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

}  // namespace tessera
