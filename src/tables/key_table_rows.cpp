// SPDX-License-Identifier: Apache-2.0
#include "src/tables/key_table_rows.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/kernels/prefetch.h"
#include "src/tables/table_memory.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <limits>
#include <utility>

namespace tessera {

namespace {

// Rows have 32-bit numbers, and the largest one is kNoRow. Only addresses are reserved.
int64_t scratch_rows(int64_t rows) {
  constexpr int64_t kMaxScratchRows = int64_t{1} << 24;
  return std::min(
      kMaxScratchRows, std::numeric_limits<uint32_t>::max() - 2 - rows);
}

// The rows of all_rows() whose memory is taken at once under DynamicKeys::preallocate. A
// batch has few new keys, so most scratch rows are never used.
int64_t touched_rows(const DynamicKeys& keys, int64_t rows) {
  constexpr int64_t kTouchedScratchRows = int64_t{1} << 16;
  return keys.preallocate
      ? rows + 1 + std::min(scratch_rows(rows), kTouchedScratchRows)
      : 0;
}

}  // namespace

void write_rows(
    c10::ArrayRef<uint32_t> rows,
    const void* data,
    int64_t row_bytes,
    c10::function_ref<void(int64_t)> write) {
  constexpr int64_t kRowsPerTask = 256;
  constexpr int64_t kAhead = 8;
  const auto count = std::ssize(rows);
  run_ranges(
      count,
      kRowsPerTask,
      count * row_bytes * 2,
      [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (i + kAhead < end) {
            kernels::prefetch_row(data, row_bytes, rows[i + kAhead]);
          }
          write(i);
        }
      });
}

KeyTableRows::KeyTableRows(
    const TableConfig& config,
    const std::string& name,
    uint64_t seed,
    PartitionRange owned)
    : KeyTableRows(
          config,
          name,
          seed,
          KeyIndex(*config.keys, name, random_key(seed, name), owned)) {}

KeyTableRows::KeyTableRows(
    const TableConfig& config,
    const std::string& name,
    uint64_t seed,
    KeyIndex index)
    : config_(config),
      name_(name),
      seed_(seed),
      index_(std::move(index)),
      all_rows_(reserve_rows(
          index_.rows() + 1 + scratch_rows(index_.rows()),
          stored_columns(config.dim, config.dtype),
          config.dtype,
          "the rows of table '" + shorten(name) + "'",
          touched_rows(*config.keys, index_.rows()))) {
  if (rounds_at_random(config)) {
    const std::string what = "the keys of table '" + shorten(name) + "'";
    row_keys_ = ReservedArray<int64_t>(index_.rows(), what);
    if (config.keys->preallocate) {
      row_keys_.touch_pages(what);
    }
  }
}

std::shared_ptr<KeyTableRows> KeyTableRows::clone() const {
  std::shared_ptr<KeyTableRows> copy(
      new KeyTableRows(config_, name_, seed_, KeyIndex(index_)));
  index_.visit_used_rows([&](int64_t first, int64_t used) {
    copy->all_rows_.narrow(0, first, used)
        .copy_(all_rows_.narrow(0, first, used));
    if (row_keys_.size() > 0) {
      std::copy_n(
          row_keys_.data() + first, used, copy->row_keys_.data() + first);
    }
  });
  return copy;
}

void KeyTableRows::set_seed(uint64_t seed) {
  seed_ = seed;
  index_.set_random_key(random_key(seed, name_));
}

at::Tensor KeyTableRows::initial_values(c10::ArrayRef<int64_t> keys) const {
  const at::NoGradGuard no_grad;
  at::Tensor values = at::empty({std::ssize(keys), config_.dim}, at::kFloat);
  initialize_keys(initializer_of(config_), seed_, name_, keys.data(), values);
  if (config_.dtype != at::kFloat) {
    check_initial_values(
        float_rows(rows_of_dtype(values, config_.dtype)), config_, name_);
  }
  return values;
}

std::shared_ptr<const InitialValues> KeyTableRows::ordered_initial_values(
    std::vector<int64_t> keys) const {
  at::Tensor values = initial_values(keys);
  return std::make_shared<const InitialValues>(InitialValues{
      .seed = seed_, .keys = std::move(keys), .values = std::move(values)});
}

