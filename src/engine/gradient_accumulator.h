// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/common/buffer.h"
#include "src/engine/key_updates.h"
#include "src/engine/table_update.h"
#include "src/features/id_bags.h"

#include <ATen/ops/from_blob.h>

#include <cstdint>
#include <utility>

namespace tessera {

/// The gradients of one table collected over several backward passes: one sum
/// per touched row, however many passes there were.
class GradientAccumulator {
 public:
  GradientAccumulator() = default;
  GradientAccumulator(RowGradients gradients, int64_t dim, int64_t passes)
      : sums_(std::move(gradients.sums)), passes_(passes) {
    bags_.bags = static_cast<int64_t>(gradients.rows.size());
    bags_.ids = std::move(gradients.rows);
    bags_.dim = dim;
  }

  /// Passes collected since the last clear().
  int64_t passes() const {
    return passes_;
  }

  /// The sums as one gradient, multiplied by `factor`. It is valid until the
  /// accumulator changes.
  TableUpdate::Term term(float factor = 1.0F) const {
    return {
        .bags = &bags_,
        .gradient = sums_.data(),
        .stride = bags_.dim,
        .factor = factor};
  }

  /// The keys of a key table. rows() are then indices of CollectedKeys::keys.
  const CollectedKeys& keys() const {
    return keys_;
  }
  void set_keys(CollectedKeys keys) {
    keys_ = std::move(keys);
  }

  /// The local rows, each once, in any order.
  const Buffer<uint32_t>& rows() const {
    return bags_.ids;
  }
  /// [distinct rows, dim]
  const Buffer<float>& sums() const {
    return sums_;
  }

  void scale(float factor) {
    at::from_blob(sums_.data(), static_cast<int64_t>(sums_.size()), at::kFloat)
        .mul_(factor);
  }

  void clear() {
    *this = {};
  }

 private:
  IdBags bags_;  // one bag per row
  Buffer<float> sums_;  // [rows, dim]
  CollectedKeys keys_;
  int64_t passes_ = 0;
};

}  // namespace tessera
