// SPDX-License-Identifier: Apache-2.0
// Decides which keys an update admits and evicts.
#include "src/common/buffer.h"
#include "src/common/parallel.h"
#include "src/common/visit_equal.h"
#include "src/tables/key_index.h"
#include "src/tables/partition_planner.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

namespace {

// A set of rows that is fast to query if most of the queried rows are not in it.
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

}  // namespace

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

  // KeyIndex::record_use() counts an occurrence of such a term once.
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

  // Calls visit(chunk, i) for the occurrences of the rows that their lookups have found and
  // the plan has not searched, chunks in parallel.
  template <class Visit>
  void visit_known(std::vector<uint32_t> rows, const Visit& visit) {
    if (rows.empty()) {
      return;
    }
    const RowFilter filter(std::move(rows));
    run_tasks(static_cast<int64_t>(chunks_.size()), total_ * 8, [&](int64_t c) {
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

  // The rows whose occurrences the parts must know: those that they evict, and for
  // frequencies those that they have found by a search.
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
    std::sort(found.begin(), found.end());
    const std::vector<uint32_t> searched_rows =
        found.empty() ? std::vector<uint32_t>() : rows_found_twice();
    std::vector<int64_t> again;
    for (auto row = found.begin(); row != found.end();) {
      const auto end = std::upper_bound(row, found.end(), *row);
      const int64_t p = index_.partition_of_row(*row);
      const auto uses =
          std::equal_range(searched_rows.begin(), searched_rows.end(), *row);
      const auto searched = uses.second - uses.first;
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

  // The rows of the occurrences whose lookups have found them, and a search, too, sorted. A
  // row is there once for each of its occurrences.
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
    std::sort(rows.begin(), rows.end());
    return rows;
  }

  // Takes the rows of keys that the update evicts from their occurrences.
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
        term.rows[at.index] = kNoRow;  // a round before may have given it one
        planner.add_missing(
            term.keys[at.index], at.hash, count, static_cast<uint32_t>(i));
        continue;
      }
      // Few keys belong to a partition, so those of the next one are prefetched, too.
      if (i + kFindAhead < begin_.back()) {
        const uint64_t hash = occurrences_[i + kFindAhead].hash;
        kernels::prefetch_line(
            index_.chunks_of(index_.owned_partition_of(hash)) +
            index_.home_of(hash));
      }
      term.rows[at.index] = planner.add(
          term.keys[at.index],
          at.hash,
          count,
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
  }

  KeyIndex& index_;
  bool trusts_lookups_;
  KeyPlan plan_;
  std::vector<Chunk> chunks_;
  int64_t total_ = 0;
  int64_t unknown_ = 0;  // occurrences that must be searched
  std::vector<uint32_t> marked_;  // those of index_.marked_rows_
  // Occurrences of rows that are not searched, as far as the parts must know them.
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
