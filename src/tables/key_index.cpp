// SPDX-License-Identifier: Apache-2.0
#include "src/tables/key_index.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/tables/log2_of_sum.h"

#include <atomic>
#include <cmath>
#include <functional>
#include <numeric>

namespace tessera {

namespace {

// The rows of the count-min sketch. A key is counted once in each of them.
constexpr int64_t kSketchRows = 4;
constexpr uint8_t kMaxCounter = 255;

// At most rows() / kRememberedShare rows are remembered as evicted.
constexpr int64_t kRememberedShare = 16;

// Chunks are this full on average if the partition is full. With 0.78 instead of 0.70,
// more keys are in a later chunk than their own, and finds took a sixth longer.
// LeastFrequentlyUsed has 0.78, because it stores 4 more bytes per row, and must stay
// within 24 bytes per row.
double max_load(const DynamicKeys& config) {
  return std::holds_alternative<eviction::LeastFrequentlyUsed>(config.eviction)
      ? 0.78
      : 0.70;
}

const admission::AfterOccurrences* occurrences_of(const DynamicKeys& config) {
  return std::get_if<admission::AfterOccurrences>(&config.admission);
}

int64_t counters_per_row(
    const DynamicKeys& config,
    const KeyPartitions& partitions) {
  const auto* occurrences = occurrences_of(config);
  // The first occurrence admits, so nothing has to be counted.
  if (occurrences == nullptr || occurrences->count == 1) {
    return 0;
  }
  const int64_t counters = occurrences->counters > 0
      ? occurrences->counters
      : kSketchRows * config.capacity;
  return std::max<int64_t>(1, counters / kSketchRows / partitions.count());
}

// The largest mean counter of a partition. A new key whose counters are already
// `count - 1` is admitted at its first occurrence. So with a larger mean, most new keys
// would be admitted at once.
double max_mean_counter(const DynamicKeys& config) {
  const auto* occurrences = occurrences_of(config);
  return occurrences == nullptr
      ? 0.0
      : occurrences->halve_at.value_or(
            static_cast<double>(occurrences->count - 1));
}

}  // namespace

KeyIndex::KeyIndex(
    const DynamicKeys& config,
    std::string name,
    uint64_t random_key,
    PartitionRange owned)
    : config_(config),
      name_(std::move(name)),
      random_key_(random_key),
      partitions_(config.capacity),
      owned_(owned),
      chunks_per_partition_(
          static_cast<int64_t>(
              static_cast<double>(partitions_.max_rows()) /
              (Chunk::kSize * max_load(config))) +
          1),
      counters_per_row_(tessera::counters_per_row(config, partitions_)),
      max_counted_(
          max_mean_counter(config) *
          static_cast<double>(kSketchRows * counters_per_row_)),
      partition_(owned.count()) {
  first_row_.reserve(owned.count() + 1);
  for (int64_t p = owned.begin; p <= owned.end; ++p) {
    first_row_.push_back(static_cast<uint32_t>(
        partitions_.first_row(p) - partitions_.first_row(owned.begin)));
  }
  const std::string what = "the keys of table '" + shorten(name_) + "'";
  chunks_ = ReservedArray<Chunk>(owned.count() * chunks_per_partition_, what);
  chunk_of_row_ = ReservedArray<uint16_t>(rows(), what);
  if (const auto* policy =
          std::get_if<eviction::LeastFrequentlyUsed>(&config.eviction)) {
    half_life_ = policy->half_life;
    score_size_ = 2;
  }
  scores_ = ReservedArray<uint32_t>(rows() * score_size_, what);
  sketch_ = ReservedArray<uint8_t>(
      owned.count() * kSketchRows * counters_per_row_, what);
  if (config.preallocate) {
    chunks_.touch_pages(what);
    chunk_of_row_.touch_pages(what);
    scores_.touch_pages(what);
    sketch_.touch_pages(what);
  }
  marked_rows_ = RowSet(rows(), what);
}

KeyIndex::KeyIndex(const KeyIndex& other)
    : KeyIndex(other.config_, other.name_, other.random_key_, other.owned_) {
  counts_ = other.counts_;
  for (int64_t i = 0; i < owned_.count(); ++i) {
    const Partition& from = other.partition_[i];
    partition_[i].used = from.used;
    partition_[i].free = from.free;
    partition_[i].counted = from.counted;
    if (from.used == 0) {
      continue;  // keeps its pages untouched
    }
    std::copy_n(other.chunks_of(i), chunks_per_partition_, chunks_of(i));
    std::copy_n(
        other.chunk_of_row_.data() + first_row_[i],
        from.used,
        chunk_of_row_.data() + first_row_[i]);
    std::copy_n(
        other.scores_.data() + first_row_[i] * score_size_,
        from.used * score_size_,
        scores_.data() + first_row_[i] * score_size_);
  }
  std::copy_n(other.sketch_.data(), sketch_.size(), sketch_.data());
}

uint32_t KeyIndex::find_in(int64_t partition, int64_t key, uint64_t hash)
    const {
  const uint32_t home = home_of(hash);
  const Chunk& chunk = chunks_of(partition)[home];
  const uint32_t position = chunk.find(key);
  if (position < Chunk::kSize) {
    return chunk.rows[position];
  }
  return chunk.passed == 0 ? kNoRow : find_after(partition, home, key);
}

uint32_t KeyIndex::find_after(int64_t partition, uint32_t chunk, int64_t key)
    const {
  const Chunk* chunks = chunks_of(partition);
  for (uint32_t i = next_of(chunk); i != chunk; i = next_of(i)) {
    const uint32_t position = chunks[i].find(key);
    if (position < Chunk::kSize) {
      return chunks[i].rows[position];
    }
    if (chunks[i].passed == 0) {
      break;
    }
  }
  return kNoRow;
}

uint32_t KeyIndex::default_row_in(int64_t partition) const {
  return has_default_key(partition)
      ? find_in(
            partition, *config_.default_key, hash_of_key(*config_.default_key))
      : kNoRow;
}

uint32_t KeyIndex::default_row() const {
  uint32_t row = kNoRow;
  if (config_.default_key) {
    find(&*config_.default_key, 1, &row);
  }
  return row;
}

int64_t KeyIndex::free_rows(int64_t partition) const {
  const Partition& state = partition_[partition];
  const bool is_reserved =
      has_default_key(partition) && default_row_in(partition) == kNoRow;
  return rows_of(partition) - state.used + std::ssize(state.free) -
      (is_reserved ? 1 : 0);
}

// Finds keys in blocks. While the chunks of one block are searched, those of the next one
// are prefetched. A key that is not in its own chunk, but may be in a later one, waits
// until the next block has been searched. To follow it at once would need a branch that
// can't be predicted, and this branch would stop the search until the chunk has arrived.
// Vector instructions saved only 3 %, because the search waits for memory.
class KeyIndex::Finder {
 public:
  Finder(const KeyIndex& index, const int64_t* keys, uint32_t* rows)
      : index_(index), keys_(keys), rows_(rows) {}

