// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/reader/published_table.h"

#include "src/common/active_kernels.h"
#include "src/common/check.h"

#include <tessera/common/shorten.h>

#include <algorithm>
#include <array>
#include <functional>
#include <span>
#include <utility>

namespace tessera::serving {

namespace {

kernels::Storage storage_of(StoredFormat format) {
  return format == StoredFormat::kBFloat16 ? kernels::Storage::kBFloat16
      : format == StoredFormat::kFloat16   ? kernels::Storage::kFloat16
                                           : kernels::Storage::kFloat32;
}

// Memory of this thread that lookups use again.
template <class T>
T* scratch(int64_t size) {
  thread_local std::vector<T> memory;
  if (memory.size() < static_cast<size_t>(size)) {
    memory.resize(static_cast<size_t>(size));
  }
  return memory.data();
}

// The row of unknown keys, for all tables. What nobody writes to takes no memory.
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
  const auto bytes = base.bytes(*file.numbers);
  key_buckets_ = reinterpret_cast<const KeyBucket*>(bytes.data());
  num_key_buckets_ = static_cast<int64_t>(bytes.size() / sizeof(KeyBucket));
  int64_t keys = 0;
  bool are_valid = true;
  for (int64_t i = 0; i < num_key_buckets_ && are_valid; ++i) {
    const KeyBucket& bucket = key_buckets_[i];
    are_valid = bucket.size <= KeyBucket::kSize;
    for (uint32_t j = 0; are_valid && j < bucket.size; ++j) {
      are_valid = bucket.rows[j] < file.count;
    }
    keys += bucket.size;
  }
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
    const auto bytes = version.bytes(*file.numbers);
    const std::span<const uint32_t> rows(
        reinterpret_cast<const uint32_t*>(bytes.data()),
        static_cast<size_t>(file.count));
    const bool ascend =
        std::adjacent_find(rows.begin(), rows.end(), std::greater_equal<>()) ==
        rows.end();
    TESSERA_CHECK_VALUE(
        ascend && (rows.empty() || rows.back() < file_.vocabulary_size),
        "{} the numbers of the rows of table '{}' do not ascend below {}. The file is damaged.",
        where,
        shorten(file_.name),
        file_.vocabulary_size);
    if (!rows.empty()) {
      const RowOverlay empty(
          row_overlay_ == nullptr ? file_.vocabulary_size : 0);
      const RowOverlay& old = row_overlay_ == nullptr ? empty : *row_overlay_;
      next.row_overlay_ = old.with(rows, first, row_bytes_);
    }
    return next;
  }
  const auto keys_in = [&](const Section& section) {
    const auto bytes = version.bytes(section);
    return std::span<const int64_t>(
        reinterpret_cast<const int64_t*>(bytes.data()), bytes.size() / 8);
  };
  std::vector<KeyOverlay::Change> changes;
  if (file.removed) {
    for (const int64_t key : keys_in(*file.removed)) {
      changes.push_back({.key = key});
    }
  }
  for (const int64_t key : keys_in(*file.numbers)) {
    changes.push_back({.key = key, .row = first});
    first += row_bytes_;
  }
  if (!changes.empty()) {
    // A capacity may be far larger than the number of keys, and costs memory.
    const int64_t expected_keys =
        16 * (num_keys_ + static_cast<int64_t>(changes.size()));
    const KeyOverlay empty(
        key_overlay_ == nullptr ? std::min(file_.keys->capacity, expected_keys)
                                : 1);
    const KeyOverlay& old = key_overlay_ == nullptr ? empty : *key_overlay_;
    std::vector<int64_t> changed;
    for (const KeyOverlay::Change& change : changes) {
      changed.push_back(change.key);
    }
    std::sort(changed.begin(), changed.end());
    changed.erase(std::unique(changed.begin(), changed.end()), changed.end());
    const auto count_in = [&](const PublishedTable& table) {
      return std::count_if(changed.begin(), changed.end(), [&](int64_t key) {
        return table.find(key) != nullptr;
      });
    };
    const int64_t before = count_in(*this);
    next.key_overlay_ = old.with(std::move(changes));
    next.num_keys_ += count_in(next) - before;
  }
  next.find_default_row();
  return next;
}

TableInfo PublishedTable::info() const {
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
    const KeyOverlay::Place place = key_overlay_->find(key);
    if (place.found != KeyOverlay::Found::kNo) {
      return place.row;
    }
  }
  const uint32_t row = find_key(key_buckets_, num_key_buckets_, key);
  return row == kNoKeyRow ? nullptr : base_row(row);
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
