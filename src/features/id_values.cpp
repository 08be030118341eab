// SPDX-License-Identifier: Apache-2.0
#include "src/features/id_values.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/features/id_bags.h"
#include "src/features/tensor_checks.h"
#include "src/tables/combiner_rule.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>

namespace tessera {

namespace {

constexpr int64_t kIdsPerTask = 16384;

// How an id < 0 is treated.
enum class NegativeId {
  kOutOfRange,  // like an id >= vocabulary_size
  // Dropped, or an error without FeatureConfig::validate_weights_and_indices.
  kInvalid
};

// Copies the ids. Returns false if one of them is not in [0, vocab).
bool copy_ids(
    const at::Tensor& contiguous,
    int64_t vocab,
    Buffer<uint32_t>& ids) {
  const kernels::KernelTable& kernels = active_kernels();
  const int64_t count = contiguous.numel();
  ids.resize(count);
  std::atomic<bool> all_valid{true};
  const auto copy = [&](int64_t task) {
    const int64_t begin = task * kIdsPerTask;
    const int64_t size = std::min(kIdsPerTask, count - begin);
    uint32_t* to = ids.data() + begin;
    const bool are_valid = contiguous.scalar_type() == at::kLong
        ? kernels.narrow_int64(
              contiguous.const_data_ptr<int64_t>() + begin, size, vocab, to)
        : kernels.narrow_int32(
              contiguous.const_data_ptr<int32_t>() + begin, size, vocab, to);
    if (!are_valid) {
      all_valid.store(false, std::memory_order_relaxed);
    }
  };
  run_tasks(
      (count + kIdsPerTask - 1) / kIdsPerTask, count * kIdReadBytes, copy);
  return all_valid.load(std::memory_order_relaxed);
}

// Marks the ids that look up zeros and those that are dropped.
void check_ids(
    const FeatureState& feature,
    const at::Tensor& values,
    NegativeId negative_id,
    const BagIndices& bag_indices,
    IdValues& read) {
  const FeatureConfig& config = feature.config;
  const int64_t* ids = values.data_ptr<int64_t>();
  const int64_t vocab = config.table->vocabulary_size;
  for (int64_t i = 0; i < values.numel(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab) {
      continue;
    }
    if (!bag_indices.empty() && bag_indices[i] == kNoBag) {
      continue;  // The id is past the end of its sequence, so it is not used.
    }
    if (!read.is_dropped.empty() && read.is_dropped[i] != 0) {
      continue;  // The id is dropped because of its weight.
    }
    const bool is_invalid = ids[i] < 0 && negative_id == NegativeId::kInvalid;
    if (is_invalid && config.validate_weights_and_indices) {
      read.is_dropped.resize(read.ids.size(), 0);
      read.is_dropped[i] = 1;
      continue;
    }
    TESSERA_CHECK_INDEX(
        config.out_of_range == OutOfRange::kZero && !is_invalid,
        "{}{} has ids in [0, {}), but got {} at position {}. {}",
        where_of(feature),
        config.table->name.empty()
            ? std::string("its table")
            : "table '" + shorten(config.table->name) + "'",
        vocab,
        ids[i],
        i,
        is_invalid
            ? "Set validate_weights_and_indices = true to drop negative ids."
            : "Correct the id, enlarge vocabulary_size, or set out_of_range "
              "= OutOfRange::kZero.");
    read.ids[i] = kZeroRow;
    ++read.zero_rows;
  }
}

// Copies the keys of a key table. Any int64 is a key.
void read_keys(
    const DynamicKeys& config,
    const at::Tensor& values,
    NegativeId negative_id,
    IdValues& read) {
  const auto* keys = values.const_data_ptr<int64_t>();
  const int64_t count = values.numel();
  read.keys.resize(count);
  read.ids.resize(count);
  run_tasks(
      (count + kIdsPerTask - 1) / kIdsPerTask,
      count * kIdReadBytes,
      [&](int64_t task) {
        const int64_t begin = task * kIdsPerTask;
        const int64_t end = std::min(count, begin + kIdsPerTask);
        std::copy(keys + begin, keys + end, read.keys.begin() + begin);
        std::iota(
            read.ids.begin() + begin,
            read.ids.begin() + end,
            static_cast<uint32_t>(begin));
      });
  if (!config.padding_key) {
    return;
  }
  for (size_t i = 0; i < read.keys.size(); ++i) {
    if (read.keys[i] != *config.padding_key) {
      continue;
    }
    if (negative_id == NegativeId::kInvalid) {  // a value of a bag
      read.is_dropped.resize(read.ids.size(), 0);
      read.is_dropped[i] = 1;
    } else {
      read.ids[i] = kZeroRow;
      ++read.padding;
    }
  }
}

void read_ids(
    const FeatureState& feature,
    const at::Tensor& values,
    NegativeId negative_id,
    const BagIndices& bag_indices,
    IdValues& read) {
  TESSERA_CHECK_VALUE(
      values.numel() < std::numeric_limits<uint32_t>::max(),
      "{}a batch must have fewer than 2^32 - 1 ids, but got {}. Split the batch.",
      where_of(feature),
      values.numel());
  const at::Tensor contiguous = as_contiguous(values);
  if (feature.config.table->keys) {
    read_keys(
        *feature.config.table->keys, as_int64(contiguous), negative_id, read);
  } else if (!copy_ids(
                 contiguous, feature.config.table->vocabulary_size, read.ids)) {
    check_ids(feature, as_int64(contiguous), negative_id, bag_indices, read);
  }
}

// Copies the weights. If the combiner divides by them, and with
// FeatureConfig::validate_weights_and_indices, ids whose weights are not positive are
// dropped. Call it before read_ids(), which does not check these ids.
void read_weights(
    const FeatureState& feature,
    const at::Tensor& weights,
    IdValues& read) {
  const at::Tensor contiguous = as_contiguous(weights.detach());
  const float* begin = contiguous.data_ptr<float>();
  read.weights.assign(begin, begin + contiguous.numel());
  if (!feature.config.validate_weights_and_indices ||
      !is_divided(feature.config.table->combiner)) {
    return;
  }
  for (size_t i = 0; i < read.weights.size(); ++i) {
    if (!(read.weights[i] > 0.0F)) {
      read.is_dropped.resize(read.weights.size(), 0);
      read.is_dropped[i] = 1;
    }
  }
}

}  // namespace

IdValues read_dense_ids(const FeatureState& feature, const at::Tensor& ids) {
  IdValues read;
  read_ids(feature, ids, NegativeId::kOutOfRange, {}, read);
  return read;
}

IdValues read_id_values(
    const FeatureState& feature,
    const at::Tensor& values,
    const at::Tensor& weights,
    const BagIndices& bag_indices) {
  IdValues read;
  if (weights.defined()) {
    read_weights(feature, weights, read);
  }
  read_ids(feature, values, NegativeId::kInvalid, bag_indices, read);
  return read;
}

}  // namespace tessera