  // Returns the number of keys without a row.
  int64_t find(int64_t begin, int64_t end) {
    Block blocks[3];
    request(begin, end, blocks[0]);
    blocks[2].num_passed = 0;
    int64_t missing = 0;
    int64_t number = 0;
    for (int64_t i = begin; i < end; i += kBlock, ++number) {
      request(i + kBlock, end, blocks[(number + 1) % 3]);
      missing += search(blocks[number % 3]);
      missing -= find_passed(blocks[(number + 2) % 3]);
    }
    return missing - find_passed(blocks[(number + 2) % 3]);
  }

 private:
  static constexpr int64_t kBlock = 64;

  struct Request {
    const Chunk* chunk;
    int64_t position;  // of the key
    int64_t partition;
  };
  struct Block {
    Request requests[kBlock];
    int64_t size;
    int64_t missing;  // keys of partitions that are not owned
    // Requests of keys that may be in another chunk.
    uint8_t passed[kBlock];
    int64_t num_passed;
  };

  void request(int64_t begin, int64_t end, Block& block) {
    block.size = 0;
    block.missing = 0;
    for (int64_t i = begin; i < std::min(end, begin + kBlock); ++i) {
      const uint64_t hash = hash_of_key(keys_[i]);
      const int64_t p = index_.owned_partition_of(hash);
      if (static_cast<uint64_t>(p) >=
          static_cast<uint64_t>(index_.owned_.count())) {
        rows_[i] = kNoRow;
        ++block.missing;
        continue;
      }
      const Chunk* chunk = index_.chunks_of(p) + index_.home_of(hash);
      kernels::prefetch_line(chunk);
      block.requests[block.size++] = {chunk, i, p};
    }
  }

