// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/nest.h>
#include <tessera/features/partial_shape.h>
#include <tessera/tables/table_config.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

/// Decides what happens to an id >= vocabulary_size, and to an id < 0 of a dense feature.
/// The choice has no effect on a key table, where any int64 is a key.
enum class OutOfRange {
  /// Raise c10::IndexError before anything is changed.
  kError,
  /// Look up zeros, which receive no gradient, and count the id.
  kZero
};

/// "error", "zero".
std::string to_string(OutOfRange policy);
OutOfRange out_of_range_from_string(std::string_view name);

// snippet: tests/docs/reference_engine_test.cpp FeatureConfig
/// One input of the layer: which table it reads, and how.
///
///   const Nest<FeatureConfig> features{
///       {"user", FeatureConfig{.table = users}},
///       {"watched", FeatureConfig{.table = movies}},  // [batch, dim]
///       {"session",  // [batch, 20, dim]
///        FeatureConfig{.table = movies, .max_sequence_length = 20}}};
struct FeatureConfig {
  TablePtr table = {};
  /// > 0: a sequence feature, whose activation is `[batch, max_sequence_length, dim]`.
  /// A sequence is truncated or padded with zeros, not combined. In a sparse feature of
  /// rank 3 or above, the second-to-last dimension is the position, and the ids of one
  /// position are combined:
  /// `[d0, ..., dr, n]` gives `[d0, ..., max_sequence_length, dim]`.
  /// 0: one vector per bag. If there is an output_shape, this field is ignored, with
  /// a warning.
  int64_t max_sequence_length = 0;
  /// The dimensions of the activation, without dim. A batch that does not fit is an
  /// error. An unknown dimension, as in PartialShape{std::nullopt, 4}, fits any size.
  ///
  /// A ragged batch of R rows is read as follows:
  ///
  ///   one dimension unknown   Each row is a bag. The unknown dimension is R divided
  ///                           by the others, so batches may have any size.
  ///   all known, product R    Each row is a bag.
  ///   all known, product n R  Each row is a sequence of n positions, truncated or
  ///                           padded with zeros, not combined.
  ///
  /// If all dimensions are known, the first ragged batch of a layer or an engine fixes
  /// the number of rows. A batch with another number of rows, such as a short last
  /// batch, is an error, so it never turns bags into sequences.
  std::optional<PartialShape> output_shape = {};
  /// If true, ids < 0 of a sparse or ragged feature are dropped. If the combiner is not
  /// kSum, ids whose weight is <= 0 are dropped, too, whatever their value is. If false,
  /// nothing is dropped, and an id < 0 is an error. The keys of a key table may be
  /// negative.
  bool validate_weights_and_indices = true;
  OutOfRange out_of_range = OutOfRange::kError;
  /// The name of the feature in messages. Empty: its path in the nest.
  std::string name = {};

  /// max_sequence_length, or 0 if there is an output_shape.
  int64_t sequence_length() const {
    return output_shape ? 0 : max_sequence_length;
  }

  bool operator==(const FeatureConfig&) const = default;
};
static_assert(std::is_aggregate_v<FeatureConfig>);

/// Refuses a missing table, a negative length, and an output shape that has no dimensions
/// or a known dimension below 1.
/// Errors:  c10::ValueError naming the feature's path.
void validate(const FeatureConfig& config, const std::string& path);

}  // namespace tessera
