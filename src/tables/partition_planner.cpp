// SPDX-License-Identifier: Apache-2.0
#include "src/tables/partition_planner.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
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
  // An update usually evicts about so many keys from a partition.
  constexpr size_t kPrefetched = 16;
  state_.victims.visit_lowest(kPrefetched, [&](uint16_t row) {
    index_.prefetch_use(first_row_ + row);
  });
}

KeyIndex::PartitionPlanner::~PartitionPlanner() {
  for (const uint32_t row : touched_) {
    uses_[row] = 0;
  }
  for (const uint32_t row : part_.evicted) {
    uses_[row - first_row_] = 0;
  }
}

void KeyIndex::PartitionPlanner::decide() {
  find_admitted();
  default_row_ = index_.default_row_in(partition_);
  // The row of a new default key is not among the free ones.
  const int64_t needed =
      static_cast<int64_t>(admitted_.size()) - (admits_default_ ? 1 : 0);
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

float KeyIndex::PartitionPlanner::frequency_of_used(uint32_t row) const {
  return index_.frequency_after(
      index_.frequency_of(first_row_ + row),
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

void KeyIndex::PartitionPlanner::make_room(int64_t needed) {
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

KeyIndex::PartitionPlanner::Contenders KeyIndex::PartitionPlanner::
    sort_contenders() const {
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
  std::sort(
      contenders.begin(),
      contenders.end(),
      [](const Contender& a, const Contender& b) {
        return std::tuple(a.score.frequency, !a.is_new, a.score.hash) <
            std::tuple(b.score.frequency, !b.is_new, b.score.hash);
      });
  return contenders;
}

const KeyIndex::Victim* KeyIndex::PartitionPlanner::lowest_victim(
    int64_t needed) {
  if (is_exhausted_) {
    return nullptr;
  }
  for (bool is_fresh = false;; is_fresh = true) {
    while (!state_.victims.empty()) {
      const Victim& victim = state_.victims.lowest();
      const uint16_t row = victim.row;
      const bool is_outdated =
          index_.last_update_of(first_row_ + row) != victim.score.last_update ||
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

bool KeyIndex::PartitionPlanner::collect_victims(int64_t needed) {
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
  if (candidates_.size() > 2 * static_cast<size_t>(share)) {
    keep_lowest(static_cast<size_t>(share));
  }
  state_.victims.assign(candidates_);
  return !state_.victims.empty();
}

template <class OrderOf>
void KeyIndex::PartitionPlanner::collect_candidates(
    int64_t needed,
    int64_t share,
    const OrderOf& order_of) {
  const auto is_candidate = [&](uint32_t row) {
    return (index_.last_update_of(first_row_ + row) != kUnusedRow) &
        (uses_[row] == 0) & (row != default_row_);
  };
  const auto collect = [&](uint32_t bound) {
    candidate_rows_.resize(state_.used + 1);
    size_t count = 0;
    // There are no branches, because they can't be predicted.
    for (uint32_t row = 0; row < state_.used; ++row) {
      candidate_rows_[count] = static_cast<uint16_t>(row);
      count += is_candidate(row) & (order_of(row) <= bound) ? 1 : 0;
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

}  // namespace tessera