  // Returns the number of keys that are not in their own chunks.
  int64_t search(Block& block) {
    int64_t num_passed = 0;
    int64_t missing = block.missing;
    for (int64_t r = 0; r < block.size; ++r) {
      const Request& request = block.requests[r];
      const Chunk& chunk = *request.chunk;
      const uint32_t matches = chunk.matches(keys_[request.position]);
      // Without a match, this is the last position, and its row is not used.
      const uint32_t position =
          __builtin_ctz(matches | 1U << (Chunk::kSize - 1));
      const uint32_t row =
          index_.first_row_[request.partition] + chunk.rows[position];
      rows_[request.position] = matches == 0 ? kNoRow : row;
      missing += matches == 0 ? 1 : 0;
      block.passed[num_passed] = static_cast<uint8_t>(r);
      num_passed += ((matches == 0) & (chunk.passed != 0)) ? 1 : 0;
    }
    block.num_passed = num_passed;
    for (int64_t i = 0; i < num_passed; ++i) {
      kernels::prefetch_line(block.requests[block.passed[i]].chunk + 1);
    }
    return missing;
  }

  // Searches the other chunks, and returns how many keys are there.
  int64_t find_passed(const Block& block) {
    int64_t found = 0;
    for (int64_t i = 0; i < block.num_passed; ++i) {
      const Request& request = block.requests[block.passed[i]];
      const auto chunk = static_cast<uint32_t>(
          request.chunk - index_.chunks_of(request.partition));
      const uint32_t row =
          index_.find_after(request.partition, chunk, keys_[request.position]);
      if (row != kNoRow) {
        rows_[request.position] = index_.first_row_[request.partition] + row;
        ++found;
      }
    }
    return found;
  }

