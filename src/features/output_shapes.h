// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/features/feature_state.h"
#include "src/features/id_bags.h"

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace tessera {

// All rules about output shapes, which are the shapes of the activations without dim.
// FeatureState::output_shape has what is known of a feature's: from
// FeatureConfig::output_shape, else from a build, else from the first batch.

// One feature.

/// The output shape that a sparse input of shape `input` gives:
///
///   [B], [B, n]            [B], or [B, max_sequence_length]
///   [d0, ..., dr, n]       [d0, ..., dr]; max_sequence_length replaces dr
///
/// A dense input [B, K] counts as [B, K, 1], and a ragged one of R rows as [R, ?].
/// Errors:  c10::ValueError naming the feature, for rank 0 or a negative size.
PartialShape output_shape_of(
    const FeatureState& feature,
    const PartialShape& input);

/// output_shape_of() for an input of a batch.
/// Errors:  c10::ValueError naming the feature if that contradicts the known shape.
std::vector<int64_t> output_shape_of_batch(
    const FeatureState& feature,
    const PartialShape& input);

/// What the rows of a ragged batch are.
struct RaggedRows {
  std::vector<int64_t> output_shape = {};
  /// 0: each row is a bag. > 0: each row is a sequence of this length.
  int64_t sequence_length = 0;
  /// The number of rows if FeatureConfig::output_shape is fully known; else -1.
  int64_t fixed_rows = -1;
};

/// Reads a ragged batch of `rows` rows as FeatureConfig::output_shape describes.
/// Errors:  c10::ValueError naming the feature if the rows do not fit its output shape,
///          or their number differs from FeatureState::ragged_rows.
RaggedRows ragged_rows_of_batch(const FeatureState& feature, int64_t rows);

/// The product of the known sizes.
/// Errors:  c10::ValueError naming the feature for 2^32 - 1 bags or more.
int64_t count_bags(
    const FeatureState& feature,
    const PartialShape& output_shape);

// All features of a layer.

/// The output shapes after a build, from the shapes of sparse or ragged inputs in the
/// nest of the configs. The first dimension may stay unknown, the others only where the
/// known shape has them.
/// Errors:  c10::ValueError naming the feature, for shapes that contradict the known
///          ones.
std::vector<PartialShape> compute_output_shapes(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes);

/// Fixes what compute_output_shapes() gives. After an error nothing is changed.
void build_output_shapes(
    FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes);

/// The input shapes of a build by the batch size alone: every feature without an
/// output_shape has `batch_size` bags or sequences. An output_shape with an unknown first
/// dimension gets `batch_size` there.
/// Errors:  c10::ValueError unless batch_size >= 1.
Nest<PartialShape> input_shapes_of(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    int64_t batch_size);

/// The input shapes of several builds as those of one: the ones of the last build, with
/// what it leaves unknown from `before`.
Nest<PartialShape> join_input_shapes(
    const Nest<FeatureConfig>& structure,
    const std::optional<Nest<PartialShape>>& before,
    const Nest<PartialShape>& now);

/// Fixes rank and inner dimensions by a first batch, which was checked against what is
/// known; with FeatureSet::fixed_batch_size the first dimension, too.
/// Errors:  c10::ValueError when features differ in a fixed batch size.
void learn_output_shapes(FeatureSet& set, const std::vector<IdBags>& batch);

/// Sets FeatureState::ragged_rows of each feature for which `rows` are the first ones
/// to need it. Any number of threads may call it at the same time.
/// Errors:  c10::ValueError when another thread has fixed another number.
void fix_ragged_rows(FeatureSet& set, const std::vector<int64_t>& rows);

}  // namespace tessera
