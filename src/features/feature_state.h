// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature_config.h>
#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include "src/common/atomic_count.h"

#include <c10/util/FunctionRef.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// One feature: its path in the nest, its config, the table it reads.
struct FeatureState {
  std::string path = {};
  FeatureConfig config = {};
  size_t table = 0;
  /// What is known of the activation's shape, without dim.
  std::optional<PartialShape> output_shape = {};
  /// Whether a batch must agree with it.
  bool verifies_shape = true;
  /// The number of rows of every ragged batch, if the output_shape is fully known. The
  /// first batch fixes it, so that the size of a batch never decides whether a row is a
  /// bag or a sequence. -1 before the first batch.
  AtomicCount ragged_rows = -1;
};

/// "[feature 'path'] ", the beginning of messages about a feature.
std::string where_of(const FeatureState& feature);

/// The features of a layer, in the order of its nest, and what is known of their
/// shapes.
struct FeatureSet {
  std::vector<FeatureState> features = {};
  /// Output shapes are known, but for some of the first dimensions.
  bool is_built = false;
  /// Whether all features of all batches have one first dimension.
  bool fixed_batch_size = false;
};

/// One entry per feature config, in order; `table_of` gives FeatureState::table.
/// Errors:  c10::ValueError for unusable configs, naming the feature.
std::vector<FeatureState> feature_states(
    const Nest<FeatureConfig>& features,
    c10::function_ref<size_t(const FeatureState&)> table_of);

}  // namespace tessera