  const KeyIndex& index_;
  const int64_t* keys_;
  uint32_t* rows_;
};

int64_t KeyIndex::find(const int64_t* keys, int64_t size, uint32_t* rows)
    const {
  constexpr int64_t kKeysPerTask = 4096;
  std::atomic<int64_t> missing = 0;
  run_ranges(
      size, kKeysPerTask, size * kFindBytes, [&](int64_t begin, int64_t end) {
        missing.fetch_add(
            Finder(*this, keys, rows).find(begin, end),
            std::memory_order_relaxed);
      });
  return missing;
}

void KeyIndex::insert(int64_t partition, int64_t key, uint32_t local_row) {
  Chunk* chunks = chunks_of(partition);
  uint32_t index = home_of(hash_of_key(key));
  while (chunks[index].size == Chunk::kSize) {
    ++chunks[index].passed;
    index = next_of(index);
  }
  Chunk& chunk = chunks[index];
  chunk.keys[chunk.size] = key;
  chunk.rows[chunk.size] = static_cast<uint16_t>(local_row);
  ++chunk.size;
  chunk_of_row_[first_row_[partition] + local_row] =
      static_cast<uint16_t>(index);
}

int64_t KeyIndex::key_of(int64_t partition, uint32_t local_row) const {
  const Chunk& chunk =
      chunks_of(partition)[chunk_of_row_[first_row_[partition] + local_row]];
  return chunk.keys[chunk.position_of(local_row)];
}

std::optional<int64_t> KeyIndex::key_of_row(uint32_t row) const {
  const int64_t partition = partition_of_row(row);
  const uint32_t local_row = row - first_row_[partition];
  const Chunk& chunk = chunks_of(partition)[chunk_of_row_[row]];
  const uint32_t position = chunk.position_of(local_row);
  return position < chunk.size ? std::optional(chunk.keys[position])
                               : std::nullopt;
}

std::shared_ptr<KeyIndex::LostKeys> KeyIndex::collect_lost_keys() {
  lost_keys_ = std::make_shared<LostKeys>(static_cast<size_t>(owned_.count()));
  return lost_keys_;
}

void KeyIndex::erase(int64_t partition, uint32_t local_row) {
  Chunk* chunks = chunks_of(partition);
  const uint32_t at = chunk_of_row_[first_row_[partition] + local_row];
  Chunk& chunk = chunks[at];
  const uint32_t position = chunk.position_of(local_row);
  for (uint32_t index = home_of(hash_of_key(chunk.keys[position])); index != at;
       index = next_of(index)) {
    --chunks[index].passed;
  }
  if (lost_keys_ != nullptr && lost_keys_.use_count() > 1) {
    (*lost_keys_)[partition].push_back(chunk.keys[position]);
  }
  --chunk.size;
  chunk.keys[position] = chunk.keys[chunk.size];
  chunk.rows[position] = chunk.rows[chunk.size];
}

KeyIndex::EvictionScore KeyIndex::score_of(
    int64_t partition,
    uint32_t local_row,
    uint64_t hash) const {
  const int64_t row = first_row_[partition] + local_row;
  return {
      .frequency = frequency_of(row),
      .last_update = last_update_of(row),
      .hash = hash};
}

float KeyIndex::frequency_after(
    float frequency,
    bool is_new,
    uint32_t count,
    uint32_t update) const {
  if (!has_frequencies()) {
    return 0.0F;
  }
  const double added =
      log2_of_count(count) + static_cast<double>(update) / half_life_;
  if (is_new) {
    return static_cast<float>(added);
  }
  return static_cast<float>(log2_of_sum(frequency, added));
}

template <class Visit>
void KeyIndex::visit_counters(
    int64_t partition,
    uint64_t hash,
    const Visit& visit) const {
  const int64_t first = partition * kSketchRows * counters_per_row_;
  for (int64_t row = 0; row < kSketchRows; ++row) {
    const uint64_t mixed =
        mix_bits(hash + static_cast<uint64_t>(row + 1) * 0x9E3779B97F4A7C15ULL);
    const auto column = static_cast<int64_t>(
        ((mixed >> 32) * static_cast<uint64_t>(counters_per_row_)) >> 32);
    visit(first + row * counters_per_row_ + column);
  }
}

uint8_t* KeyIndex::counters_of(int64_t partition) {
  return sketch_.data() + partition * kSketchRows * counters_per_row_;
}

void KeyIndex::age_sketch(int64_t partition) {
  int64_t& counted = partition_[partition].counted;
  uint8_t* counters = counters_of(partition);
  while (static_cast<double>(counted) > max_counted_) {
    counted = 0;
    for (int64_t i = 0; i < kSketchRows * counters_per_row_; ++i) {
      counters[i] /= 2;
      counted += counters[i];
    }
  }
}

bool KeyIndex::would_admit(int64_t key, uint32_t count, int64_t update) const {
  if (is_default(key)) {
    return true;
  }
  const uint64_t hash = hash_of_key(key);
  if (const auto* occurrences = occurrences_of(config_)) {
    uint32_t counted = counters_per_row_ == 0 ? 0 : kMaxCounter;
    if (counters_per_row_ > 0) {
      visit_counters(owned_partition_of(hash), hash, [&](int64_t counter) {
        counted = std::min<uint32_t>(counted, sketch_[counter]);
      });
    }
    return saturated_sum(counted, count) >=
        static_cast<uint32_t>(occurrences->count);
  }
  if (const auto* random =
          std::get_if<admission::WithProbability>(&config_.admission)) {
    // One random number decides about all occurrences of the update together.
    const uint64_t bits =
        mix_bits(mix_bits(random_key_ + hash) + static_cast<uint64_t>(update));
    const double number = static_cast<double>(bits >> 11) * 0x1p-53;
    return number <
        1.0 - std::pow(1.0 - random->probability, static_cast<double>(count));
  }
  return true;
}

void KeyIndex::Victims::pop() {
  if (is_added_lowest()) {
    std::ranges::pop_heap(added_, std::greater{}, &Victim::score);
    added_.pop_back();
  } else {
    sorted_.pop_back();
  }
}

void KeyIndex::Victims::assign(std::vector<Victim>& victims) {
  std::swap(sorted_, victims);
  std::ranges::sort(sorted_, std::greater{}, &Victim::score);
  bound_ = sorted_.empty() ? EvictionScore{} : sorted_.front().score;
  added_.clear();
}

void KeyIndex::Victims::add(const Victim& victim, size_t max_added) {
  added_.push_back(victim);
  std::ranges::push_heap(added_, std::greater{}, &Victim::score);
  // Most entries are out of date now. The next search collects new ones.
  if (added_.size() > max_added) {
    clear();
  }
}

void KeyIndex::Victims::clear() {
  sorted_.clear();
  added_.clear();
}

void KeyIndex::push_victim(int64_t partition, uint32_t local_row) {
  EvictionScore score = score_of(partition, local_row, /*hash=*/0);
  // Few keys are included, so the key is read only if it may be one of them.
  if (partition_[partition].victims.includes(score)) {
    score.hash = hash_of_key(key_of(partition, local_row));
    push_victim(partition, {score, static_cast<uint16_t>(local_row)});
  }
}

void KeyIndex::push_victim(int64_t partition, const Victim& victim) {
  constexpr int64_t kMinAdded = 64;
  constexpr int64_t kAddedShare = 8;  // of the rows
  Victims& victims = partition_[partition].victims;
  if (victims.includes(victim.score)) {
    victims.add(
        victim, std::max(kMinAdded, partitions_.max_rows() / kAddedShare));
  }
}

void KeyIndex::free_row(int64_t partition, uint32_t local_row) {
  partition_[partition].free.push_back(static_cast<uint16_t>(local_row));
  // This score is above the bound of any Victims.
  set_score(
      first_row_[partition] + local_row,
      kUnusedRow,
      std::numeric_limits<float>::infinity());
}

void KeyIndex::prefetch_part(int64_t partition, const KeyPlan::Part& part) {
  for (const uint32_t row : part.evicted) {
    kernels::prefetch_line(chunk_of_row_.data() + row);
  }
  for (const KeyEntry& entry : part.inserted) {
    kernels::prefetch_line(
        chunks_of(partition) + home_of(hash_of_key(entry.key)));
    kernels::prefetch_line(chunk_of_row_.data() + entry.row);
    prefetch_use(entry.row);
  }
  for (const uint32_t row : part.evicted) {
    kernels::prefetch_line(chunks_of(partition) + chunk_of_row_[row]);
  }
}

void KeyIndex::apply_part(
    int64_t partition,
    const KeyPlan::Part& part,
    uint32_t update) {
  Partition& state = partition_[partition];
  const uint32_t first = first_row_[partition];
  for (const auto& [key, count] : part.counted) {
    visit_counters(partition, hash_of_key(key), [&](int64_t counter) {
      const uint8_t before = sketch_[counter];
      sketch_[counter] = static_cast<uint8_t>(
          std::min<uint32_t>(kMaxCounter, saturated_sum(before, count)));
      state.counted += sketch_[counter] - before;
    });
  }
  age_sketch(partition);
  for (const KeyPlan::Used& used : part.used) {
    set_score(used.row, update, used.frequency);
  }
  for (const uint32_t row : part.evicted) {
    erase(partition, row - first);
  }
  // The new keys have got the last free rows, then unused ones, then those of the evicted
  // keys. If a row is reserved for the default key, one row of an evicted key is left.
  const size_t from_free = std::min(part.inserted.size(), state.free.size());
  const size_t from_unused = std::min<size_t>(
      part.inserted.size() - from_free, rows_of(partition) - state.used);
  state.free.resize(state.free.size() - from_free);
  for (size_t i = part.inserted.size() - from_free - from_unused;
       i < part.evicted.size();
       ++i) {
    free_row(partition, part.evicted[i] - first);
  }
  for (const KeyEntry& entry : part.inserted) {
    const uint32_t local = entry.row - first;
    insert(partition, entry.key, local);
    set_score(entry.row, entry.last_update, entry.frequency);
    state.used = std::max(state.used, local + 1);
    push_victim(
        partition,
        {.score =
             {.frequency = entry.frequency,
              .last_update = entry.last_update,
              .hash = hash_of_key(entry.key)},
         .row = static_cast<uint16_t>(local)});
  }
}

void KeyIndex::apply(const KeyPlan& plan) {
  int64_t changes = 0;
  for (const KeyPlan::Part& part : plan.parts) {
    counts_.admitted += std::ssize(part.inserted);
    insertions_ += part.inserted.size();
    counts_.evicted += std::ssize(part.evicted);
    counts_.dropped += part.dropped;
    changes += static_cast<int64_t>(
        part.used.size() + part.inserted.size() + part.evicted.size() +
        part.counted.size());
  }
  run_tasks(owned_.count(), changes * kFindBytes, [&](int64_t partition) {
    prefetch_part(partition, plan.parts[partition]);
    apply_part(partition, plan.parts[partition], plan.update);
  });
  record_rows(plan);
  std::vector<uint32_t> evicted;
  for (const KeyPlan::Part& part : plan.parts) {
    evicted.insert(evicted.end(), part.evicted.begin(), part.evicted.end());
  }
  remember_evictions(std::move(evicted));
  has_open_plan_ = false;
}

// Records the uses of rows for rules that update all rows. Frequencies need the count of
// each row, so the rows are sorted.
void KeyIndex::record_rows(const KeyPlan& plan) {
  std::vector<uint32_t> used;
  for (const c10::ArrayRef<uint32_t> rows : plan.used_rows) {
    if (has_frequencies()) {
      used.insert(used.end(), rows.begin(), rows.end());
    } else {
      set_last_update(rows, plan.update);
    }
  }
  std::ranges::sort(used);
  for (auto row = used.begin(); row != used.end() && *row != kNoRow;) {
    const auto end = std::upper_bound(row, used.end(), *row);
    record_use(*row, static_cast<uint32_t>(end - row), plan.update);
    row = end;
  }
}

void KeyIndex::set_last_update(c10::ArrayRef<uint32_t> rows, uint32_t update) {
  constexpr int64_t kRowsPerTask = 8192;
  const auto size = std::ssize(rows);
  run_ranges(
      size, kRowsPerTask, size * kFindBytes, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (i + kFindAhead < end && rows[i + kFindAhead] != kNoRow) {
            prefetch_use(rows[i + kFindAhead]);
          }
          // Threads may write the same number for the same row.
          if (rows[i] != kNoRow) {
            std::atomic_ref<uint32_t>(scores_[rows[i]])
                .store(update, std::memory_order_relaxed);
          }
        }
      });
}