at::Tensor KeyTableRows::initial_values(
    c10::ArrayRef<int64_t> keys,
    c10::ArrayRef<std::shared_ptr<const InitialValues>> known) const {
  std::vector<const float*> sources(keys.size(), nullptr);
  for (const auto& initial : known) {
    if (initial == nullptr || initial->seed != seed_) {
      continue;
    }
    if (keys.equals(initial->keys)) {
      return initial->values;
    }
    const auto* values = initial->values.const_data_ptr<float>();
    size_t k = 0;
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint64_t hash = hash_of_key(keys[i]);
      while (k < initial->keys.size() && hash_of_key(initial->keys[k]) < hash) {
        ++k;
      }
      if (k < initial->keys.size() && initial->keys[k] == keys[i]) {
        sources[i] = values + static_cast<int64_t>(k) * config_.dim;
      }
    }
  }
  std::vector<int64_t> unknown;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (sources[i] == nullptr) {
      unknown.push_back(keys[i]);
    }
  }
  const at::Tensor computed = initial_values(unknown);
  if (unknown.size() == keys.size()) {
    return computed;
  }
  const auto* next = computed.const_data_ptr<float>();
  at::Tensor values = at::empty({std::ssize(keys), config_.dim}, at::kFloat);
  auto* value = values.mutable_data_ptr<float>();
  for (const float* source : sources) {
    std::copy_n(source != nullptr ? source : next, config_.dim, value);
    next += source != nullptr ? 0 : config_.dim;
    value += config_.dim;
  }
  return values;
}

void KeyTableRows::set_row_keys(
    c10::ArrayRef<uint32_t> rows,
    c10::ArrayRef<int64_t> keys) {
  for (size_t i = 0; i < rows.size() && row_keys_.size() > 0; ++i) {
    row_keys_[rows[i]] = keys[i];
  }
}

void KeyTableRows::assign(
    c10::ArrayRef<uint32_t> rows,
    const at::Tensor& values) {
  const kernels::StoredRows stored = mutable_rows(all_rows_);
  const auto* value = values.const_data_ptr<float>();
  const kernels::KernelTable& kernels = active_kernels();
  write_rows(
      rows,
      stored.data,
      kernels::bytes_of_row(stored.storage, config_.dim),
      [&](int64_t i) {
        kernels.assign_row(stored, rows[i], value + i * config_.dim);
      });
}

NumberedKeys KeyTableRows::sorted_keys() const {
  const std::vector<KeyEntry> entries = index_.sorted_entries();
  const auto count = std::ssize(entries);
  const NumberedKeys result{
      .keys = at::empty({count}, at::kLong),
      .rows = at::empty({count}, at::kLong)};
  auto* keys = result.keys.mutable_data_ptr<int64_t>();
  auto* rows = result.rows.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    keys[i] = entries[i].key;
    rows[i] = entries[i].row;
  }
  return result;
}

std::unique_ptr<KeyTableRows::Lease> KeyTableRows::lease(int64_t count) {
  const int64_t all = all_rows_.size(0) - index_.rows() - 1;
  TESSERA_CHECK(
      count <= all,
      "[table '{}'] one batch may have at most {} keys without a row, but got {}. Split the batch.",
      shorten(name_),
      all,
      count);
  std::unique_lock<std::mutex> lock(mutex_);
  is_free_.wait(lock, [&] { return leased_rows_ + count <= all; });
  auto lease = std::make_unique<Lease>(
      *this, static_cast<uint32_t>(index_.rows() + 1 + leased_rows_));
  ++leases_;
  leased_rows_ += count;
  return lease;
}

KeyTableRows::Lease::~Lease() {
  const std::lock_guard<std::mutex> lock(rows_.mutex_);
  if (--rows_.leases_ == 0) {
    rows_.leased_rows_ = 0;
    rows_.is_free_.notify_all();
  }
}

const at::Tensor& lookup_rows_of(const TableState& table) {
  return table.key_rows != nullptr ? table.key_rows->all_rows()
                                   : table.parameters;
}

}  // namespace tessera
