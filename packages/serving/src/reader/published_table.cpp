// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/published_table.h"

#include "src/common/check.h"
#include "src/tables/key_partitions.h"

#include <tessera/common/shorten.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <optional>
#include <span>
#include <utility>

namespace tessera::serving {

// Overlays have the rows that have changed since a base. An overlay never changes. A new one
// shares with the old one all chunks in which no row has changed.

// The changed rows of a table with a vocabulary, by their numbers.
class RowOverlay {
 public:
  explicit RowOverlay(int64_t rows)
      : chunks_(static_cast<size_t>((rows + kChunkRows - 1) / kChunkRows)) {
    static constexpr decltype(Chunk::words) kUnchanged = {};
    words_.assign(chunks_.size(), kUnchanged.data());
  }

  // Finds where the rows args.ids are. Unchanged rows are in args.table.
  void locate(kernels::LocateArgs args) const {
    args.chunks = words_.data();
    active_kernels().locate(args);
  }

  // Returns this overlay with rows[i] at first + i * row_bytes in addition. `rows` ascend
  // and are below the number of rows.
  std::shared_ptr<const RowOverlay> with(
      std::span<const uint32_t> rows,
      const std::byte* first,
      int64_t row_bytes) const {
    std::shared_ptr<RowOverlay> result(new RowOverlay(*this));
    while (!rows.empty()) {
      const uint32_t number = rows.front() / kChunkRows;
      const auto end = std::ranges::find_if(
          rows, [&](uint32_t row) { return row / kChunkRows != number; });
      const auto changed = rows.first(end - rows.begin());
      const Chunk* old = chunks_[number].get();
      const auto chunk = old == nullptr
          ? std::make_shared<const Chunk>(Chunk(), changed, first, row_bytes)
          : std::make_shared<const Chunk>(*old, changed, first, row_bytes);
      result->size_ += std::ssize(chunk->rows) -
          (old == nullptr ? 0 : std::ssize(old->rows));
      result->words_[number] = chunk->words.data();
      result->chunks_[number] = chunk;
      first += std::ssize(changed) * row_bytes;
      rows = rows.subspan(changed.size());
    }
    return result;
  }

  int64_t size() const {
    return size_;
  }
  const kernels::OverlaidWord* const* words() const {
    return words_.data();
  }

 private:
  static constexpr uint32_t kChunkRows = kernels::LocateArgs::kChunkRows;

  struct Chunk {
    Chunk() = default;
    // `old` with the rows `changed`, which are one after the other from `first` on.
    Chunk(
        const Chunk& old,
        std::span<const uint32_t> changed,
        const std::byte* first,
        int64_t row_bytes) {
      std::array<const void*, kChunkRows> places = {};
      for (size_t i = 0; i < words.size(); ++i) {
        words[i].replaced = old.words[i].replaced;
        const void* const* place = old.words[i].rows;
        for (uint64_t left = old.words[i].replaced; left != 0;
             left &= left - 1) {
          places[i * 64 + std::countr_zero(left)] = *place++;
        }
      }
      for (const uint32_t row : changed) {
        const uint32_t i = row % kChunkRows;
        words[i / 64].replaced |= uint64_t{1} << i % 64;
        places[i] = first;
        first += row_bytes;
      }
      rows.reserve(old.rows.size() + changed.size());
      for (size_t i = 0; i < words.size(); ++i) {
        words[i].rows = rows.data() + rows.size();
        for (uint64_t left = words[i].replaced; left != 0; left &= left - 1) {
          rows.push_back(places[i * 64 + std::countr_zero(left)]);
        }
      }
    }
    Chunk(const Chunk&) = delete;  // the words point to the rows
    Chunk& operator=(const Chunk&) = delete;

    std::array<kernels::OverlaidWord, kChunkRows / 64> words = {};
    std::vector<const void*> rows = {};
  };
  RowOverlay(const RowOverlay&) = default;