void KeyIndex::remember_evictions(std::vector<uint32_t> evicted) {
  // A batch that is looked up ahead is a few updates old.
  constexpr size_t kVersions = 64;
  if (evicted.empty()) {
    return;
  }
  remembered_rows_ += std::ssize(evicted);
  evictions_.push_back({.version = version_++, .rows = std::move(evicted)});
  while (!evictions_.empty() &&
         (evictions_.size() > kVersions ||
          remembered_rows_ > rows() / kRememberedShare)) {
    remembered_rows_ -= static_cast<int64_t>(evictions_.front().rows.size());
    evictions_.pop_front();
  }
}

void KeyIndex::forget_evictions() {
  ++version_;
  ++insertions_;
  evictions_.clear();
  remembered_rows_ = 0;
}

void KeyIndex::clear_victims() {
  for (Partition& partition : partition_) {
    partition.victims.clear();
  }
}

int64_t KeyIndex::evict_before(int64_t update) {
  int64_t evicted = 0;
  for (int64_t p = 0; p < owned_.count(); ++p) {
    const uint32_t default_row = default_row_in(p);
    std::vector<uint32_t> rows;
    visit_entries(p, [&](const KeyEntry& entry) {
      const uint32_t local_row = entry.row - first_row_[p];
      if (entry.last_update < update && local_row != default_row) {
        rows.push_back(local_row);
      }
    });
    std::ranges::sort(rows);
    for (const uint32_t row : rows) {
      erase(p, row);
      free_row(p, row);
    }
    evicted += std::ssize(rows);
  }
  counts_.evicted += evicted;
  forget_evictions();
  return evicted;
}

