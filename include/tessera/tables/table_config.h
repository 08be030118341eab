// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/optim/optimizer.h>
#include <tessera/tables/combiner.h>
#include <tessera/tables/dynamic_keys.h>
#include <tessera/tables/initializer.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace tessera {

/// "float32", "bfloat16", "float16", "int8".
/// Errors:  c10::ValueError for another dtype.
std::string to_string(at::ScalarType dtype);

/// Errors:  c10::ValueError listing the choices.
at::ScalarType dtype_from_string(std::string_view name);

// snippet: tests/docs/reference_engine_test.cpp QuantizationConfig
/// Rounds the rows of a lookup, before they are combined, to num_buckets values
/// from lower to upper, as a quantized copy of the table would hold them:
///
///   step = (upper - lower) / (num_buckets - 1)
///   x -> floor((clip(x, lower, upper) - lower) / step + 1/2) * step + lower
///
/// Tables and updates are not rounded, and gradients pass as if there were no
/// rounding. A serving lookup does not round.
///
///   const TablePtr users = make_table(
///       {.name = "users",
///        .vocabulary_size = 1000,
///        .dim = 16,
///        .quantization = QuantizationConfig{
///            .num_buckets = 256, .lower = -1.0, .upper = 1.0}});
///
/// Source:  tf.tpu.experimental.embedding.QuantizationConfig.
struct QuantizationConfig {
  int64_t num_buckets = 0;
  double lower = 0.0;
  double upper = 0.0;

  bool operator==(const QuantizationConfig&) const = default;

  TESSERA_FIELDS(num_buckets, lower, upper)
};

/// Refuses num_buckets < 2, bounds that are not finite, and lower >= upper.
/// Errors:  c10::ValueError beginning with `where`.
void validate(const QuantizationConfig& config, const std::string& where);

// snippet: tests/docs/reference_engine_test.cpp TableConfig
/// One embedding table. Features of one layer share it if they have the same TablePtr.
///
///   const TablePtr users = make_table(
///       {.name = "users",
///        .vocabulary_size = 1000,
///        .dim = 16,
///        .optimizer = optim::Adagrad{.learning_rate = 0.05}});
///   // Two features share the table.
///   const Nest<FeatureConfig> features{
///       {"user", FeatureConfig{.table = users}},
///       {"friends", FeatureConfig{.table = users}}};
struct TableConfig {
  /// Unique in a layer. It names the table in checkpoints. Empty: `table_{i}`, in the
  /// order of first use.
  std::string name = {};
  /// The number of rows, in [1, 2^32 - 1). 0 with `keys`.
  int64_t vocabulary_size = 0;
  /// The width of a row, >= 1.
  int64_t dim = 0;
  Combiner combiner = Combiner::kMean;
  /// Unset: truncated normal with mean 0 and stddev 1 / sqrt(dim).
  std::optional<Initializer> initializer = {};
  /// The number of rows, from row 0 on, that begin as zeros instead of as `initializer`
  /// says, in [0, vocabulary_size]. These rows stand for missing and unknown values. If
  /// training has no such values, a lookup of them gives zeros and not a random vector.
  /// FeaturePipeline::make_table() sets this number.
  int64_t zero_rows = 0;
  /// Unset: the optimizer of the layer.
  std::optional<optim::OptimizerSpec> optimizer = {};
  /// The dtype of the stored rows: kFloat, kBFloat16, kHalf or kChar. Sums and updates are
  /// always float32. The dtypes of fewer bits need Strategy::fused() or
  /// distributed::sharded_strategy(). A rounded value may exceed clip_weight_max or
  /// Uniform's range by one unit in the last place. In kHalf, a value of 65520 or more
  /// becomes infinite, and a value above 65504 may.
  ///
  /// A row in kChar has a scale and `dim` codes, and takes dim + 2 bytes:
  ///
  ///   row[i] = scale * code[i]      code[i] in -127 .. 127
  ///
  /// The scale is a bfloat16. It grows when a number of the row needs it, and is halved when
  /// all codes are below a quarter of 127. A number of 0 is exact. If a number of a row is
  /// not finite, the whole row becomes NaN.
  /// Source: ALPT, Li et al. 2023, arXiv 2212.05735, with scales that are not learned.
  at::ScalarType dtype = at::kFloat;
  /// The dtype in which the optimizer keeps its slots: kFloat or kBFloat16. Updates round
  /// slots of kBFloat16 up or down at random. Slots of one number per row, such as those of
  /// optim::RowWiseAdagrad, stay float32. kBFloat16 needs a strategy as `dtype` does, and an
  /// optimizer that is not a CustomOptimizer and has no slot_creation.
  at::ScalarType slot_dtype = at::kFloat;
  /// If true, updates round rows of 16 or 8 bits up or down at random. The expectation is
  /// then the float32 value, so steps below half a unit in the last place count, too. The
  /// rounding is reproducible from the layer's seed. If false, updates round to the nearest.
  bool stochastic_rounding = true;
  /// Unset: lookups are not rounded.
  std::optional<QuantizationConfig> quantization = {};
  /// If false, the table is frozen: nothing updates it, and it has no slots.
  bool trainable = true;
  /// If set, any int64 is a key of the table, and rows are given to keys in training. It
  /// needs Strategy::fused() or distributed::sharded_strategy(). `vocabulary_size` stays 0.
  std::optional<DynamicKeys> keys = {};

  /// The largest number of rows.
  int64_t max_rows() const {
    return keys ? keys->capacity : vocabulary_size;
  }

  bool operator==(const TableConfig&) const = default;

  TESSERA_FIELDS(
      name,
      vocabulary_size,
      dim,
      combiner,
      initializer,
      zero_rows,
      optimizer,
      dtype,
      slot_dtype,
      stochastic_rounding,
      quantization,
      trainable,
      keys)
};
static_assert(std::is_aggregate_v<TableConfig>);

/// Features of one layer with the same pointer share a table. Two equal configs are two
/// tables, and two layers with the same pointer have a table each.
using TablePtr = std::shared_ptr<const TableConfig>;

/// Makes a table that several features can share.
/// Errors:  c10::ValueError from validate().
TablePtr make_table(TableConfig config);

/// Refuses options out of range, also those of the initializer, optimizer, quantization
/// and keys. It accepts a CustomOptimizer whose rule is a name without a function,
/// because the function may be set later. A layer refuses such a rule.
/// Errors:  c10::ValueError naming the table and the option.
void validate(const TableConfig& config);

}  // namespace tessera