  std::vector<std::shared_ptr<const Chunk>> chunks_;  // nullptr: no row changed
  std::vector<const kernels::OverlaidWord*> words_;  // of each chunk
  int64_t size_ = 0;
};

// The changed rows of a table with keys, and the keys that have lost their rows.
class KeyOverlay {
 public:
  // `capacity`: the largest number of keys.
  explicit KeyOverlay(int64_t capacity)
      // There are so many chunks that a change copies few other keys.
      : chunks_(static_cast<size_t>(
            std::clamp<int64_t>(capacity / 1024, 1, int64_t{1} << 20))) {}

  struct Change {
    int64_t key = 0;
    const std::byte* row = nullptr;  // nullptr: removed
  };
  // The last change of the key, or nullptr if it has none.
  const Change* find(int64_t key) const {
    const uint64_t hash = hash_of_key(key);
    const Chunk* chunk = chunks_[chunk_of(hash)].get();
    if (chunk == nullptr) {
      return nullptr;
    }
    const std::optional<Change>& slot = (*chunk)[place_in(*chunk, key, hash)];
    return slot ? &*slot : nullptr;
  }
  // Prefetches what find() reads.
  void prefetch(int64_t key) const {
    const uint64_t hash = hash_of_key(key);
    if (const Chunk* chunk = chunks_[chunk_of(hash)].get()) {
      __builtin_prefetch(chunk->data() + (hash & (chunk->size() - 1)));
    }
  }

  // Returns this overlay with `changes`. If a key has two of them, the last one counts.
  std::shared_ptr<const KeyOverlay> with(std::vector<Change> changes) const {
    std::shared_ptr<KeyOverlay> result(new KeyOverlay(*this));
    const auto chunk_of_change = [&](const Change& change) {
      return chunk_of(hash_of_key(change.key));
    };
    std::ranges::stable_sort(changes, {}, chunk_of_change);
    for (std::span<const Change> left = changes; !left.empty();) {
      const size_t number = chunk_of_change(left.front());
      const auto end =
          std::ranges::upper_bound(left, number, {}, chunk_of_change);
      const auto added = left.first(end - left.begin());
      left = left.subspan(added.size());
      std::vector<Change> all;
      if (const Chunk* old = chunks_[number].get()) {
        for (const std::optional<Change>& slot : *old) {
          if (slot) {
            all.push_back(*slot);
          }
        }
        result->size_ -= rows_in(*old);
      }
      all.insert(all.end(), added.begin(), added.end());
      const auto chunk =
          std::make_shared<Chunk>(std::bit_ceil(2 * all.size() + 1));
      for (const Change& change : all) {
        const uint64_t hash = hash_of_key(change.key);
        (*chunk)[place_in(*chunk, change.key, hash)] = change;
      }
      result->size_ += rows_in(*chunk);
      result->chunks_[number] = chunk;
    }
    return result;
  }

  // The keys with a changed row.
  int64_t size() const {
    return size_;
  }

 private:
  // A hash table with open addressing. Its size is a power of two. At least half is free.
  using Chunk = std::vector<std::optional<Change>>;

  KeyOverlay(const KeyOverlay&) = default;

  size_t chunk_of(uint64_t hash) const {
    return static_cast<size_t>(
        ((hash >> 32) * static_cast<uint64_t>(chunks_.size())) >> 32);
  }

  // The place of this key, or of the free slot where it may be put.
  static size_t place_in(const Chunk& chunk, int64_t key, uint64_t hash) {
    const size_t mask = chunk.size() - 1;
    size_t at = hash & mask;
    while (chunk[at] && chunk[at]->key != key) {
      at = (at + 1) & mask;
    }
    return at;
  }
  static int64_t rows_in(const Chunk& chunk) {
    return std::ranges::count_if(
        chunk, [](const auto& slot) { return slot && slot->row != nullptr; });
  }