int64_t KeyIndex::size() const {
  int64_t size = 0;
  for (const Partition& partition : partition_) {
    size += partition.used - std::ssize(partition.free);
  }
  return size;
}

int64_t KeyIndex::bytes_at_capacity() const {
  const auto bytes_of = [](const auto& array) {
    return array.size() * static_cast<int64_t>(sizeof(array[0]));
  };
  return bytes_of(chunks_) + bytes_of(chunk_of_row_) + bytes_of(scores_) +
      bytes_of(sketch_) + marked_rows_.bytes();
}

std::vector<KeyEntry> KeyIndex::entries() const {
  std::vector<KeyEntry> entries;
  entries.reserve(size());
  for (int64_t p = 0; p < owned_.count(); ++p) {
    visit_entries(p, [&](const KeyEntry& entry) { entries.push_back(entry); });
  }
  return entries;
}

std::vector<KeyEntry> KeyIndex::sorted_entries() const {
  std::vector<KeyEntry> sorted = entries();
  std::ranges::sort(sorted, {}, &KeyEntry::key);
  return sorted;
}

c10::ArrayRef<uint8_t> KeyIndex::sketch() const {
  return {sketch_.data(), static_cast<size_t>(sketch_.size())};
}

std::vector<uint8_t> KeyIndex::table_sketch() const {
  std::vector<uint8_t> sketch(sketch_size(), 0);
  std::copy_n(
      sketch_.data(),
      sketch_.size(),
      sketch.data() + owned_.begin * kSketchRows * counters_per_row_);
  return sketch;
}

