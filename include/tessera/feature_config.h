// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/nest.h>
#include <tessera/partial_shape.h>
#include <tessera/table_config.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

/// What to do with an id >= vocabulary_size.
enum class OutOfRange {
  /// Raise c10::IndexError before anything is changed.
  kError,
  /// Look up zeros, which no gradient reaches, and count them.
  kZero
};

/// "error", "zero".
std::string to_string(OutOfRange policy);
OutOfRange out_of_range_from_string(std::string_view name);

/// One input of the layer: which table it reads, and how.
struct FeatureConfig {
  TablePtr table = {};
  /// > 0: a sequence feature `[batch, max_sequence_length, dim]`, truncated or
  /// padded with zeros, not combined. A sparse feature of rank 3 or above has its
  /// positions in the last dimension but one, and the ids of one position are
  /// combined: `[d0, ..., dr, n]` gives `[d0, ..., max_sequence_length, dim]`.
  /// 0: one vector per bag. Ignored, with a warning, beside an output_shape.
  int64_t max_sequence_length = 0;
  /// Batch dimensions of the activation, without dim; a batch that does not fit
  /// is an error. Unknown ones, as in PartialShape{std::nullopt, 4}, fit any size.
  ///
  /// How a ragged batch of R rows fits it:
  ///
  ///   one dimension unknown   each row is a bag, and the unknown dimension is R
  ///                           divided by the others: batches of any size
  ///   all known, product R    each row is a bag
  ///   all known, product n R  each row is a sequence of n places, truncated or
  ///                           padded with zeros, not combined
  ///
  /// With all dimensions known, a layer or an engine takes ragged batches of one
  /// number of rows only, that of its first: a short last batch is an error, and
  /// never turns bags into sequences.
  std::optional<PartialShape> output_shape = {};
  /// Drop ids < 0, and weights <= 0 unless the combiner is kSum. When off,
  /// nothing is dropped and a negative id is an error.
  bool validate_weights_and_indices = true;
  OutOfRange out_of_range = OutOfRange::kError;
  /// For messages; empty: the path in the nest.
  std::string name = {};

  /// max_sequence_length, or 0 where output_shape takes its place.
  int64_t sequence_length() const {
    return output_shape ? 0 : max_sequence_length;
  }

  bool operator==(const FeatureConfig&) const = default;
};
static_assert(std::is_aggregate_v<FeatureConfig>);

/// Refuses a missing table, a negative length, and an output shape without
/// dimensions or with a known one below 1.
/// Errors:  c10::ValueError naming the feature's path.
void validate(const FeatureConfig& config, const std::string& path);

}  // namespace tessera