  std::vector<std::shared_ptr<const Chunk>> chunks_;
  int64_t size_ = 0;
};

namespace {

// Memory of this thread that lookups use again.
template <class T>
T* scratch(int64_t size) {
  thread_local std::vector<T> memory;
  if (memory.size() < static_cast<size_t>(size)) {
    memory.resize(size);
  }
  return memory.data();
}

// Zeros as the row of unknown keys, for all tables. Pages that nobody writes to take no
// memory.
const std::byte* zeros() {
  static std::array<std::byte, 4 * kMaxDim + kernels::kReadAfterRow> row;
  return row.data();
}

}  // namespace

PublishedTable::PublishedTable(
    const TableFile& file,
    const VersionData& base,
    const std::string& where)
    : file_(file),
      format_(format_from_string(file.format)),
      row_bytes_(row_bytes(format_, file.dim)),
      base_rows_(base.bytes(file.rows).data()),
      num_keys_(file.keys ? file.count : 0) {
  if (const auto& rounded = file_.rounded_to) {
    const double step = (rounded->upper - rounded->lower) /
        static_cast<double>(rounded->num_buckets - 1);
    buckets_ = {
        .lower = static_cast<float>(rounded->lower),
        .upper = static_cast<float>(rounded->upper),
        .step = static_cast<float>(step)};
  }
  if (!file_.keys) {
    return;
  }
  const auto buckets = base.values<KeyBucket>(*file.numbers);
  key_buckets_ = buckets.data();
  num_key_buckets_ = std::ssize(buckets);
  int64_t keys = 0;
  const bool are_valid =
      std::ranges::all_of(buckets, [&](const KeyBucket& bucket) {
        keys += bucket.size;
        return bucket.size <= KeyBucket::kSize &&
            std::all_of(
                   bucket.rows, bucket.rows + bucket.size, [&](uint32_t row) {
                     return row < file.count;
                   });
      });
  TESSERA_CHECK_VALUE(
      are_valid && keys == file.count,
      "{} the keys of table '{}' do not fit its {} rows. The file is damaged.",
      where,
      shorten(file_.name),
      file.count);
  find_default_row();
}

PublishedTable PublishedTable::with(
    const TableFile& file,
    const VersionData& version,
    const std::string& where) const {
  TESSERA_CHECK_VALUE(
      file.name == file_.name && file.dim == file_.dim &&
          file.vocabulary_size == file_.vocabulary_size &&
          file.keys == file_.keys && file.rounded_to == file_.rounded_to &&
          file.format == file_.format,
      "{} its table '{}' is not the table '{}' of its base. The file is damaged, or of another training.",
      where,
      shorten(file.name),
      shorten(file_.name));
  PublishedTable next = *this;
  const std::byte* first = version.bytes(file.rows).data();
  if (!file_.keys) {
    const auto rows = version.values<uint32_t>(*file.numbers);
    const bool ascend =
        std::ranges::adjacent_find(rows, std::greater_equal<>()) == rows.end();
    TESSERA_CHECK_VALUE(
        ascend && (rows.empty() || rows.back() < file_.vocabulary_size),
        "{} the numbers of the rows of table '{}' do not ascend below {}. The file is damaged.",
        where,
        shorten(file_.name),
        file_.vocabulary_size);
    if (!rows.empty()) {
      const auto old = row_overlay_ != nullptr
          ? row_overlay_
          : std::make_shared<const RowOverlay>(file_.vocabulary_size);
      next.row_overlay_ = old->with(rows, first, row_bytes_);
    }
    return next;
  }
  std::vector<KeyOverlay::Change> changes;
  if (file.removed) {
    for (const int64_t key : version.values<int64_t>(*file.removed)) {
      changes.push_back({.key = key});
    }
  }
  for (const int64_t key : version.values<int64_t>(*file.numbers)) {
    changes.push_back({.key = key, .row = first});
    first += row_bytes_;
  }
  if (!changes.empty()) {
    // A capacity may be far larger than the number of keys, and costs memory.
    const int64_t expected_keys = 16 * (num_keys_ + std::ssize(changes));
    const auto old = key_overlay_ != nullptr
        ? key_overlay_
        : std::make_shared<const KeyOverlay>(
              std::min(file_.keys->capacity, expected_keys));
    std::vector<int64_t> changed;
    for (const KeyOverlay::Change& change : changes) {
      changed.push_back(change.key);
    }
    std::ranges::sort(changed);
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    const auto count_in = [&](const PublishedTable& table) {
      return std::ranges::count_if(
          changed, [&](int64_t key) { return table.find(key) != nullptr; });
    };
    const int64_t before = count_in(*this);
    next.key_overlay_ = old->with(std::move(changes));
    next.num_keys_ += count_in(next) - before;
  }
  next.find_default_row();
  return next;
}

Version::TableInfo PublishedTable::info() const {
  return {
      .name = file_.name,
      .dim = file_.dim,
      .format = file_.format,
      .vocabulary_size = file_.vocabulary_size,
      .has_keys = file_.keys.has_value(),
      .rows = file_.keys ? num_keys_ : file_.vocabulary_size,
      .overlaid_rows = row_overlay_ != nullptr ? row_overlay_->size()
          : key_overlay_ != nullptr            ? key_overlay_->size()
                                               : 0};
}

IdRule PublishedTable::rule_of(const FeatureFile& feature) const {
  return {
      .vocabulary_size = file_.vocabulary_size,
      .has_keys = file_.keys.has_value(),
      .padding_key = file_.keys ? file_.keys->padding_key : std::nullopt,
      .validates = feature.validates,
      .zeros_out_of_range = feature.zeros_out_of_range,
      .combiner = combiner_from_string(feature.combiner)};
}

const std::byte* PublishedTable::find(int64_t key) const {
  if (key_overlay_ != nullptr) {
    if (const KeyOverlay::Change* change = key_overlay_->find(key)) {
      return change->row;
    }
  }
  const uint32_t row = find_key(key_buckets_, num_key_buckets_, key);
  return row == kNoKeyRow ? nullptr : base_rows_ + int64_t{row} * row_bytes_;
}

void PublishedTable::find_default_row() {
  const std::byte* row =
      file_.keys->default_key ? find(*file_.keys->default_key) : nullptr;
  default_row_ = row == nullptr ? zeros() : row;
}

void PublishedTable::find_places(const RowBags& bags, const void** places)
    const {
  if (!file_.keys) {
    row_overlay_->locate(
        {.table = base_rows_,
         .row_bytes = row_bytes_,
         .ids = bags.rows,
         .nnz = bags.nnz,
         .out = places});
    return;
  }
  constexpr int64_t kAhead = 16;
  for (int64_t i = 0; i < bags.nnz; ++i) {
    if (i + kAhead < bags.nnz) {
      const int64_t key = bags.keys[i + kAhead];
      __builtin_prefetch(key_buckets_ + home_bucket(key, num_key_buckets_));
      if (key_overlay_ != nullptr) {
        key_overlay_->prefetch(key);
      }
    }
    const std::byte* row = find(bags.keys[i]);
    places[i] = row == nullptr ? default_row_ : row;
  }
}

RowMemory PublishedTable::memory() const {
  return {
      .storage = storage_of(format_),
      .quantized_bits = is_quantized(format_) ? bits_of(format_) : 0,
      .first = base_rows_,
      .overlaid = row_overlay_ == nullptr ? nullptr : row_overlay_->words()};
}

void PublishedTable::combine(const RowBags& bags, float* out) const {
  if (bags.bags == 0) {
    return;
  }
  const void** places = nullptr;
  if (file_.keys || row_overlay_ != nullptr) {
    places = scratch<const void*>(bags.nnz + 1);
    find_places(bags, places);
  }
  if (is_quantized(format_)) {
    active_kernels().combine_quantized(
        {.dim = file_.dim,
         .bits = bits_of(format_),
         .table = base_rows_,
         .ids = bags.rows,
         .rows = places,
         .nnz = bags.nnz,
         .offsets = bags.offsets,
         .weights = bags.weights,
         .scales = bags.scales,
         .out = out,
         .begin_bag = 0,
         .end_bag = bags.bags});
    return;
  }
  active_kernels().combine({// The kernel only reads the rows.
                            .table =
                                {.data = const_cast<std::byte*>(base_rows_),
                                 .dim = file_.dim,
                                 .storage = storage_of(format_)},
                            .ids = bags.rows,
                            .rows = places,
                            .nnz = bags.nnz,
                            .offsets = bags.offsets,
                            .weights = bags.weights,
                            .scales = bags.scales,
                            .buckets = buckets_,
                            .out = out,
                            .begin_bag = 0,
                            .end_bag = bags.bags});
}

}  // namespace tessera::serving
