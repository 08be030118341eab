// SPDX-License-Identifier: Apache-2.0
#pragma once

// The rules by which layers and the readers of published models read ids. They need no
// LibTorch.

#include "src/tables/combiner_rule.h"

#include <cstdint>
#include <optional>

namespace tessera {

/// How an id is used.
enum class IdUse {
  kRow,  // it looks up a row
  kZeros,  // it looks up zeros, and its weight counts in the denominator
  kDropped,  // as if it were not there
  kRefused
};

/// Decides about the ids of one feature.
struct IdRule {
  /// 0 with keys.
  int64_t vocabulary_size = 0;
  bool has_keys = false;
  std::optional<int64_t> padding_key = {};
  /// FeatureConfig::validate_weights_and_indices.
  bool validates = true;
  /// Whether FeatureConfig::out_of_range is OutOfRange::kZero.
  bool zeros_out_of_range = false;
  Combiner combiner = Combiner::kSum;

  /// `is_in_bag`: whether ids are combined or in a sequence. Each id of a dense feature has
  /// its own vector, so none is dropped.
  IdUse use_of(int64_t id, bool is_in_bag) const {
    if (has_keys) {
      return id != padding_key ? IdUse::kRow
          : is_in_bag          ? IdUse::kDropped
                               : IdUse::kZeros;
    }
    if (id >= 0 && id < vocabulary_size) {
      return IdUse::kRow;
    }
    const bool is_invalid = id < 0 && is_in_bag;
    return is_invalid && validates          ? IdUse::kDropped
        : !is_invalid && zeros_out_of_range ? IdUse::kZeros
                                            : IdUse::kRefused;
  }

  /// Whether ids whose weights are not > 0 are dropped. Their values are not checked.
  bool drops_weights() const {
    return validates && is_divided(combiner);
  }
};

/// Whether `splits` [rows + 1] ascend from 0 to `nnz`.
inline bool are_row_splits(const int64_t* splits, int64_t rows, int64_t nnz) {
  bool ascend = true;
  for (int64_t row = 0; row < rows; ++row) {
    ascend &= splits[row] <= splits[row + 1];
  }
  return ascend && splits[0] == 0 && splits[rows] == nnz;
}

/// Whether row i has only the id i.
inline bool has_one_id_per_row(const int64_t* splits, int64_t rows) {
  if (splits[rows] != rows) {
    return false;
  }
  int64_t difference = 0;
  for (int64_t row = 0; row < rows; ++row) {
    difference |= splits[row] ^ row;
  }
  return difference == 0;
}

/// The scale of the bag with the ids [begin, end). `weights` is nullptr if all are 1.
inline float scale_of_bag(
    Combiner combiner,
    const float* weights,
    int64_t begin,
    int64_t end) {
  auto total = static_cast<double>(end - begin);
  if (weights != nullptr) {
    total = 0.0;
    for (int64_t i = begin; i < end; ++i) {
      total += combiner_term(combiner, weights[i]);
    }
  }
  return combiner_scale(combiner, total);
}

}  // namespace tessera
