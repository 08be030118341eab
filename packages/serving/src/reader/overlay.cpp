// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/overlay.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace tessera::serving {

RowOverlay::RowOverlay(int64_t rows)
    : chunks_(static_cast<size_t>((rows + kChunkRows - 1) / kChunkRows)) {
  static constexpr decltype(Chunk::words) kUnchanged = {};
  words_.assign(chunks_.size(), kUnchanged.data());
}

std::shared_ptr<const RowOverlay> RowOverlay::with(
    std::span<const uint32_t> rows,
    const std::byte* first,
    int64_t row_bytes) const {
  std::shared_ptr<RowOverlay> result(new RowOverlay(*this));
  while (!rows.empty()) {
    const uint32_t number = rows.front() / kChunkRows;
    const auto end = std::find_if(rows.begin(), rows.end(), [&](uint32_t row) {
      return row / kChunkRows != number;
    });
    const auto changed = rows.first(static_cast<size_t>(end - rows.begin()));
    const Chunk* old = chunks_[number].get();
    const auto chunk = old == nullptr
        ? std::make_shared<const Chunk>(Chunk(), changed, first, row_bytes)
        : std::make_shared<const Chunk>(*old, changed, first, row_bytes);
    result->size_ += static_cast<int64_t>(chunk->rows.size()) -
        (old == nullptr ? 0 : static_cast<int64_t>(old->rows.size()));
    result->words_[number] = chunk->words.data();
    result->chunks_[number] = chunk;
    first += static_cast<int64_t>(changed.size()) * row_bytes;
    rows = rows.subspan(changed.size());
  }
  return result;
}

RowOverlay::Chunk::Chunk(
    const Chunk& old,
    std::span<const uint32_t> changed,
    const std::byte* first,
    int64_t row_bytes) {
  rows.reserve(old.rows.size() + changed.size());
  const void* const* old_row = old.rows.data();
  size_t next = 0;
  for (uint32_t i = 0; i < words.size(); ++i) {
    uint64_t new_bits = 0;
    for (size_t at = next;
         at < changed.size() && changed[at] % kChunkRows / 64 == i;
         ++at) {
      new_bits |= uint64_t{1} << (changed[at] % 64);
    }
    const uint64_t old_bits = old.words[i].replaced;
    words[i] = {
        .replaced = old_bits | new_bits, .rows = rows.data() + rows.size()};
    if (new_bits == 0) {
      const void* const* old_end = i + 1 < words.size() && !old.rows.empty()
          ? old.words[i + 1].rows
          : old.rows.data() + old.rows.size();
      rows.insert(rows.end(), old_row, old_end);
      old_row = old_end;
      continue;
    }
    for (uint64_t left = old_bits | new_bits; left != 0; left &= left - 1) {
      const uint64_t bit = left & -left;
      const void* row = (old_bits & bit) != 0 ? *old_row++ : nullptr;
      if ((new_bits & bit) != 0) {
        row = first + static_cast<int64_t>(next++) * row_bytes;
      }
      rows.push_back(row);
    }
  }
}

KeyOverlay::KeyOverlay(int64_t capacity)
    // So many that a change copies few other keys.
    : chunks_(static_cast<size_t>(
          std::clamp<int64_t>(capacity / 1024, 1, int64_t{1} << 20))) {}

KeyOverlay::Place KeyOverlay::find(int64_t key) const {
  const uint64_t hash = hash_of_key(key);
  const Chunk* chunk = chunks_[chunk_of(hash)].get();
  if (chunk == nullptr) {
    return {};
  }
  const size_t mask = chunk->slots.size() - 1;
  for (size_t at = hash & mask;; at = (at + 1) & mask) {
    const Slot& slot = chunk->slots[at];
    if (slot.found == Found::kNo || slot.key == key) {
      return {.found = slot.found, .row = slot.row};
    }
  }
}

void KeyOverlay::prefetch(int64_t key) const {
  const uint64_t hash = hash_of_key(key);
  if (const Chunk* chunk = chunks_[chunk_of(hash)].get()) {
    __builtin_prefetch(
        chunk->slots.data() + (hash & (chunk->slots.size() - 1)));
  }
}

std::shared_ptr<const KeyOverlay> KeyOverlay::with(
    std::vector<Change> changes) const {
  std::shared_ptr<KeyOverlay> result(new KeyOverlay(*this));
  const auto chunk_of_change = [&](const Change& change) {
    return chunk_of(hash_of_key(change.key));
  };
  std::stable_sort(
      changes.begin(), changes.end(), [&](const Change& a, const Change& b) {
        return chunk_of_change(a) < chunk_of_change(b);
      });
  for (size_t begin = 0; begin < changes.size();) {
    const size_t number = chunk_of_change(changes[begin]);
    size_t end = begin;
    while (end < changes.size() && chunk_of_change(changes[end]) == number) {
      ++end;
    }
    const Chunk* old = chunks_[number].get();
    std::vector<Slot> kept;
    if (old != nullptr) {
      std::copy_if(
          old->slots.begin(),
          old->slots.end(),
          std::back_inserter(kept),
          [](const Slot& slot) { return slot.found != Found::kNo; });
    }
    const auto chunk = std::make_shared<Chunk>();
    chunk->slots.resize(std::bit_ceil(2 * (kept.size() + end - begin) + 1));
    const size_t mask = chunk->slots.size() - 1;
    const auto put = [&](const Slot& slot) {
      size_t at = hash_of_key(slot.key) & mask;
      while (chunk->slots[at].found != Found::kNo &&
             chunk->slots[at].key != slot.key) {
        at = (at + 1) & mask;
      }
      chunk->slots[at] = slot;
    };
    std::for_each(kept.begin(), kept.end(), put);
    for (size_t i = begin; i < end; ++i) {
      const bool is_removed = changes[i].row == nullptr;
      put(
          {.key = changes[i].key,
           .row = changes[i].row,
           .found = is_removed ? Found::kRemoved : Found::kRow});
    }
    const auto rows_of = [](const std::vector<Slot>& slots) {
      return std::count_if(slots.begin(), slots.end(), [](const Slot& slot) {
        return slot.found == Found::kRow;
      });
    };
    result->size_ += rows_of(chunk->slots) - rows_of(kept);
    result->chunks_[number] = chunk;
    begin = end;
  }
  return result;
}

}  // namespace tessera::serving
