// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/batch.h"
#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>
#include <c10/core/DispatchKeySet.h>
#include <c10/core/ScalarType.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace tessera {

/// How to read batches of one structure: the nest, and the kind, dtype, layout and shape
/// of each feature.
///
/// read_batch() checks all of these, which takes longer than the lookup of a small batch.
/// The batches of a training loop usually have the same structure, so a plan compares a
/// batch with one that has passed the checks. It then only checks ids and row splits.
class BatchPlan {
 public:
  /// Makes a plan for batches like `features`, which read_batch() has read as `batch`,
  /// without weights. Returns nullptr if the batch has so many ids that several threads
  /// read them, or a feature that plans do not support, such as a sparse one, a sequence or
  /// one with a key table.
  static std::shared_ptr<const BatchPlan> make(
      const Nest<FeatureConfig>& structure,
      const std::vector<FeatureState>& states,
      const Features& features,
      const Batch& batch);

  /// Reads a batch into `bags`, whose memory is used again. Returns false if the batch has
  /// another structure, an id out of range, or invalid row splits. read_batch() then has
  /// to read it, and reports errors.
  bool read(const Features& features, std::vector<IdBags>& bags) const;

 private:
  // What all tensors have in common that are read the same way.
  struct TensorKind {
    c10::DispatchKeySet keys;  // device, layout and negative bit
    at::ScalarType dtype;

    static TensorKind of(const at::Tensor& tensor) {
      return {tensor.key_set(), tensor.scalar_type()};
    }
    // Whether `tensor` is of this kind and contiguous.
    bool matches(const at::Tensor& tensor) const {
      return tensor.defined() && tensor.key_set() == keys &&
          tensor.scalar_type() == dtype && tensor.is_contiguous();
    }
  };
  struct PlannedFeature {
    TensorKind ids;
    std::vector<int64_t> sizes;  // of the ids of a dense feature
    bool is_ragged;
    TensorKind row_splits;  // of a ragged feature
    int64_t vocab;
    IdBags bags;  // without ids
  };

  static bool can_plan(
      const FeatureState& state,
      const Feature& feature,
      const IdBags& bags);
  bool read_nest(
      const Nest<size_t>& nest,
      const Features& features,
      std::vector<IdBags>& bags) const;
  bool read_feature(
      const PlannedFeature& planned,
      const Feature& feature,
      IdBags& bags) const;

  Nest<size_t> nest_;  // the nest of the batches, with indices of features_
  std::vector<PlannedFeature> features_;  // in the order of the configs
};

/// Keeps the bags of finished batches, so that later batches use their memory. The IdBags
/// of 26 features have more than 7 KB, and a request for 1 KiB or more makes malloc() merge
/// the free blocks of the batch's tensors. Any thread may call the functions.
class SpareBags {
 public:
  /// Returns bags that were given back, or an empty vector.
  std::vector<IdBags> take();
  void give_back(std::vector<IdBags> bags) noexcept;

 private:
  std::mutex mutex_;
  std::vector<std::vector<IdBags>> spare_;
};

/// Reads the batches of a layer that have the structure of the last planned batch. Several
/// threads may call it at the same time.
class PlannedReader {
 public:
  /// Reads a batch into `batch`. Returns false if it does not fit the plan.
  bool read(const Features& features, const Weights& weights, Batch& batch)
      const;

  /// Makes a plan from a batch that read_batch() has read.
  void plan(
      const Nest<FeatureConfig>& structure,
      const std::vector<FeatureState>& states,
      const Features& features,
      const Weights& weights,
      const Batch& batch);

  /// Called after the states of features have changed.
  void forget_plan();

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const BatchPlan> plan_;  // guarded by mutex_
  std::shared_ptr<SpareBags> spare_ = std::make_shared<SpareBags>();
};

}  // namespace tessera
