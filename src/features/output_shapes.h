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

// This header has all rules about output shapes. An output shape is the shape of an
// activation without dim. FeatureState::output_shape has its known part, which comes
// from FeatureConfig::output_shape, a build and the first batch, in this order.

// These functions are for one feature.

/// Returns the output shape for a sparse input of shape `input`:
///
///   [B], [B, n]            [B], or [B, max_sequence_length]
///   [d0, ..., dr, n]       [d0, ..., dr]; max_sequence_length replaces dr
///
/// A dense input [B, K] counts as [B, K, 1], and a ragged one of R rows as [R, ?].
/// Errors:  c10::ValueError naming the feature, for rank 0 or a negative size.
PartialShape output_shape_of(
    const FeatureState& feature,
    const PartialShape& input);

/// Like output_shape_of(), for an input of a batch.
/// Errors:  c10::ValueError naming the feature, also if the result contradicts the known
///          shape.
std::vector<int64_t> output_shape_of_batch(
    const FeatureState& feature,
    const PartialShape& input);

/// How the rows of a ragged batch are read.
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

/// Returns the product of the known sizes.
/// Errors:  c10::ValueError naming the feature for 2^32 - 1 bags or more.
int64_t count_bags(
    const FeatureState& feature,
    const PartialShape& output_shape);

/// Returns the number of bags of a batch, or nullopt if a size is not known.
std::optional<int64_t> known_bags(const FeatureState& feature);

/// Returns the number of rows that every ragged batch must have, or -1 if it is not
/// fixed.
int64_t fixed_rows_of(const FeatureState& feature);

/// Returns the feature without the batch size that a build has fixed. What its
/// FeatureConfig::output_shape says stays.
FeatureState with_any_batch_size(FeatureState feature);

// These functions are for all features of a layer.

/// Returns the output shapes after a build. `input_shapes` has the shapes of sparse or
/// ragged inputs, in the nest of the configs. In an output shape, only the first
/// dimension may stay unknown. Other sizes that the inputs leave unknown are taken from
/// FeatureState::output_shape.
/// Errors:  c10::ValueError naming the feature, for a size that stays unknown, and for
///          shapes that contradict the known ones.
std::vector<PartialShape> compute_output_shapes(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes);

/// Stores the result of compute_output_shapes() in `set`. An error changes nothing.
void build_output_shapes(
    FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    const Nest<PartialShape>& input_shapes);

/// Returns the input shapes of a build that is given only a batch size. A feature without
/// an output_shape has `batch_size` bags or sequences. In an output_shape, `batch_size`
/// replaces an unknown first dimension.
/// Errors:  c10::ValueError unless batch_size >= 1.
Nest<PartialShape> input_shapes_of(
    const FeatureSet& set,
    const Nest<FeatureConfig>& structure,
    int64_t batch_size);

/// Merges the input shapes of several builds. Returns the shapes of the last build,
/// `now`, with unknown sizes taken from `before`. If two shapes have different numbers of
/// dimensions, returns the later one, or the earlier one if the batch size of the later
/// one is unknown.
Nest<PartialShape> join_input_shapes(
    const Nest<FeatureConfig>& structure,
    const std::optional<Nest<PartialShape>>& before,
    const Nest<PartialShape>& now);

/// Takes the rank and the inner dimensions of the output shapes from the first batch,
/// and with FeatureSet::fixed_batch_size the first dimension, too. The batch has been
/// checked against the known shapes.
/// Errors:  c10::ValueError if fixed_batch_size is set and the features differ in their
///          batch size.
void build_output_shapes_from_batch(
    FeatureSet& set,
    const std::vector<IdBags>& batch);

/// Sets FeatureState::ragged_rows of each feature where it is not set yet. `rows` has
/// IdBags::ragged_rows of each feature. Several threads may call it at the same time.
/// Errors:  c10::ValueError if the number of a feature has been set and differs.
void set_ragged_rows(FeatureSet& set, const std::vector<int64_t>& rows);

}  // namespace tessera
