// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/nest.h>
#include <tessera/table_config.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

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
  /// padded with zeros, not combined. 0: one vector per bag.
  int64_t max_sequence_length = 0;
  /// Batch dimensions of the activation, without dim. Ragged features are
  /// reshaped to it, or spread over it as sequences.
  std::optional<std::vector<int64_t>> output_shape = {};
  /// Drop ids < 0, and weights <= 0 unless the combiner is kSum. When off,
  /// nothing is dropped and a negative id is an error.
  bool validate_weights_and_indices = true;
  OutOfRange out_of_range = OutOfRange::kError;
  /// For messages; empty: the path in the nest.
  std::string name = {};

  bool operator==(const FeatureConfig&) const = default;
};
static_assert(std::is_aggregate_v<FeatureConfig>);

/// Refuses a missing table, a negative length, an output shape not all >= 1,
/// and an output shape together with a sequence length.
/// Errors:  c10::ValueError naming the feature's path.
void validate(const FeatureConfig& config, const std::string& path);

}  // namespace tessera
