// SPDX-License-Identifier: Apache-2.0
#include "src/features/id_values.h"

#include <tessera/common/shorten.h>

#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/features/id_rule.h"
#include "src/features/tensor_checks.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <limits>
#include <numeric>
#include <string>
#include <utility>

namespace tessera {

namespace {

constexpr int64_t kIdsPerTask = 16384;

IdRule id_rule_of(const FeatureConfig& config) {
  const TableConfig& table = *config.table;
  return {
      .vocabulary_size = table.vocabulary_size,
      .has_keys = table.keys.has_value(),
      .padding_key = table.keys ? table.keys->padding_key : std::nullopt,
      .validates = config.validate_weights_and_indices,
      .zeros_out_of_range = config.out_of_range == OutOfRange::kZero,
      .combiner = table.combiner};
}

// Copies the ids. Returns false if one of them is not in [0, vocab).
bool copy_ids(
    const at::Tensor& contiguous,
    int64_t vocab,
    Buffer<uint32_t>& ids) {
  const kernels::KernelTable& kernels = active_kernels();
  const int64_t count = contiguous.numel();
  ids.resize(count);
  std::atomic<bool> all_valid{true};
  const auto copy = [&](int64_t begin, int64_t end) {
    const int64_t size = end - begin;
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
  run_ranges(count, kIdsPerTask, count * kIdReadBytes, copy);
  return all_valid.load(std::memory_order_relaxed);
}

// Marks the ids that look up zeros and those that are dropped.
void mark_ids(
    const FeatureState& feature,
    const at::Tensor& values,
    bool are_in_bags,
    const BagIndices& bag_indices,
    std::vector<char>& is_dropped,
    IdBags& bags) {
  const FeatureConfig& config = feature.config;
  const IdRule rule = id_rule_of(config);
  const int64_t* ids = values.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    const IdUse use = rule.use_of(ids[i], are_in_bags);
    if (use == IdUse::kRow) {
      continue;
    }
    if (!bag_indices.empty() && bag_indices[i] == kNoBag) {
      continue;  // The id is past the end of its sequence, so it is not used.
    }
    if (!is_dropped.empty() && is_dropped[i] != 0) {
      continue;  // The id is dropped because of its weight.
    }
    if (use == IdUse::kDropped) {
      is_dropped.resize(bags.ids.size(), 0);
      is_dropped[i] = 1;
      continue;
    }
    TESSERA_CHECK_INDEX(
        use == IdUse::kZeros,
        "{}{} has ids in [0, {}), but got {} at position {}. {}",
        where_of(feature),
        config.table->name.empty()
            ? std::string("its table")
            : "table '" + shorten(config.table->name) + "'",
        rule.vocabulary_size,
        ids[i],
        i,
        ids[i] < 0 && are_in_bags
            ? "Set validate_weights_and_indices = true to drop negative ids."
            : "Correct the id, enlarge vocabulary_size, or set out_of_range "
              "= OutOfRange::kZero.");
    bags.ids[i] = kZeroRow;
    ++(rule.has_keys ? bags.padding : bags.zero_rows);
  }
}

// Copies the keys of a key table. Any int64 is a key.
void copy_keys(const at::Tensor& values, IdBags& bags) {
  const auto* keys = values.const_data_ptr<int64_t>();
  const int64_t count = values.numel();
  bags.keys.resize(count);
  bags.ids.resize(count);
  run_ranges(
      count,
      kIdsPerTask,
      count * kIdReadBytes,
      [&](int64_t begin, int64_t end) {
        std::copy(keys + begin, keys + end, bags.keys.begin() + begin);
        std::iota(
            bags.ids.begin() + begin,
            bags.ids.begin() + end,
            static_cast<uint32_t>(begin));
      });
}

void read_ids(
    const FeatureState& feature,
    const at::Tensor& values,
    bool are_in_bags,
    const BagIndices& bag_indices,
    std::vector<char>& is_dropped,
    IdBags& bags) {
  TESSERA_CHECK_VALUE(
      values.numel() < std::numeric_limits<uint32_t>::max(),
      "{}a batch must have fewer than 2^32 - 1 ids, but got {}. Split the batch.",
      where_of(feature),
      values.numel());
  const at::Tensor contiguous = as_contiguous(values);
  bool are_rows = false;
  if (const auto& keys = feature.config.table->keys) {
    copy_keys(as_int64(contiguous), bags);
    are_rows = !keys->padding_key;
  } else {
    are_rows =
        copy_ids(contiguous, feature.config.table->vocabulary_size, bags.ids);
  }
  if (!are_rows) {
    mark_ids(
        feature,
        as_int64(contiguous),
        are_in_bags,
        bag_indices,
        is_dropped,
        bags);
  }
}

// Copies the weights, and marks the ids that are dropped because of them. Call it before
// read_ids(), which does not check these ids.
void read_weights(
    const FeatureState& feature,
    const at::Tensor& weights,
    std::vector<char>& is_dropped,
    IdBags& bags) {
  const at::Tensor contiguous = as_contiguous(weights.detach());
  const float* begin = contiguous.data_ptr<float>();
  bags.weights.assign(begin, begin + contiguous.numel());
  if (!id_rule_of(feature.config).drops_weights()) {
    return;
  }
  for (size_t i = 0; i < bags.weights.size(); ++i) {
    if (!(bags.weights[i] > 0.0F)) {
      is_dropped.resize(bags.weights.size(), 0);
      is_dropped[i] = 1;
    }
  }
}

}  // namespace

void read_dense_ids(
    const FeatureState& feature,
    const at::Tensor& ids,
    IdBags& bags) {
  std::vector<char> none_dropped;
  read_ids(feature, ids, /*are_in_bags=*/false, {}, none_dropped, bags);
}

std::vector<char> read_id_values(
    const FeatureState& feature,
    const at::Tensor& values,
    const at::Tensor& weights,
    const BagIndices& bag_indices,
    IdBags& bags) {
  std::vector<char> is_dropped;
  if (weights.defined()) {
    read_weights(feature, weights, is_dropped, bags);
  }
  read_ids(
      feature, values, /*are_in_bags=*/true, bag_indices, is_dropped, bags);
  return is_dropped;
}

// A stable counting sort.
void sort_into_bags(
    const std::vector<char>& is_dropped,
    BagIndices bag_indices,
    IdBags& bags) {
  for (size_t i = 0; i < is_dropped.size(); ++i) {
    if (is_dropped[i] != 0) {
      bag_indices[i] = kNoBag;
    }
  }
  bags.offsets.assign(bags.bags + 1, 0);
  for (const int64_t bag : bag_indices) {
    if (bag != kNoBag) {
      ++bags.offsets[bag + 1];
    }
  }
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    bags.offsets[bag + 1] += bags.offsets[bag];
  }
  const int64_t nnz = bags.offsets.back();
  Buffer<int64_t> next(bags.offsets.begin(), bags.offsets.end());
  Buffer<uint32_t> ids(nnz);
  Buffer<float> weights(bags.weights.empty() ? 0 : nnz);
  Buffer<int64_t> kept(nnz);
  int64_t zero_rows = 0;
  for (size_t i = 0; i < bag_indices.size(); ++i) {
    if (bag_indices[i] == kNoBag) {
      continue;
    }
    const int64_t to = next[bag_indices[i]]++;
    ids[to] = bags.ids[i];
    kept[to] = static_cast<int64_t>(i);
    zero_rows += bags.ids[i] == kZeroRow ? 1 : 0;
    if (!weights.empty()) {
      weights[to] = bags.weights[i];
    }
  }
  bags.ids = std::move(ids);
  bags.weights = std::move(weights);
  bags.kept = std::move(kept);
  bags.zero_rows = zero_rows;
}

}  // namespace tessera