int64_t KeyIndex::sketch_size() const {
  return partitions_.count() * kSketchRows * counters_per_row_;
}

std::vector<std::pair<uint64_t, size_t>> KeyIndex::check(
    const std::vector<KeyEntry>& entries,
    const std::vector<uint8_t>& sketch,
    const std::string& where) const {
  TESSERA_CHECK_VALUE(
      std::ssize(sketch) == sketch_size(),
      "{} the sketch of table '{}' must have {} counters, but got {}. Use the admission and the capacity with which it was saved.",
      where,
      shorten(name_),
      sketch_size(),
      sketch.size());
  // The order is by partition, because the high bits of a hash choose the partition.
  std::vector<std::pair<uint64_t, size_t>> order;
  order.reserve(entries.size());
  for (size_t i = 0; i < entries.size(); ++i) {
    order.emplace_back(hash_of_key(entries[i].key), i);
  }
  std::ranges::sort(order);
  std::vector<uint32_t> sizes(partitions_.count(), 0);
  for (size_t i = 0; i < order.size(); ++i) {
    TESSERA_CHECK_VALUE(
        i == 0 || order[i].first != order[i - 1].first,
        "{} the keys of table '{}' must be distinct, but {} occurs twice. Remove one of them.",
        where,
        shorten(name_),
        entries[order[i].second].key);
    TESSERA_CHECK_VALUE(
        config_.padding_key != entries[order[i].second].key,
        "{} table '{}' can't have a row for key {}, because it is the padding_key. Remove the key, or choose another padding_key.",
        where,
        shorten(name_),
        entries[order[i].second].key);
    ++sizes[partitions_.of_hash(order[i].first)];
  }
  std::vector<int64_t> rows;
  for (int64_t p = 0; p < partitions_.count(); ++p) {
    rows.push_back(partitions_.rows(p));
  }
  if (config_.default_key) {
    const uint64_t hash = hash_of_key(*config_.default_key);
    const auto found = std::lower_bound(
        order.begin(), order.end(), std::pair{hash, size_t{0}});
    if (found == order.end() || found->first != hash) {
      --rows[partitions_.of_hash(hash)];  // reserved for the default key
    }
  }
  for (int64_t p = 0; p < partitions_.count(); ++p) {
    TESSERA_CHECK_VALUE(
        sizes[p] <= rows[p],
        "{} table '{}' has a capacity of {} rows in {} partitions, but {} keys belong to partition {}, which has {} rows for them. Enlarge the capacity.",
        where,
        shorten(name_),
        partitions_.capacity(),
        partitions_.count(),
        sizes[p],
        p,
        rows[p]);
  }
  return order;
}

void KeyIndex::assign(
    std::vector<KeyEntry>& entries,
    const std::vector<uint8_t>& sketch,
    const KeyCounts& counts,
    const std::string& where) {
  const auto order = check(entries, sketch, where);
  for (int64_t p = 0; p < owned_.count(); ++p) {
    if (partition_[p].used > 0) {
      std::fill_n(chunks_of(p), chunks_per_partition_, Chunk{});
    }
    partition_[p] = {};
  }
  for (const auto& [hash, i] : order) {
    KeyEntry& entry = entries[i];
    entry.row = kNoRow;
    if (!owned_.has(partitions_.of_hash(hash))) {
      continue;
    }
    const int64_t p = owned_partition_of(hash);
    const uint32_t local = partition_[p].used++;
    insert(p, entry.key, local);
    entry.row = first_row_[p] + local;
    set_score(entry.row, entry.last_update, entry.frequency);
  }
  std::copy_n(
      sketch.data() + owned_.begin * kSketchRows * counters_per_row_,
      sketch_.size(),
      sketch_.data());
  for (int64_t p = 0; p < owned_.count(); ++p) {
    const uint8_t* counters = counters_of(p);
    partition_[p].counted = std::accumulate(
        counters, counters + kSketchRows * counters_per_row_, int64_t{0});
  }
  counts_ = owned_.begin == 0 && owned_.count() > 0 ? counts : KeyCounts{};
  has_open_plan_ = false;
  forget_evictions();
}

}  // namespace tessera
