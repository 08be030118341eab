// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <cstdint>
#include <vector>

namespace tessera {

// What is known of the activations' shapes: by FeatureConfig::output_shape, else
// by a build, else by the first batch.

/// From the shapes of sparse or ragged inputs, in the nest of the configs: the last
/// dimension is combined; a dense input [B, K] counts as [B, K, 1].
///
///   [B], [B, n]            [B], or [B, max_sequence_length]
///   [d0, ..., dr, n]       [d0, ..., dr]; max_sequence_length replaces dr
///
/// The first dimension may stay unknown, the others only where output_shape
/// says them.
/// Errors:  c10::ValueError naming the feature, for shapes that contradict
///          output_shape or an earlier build; nothing is changed.
void build_output_shapes(
    FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes);

/// Of a build by the batch size alone: every feature without an output_shape has
/// `batch_size` bags or sequences. An output_shape with an unknown first dimension gets
/// `batch_size` there.
/// Errors:  c10::ValueError unless batch_size >= 1.
Nest<PartialShape> input_shapes_of(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    int64_t batch_size);

/// Fixes rank and inner dimensions by a first batch; with
/// FeatureSet::fixed_batch_size the first dimension, too.
/// Errors:  c10::ValueError when features differ in a fixed batch size.
void learn_output_shapes(FeatureSet& set, const std::vector<IdBags>& batch);

/// Sets FeatureState::ragged_rows of each feature for which `rows` are the first ones
/// to need it. Any number of threads may call it at the same time.
/// Errors:  c10::ValueError when another thread has fixed another number.
void fix_ragged_rows(FeatureSet& set, const std::vector<int64_t>& rows);

}  // namespace tessera
