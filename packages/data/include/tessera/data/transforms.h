// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::data {

/// How a transform to ids treats missing values, that is, kMissing, NaN and the empty text.
enum class Missing {
  /// Missing values have id 0, and all other ids are larger by one, as with Keras's
  /// mask_token and mask_value.
  kOwnId,
  /// Missing values have no id. A column with one value per example then gives a
  /// RaggedFeature, with an empty bag where the value is missing.
  kDrop,
  /// A missing value is hashed, or is an unknown value of a vocabulary.
  kAsValue,
  /// A missing value raises c10::ValueError.
  kError
};

/// "own_id", "drop", "as_value", "error".
std::string to_string(Missing policy);
/// Errors:  c10::ValueError listing the names.
Missing missing_from_string(std::string_view name);

namespace transforms {

// snippet: tests/docs/reference_data_test.cpp Hash
/// Hashes integers or text into bins: the id is hash(value) mod num_bins. With
/// Missing::kOwnId, it is 1 + hash(value) mod (num_bins - 1).
///
/// The hash is XXH3 (64 bits, seeded with the salt) of the text's bytes, or of an
/// integer's eight bytes, least significant first. It is the same on every machine and
/// in every version. The integer 7 and the text "7" have different hashes.
///
///   const PipelineOutput site{
///       .name = "site",
///       .columns = {"site"},
///       .transform = transforms::Hash{.num_bins = 100'000}};
///
/// Differs: keras.layers.Hashing uses FarmHash or SipHash of the decimal text, so its
///          bins are different.
struct Hash {
  /// The number of rows of the table, >= 1. With Missing::kOwnId, >= 2, because one of
  /// them is for missing values.
  int64_t num_bins = 0;
  /// The seed of the hash. With different salts, different values collide.
  int64_t salt = 0;
  Missing missing = Missing::kOwnId;

  bool operator==(const Hash&) const = default;

  TESSERA_FIELDS(num_bins, salt, missing)
};

// snippet: tests/docs/reference_data_test.cpp Bucketize
/// Maps numbers to intervals: bin i has boundaries[i - 1] <= x < boundaries[i]. Bin 0
/// begins at -infinity, and the last bin ends at infinity.
///
/// Float columns are compared in float32, integer columns in float64.
///
///   // Id 0: unknown, 1: under 18, 2: 18 to 29, 3: 30 to 49, 4: older.
///   const PipelineOutput age{
///       .name = "age",
///       .columns = {"age"},
///       .transform = transforms::Bucketize{.boundaries = {18, 30, 50}}};
///
/// Source:  keras.layers.Discretization, which puts NaN into the last bin.
struct Bucketize {
  /// One or more finite numbers in ascending order. quantile_boundaries() computes them.
  std::vector<double> boundaries = {};
  /// kAsValue is not allowed.
  Missing missing = Missing::kOwnId;

  bool operator==(const Bucketize&) const = default;

  TESSERA_FIELDS(boundaries, missing)
};

/// The values of a vocabulary: integers, or text of any bytes.
using VocabularyValues =
    std::variant<std::vector<int64_t>, std::vector<std::string>>;

// snippet: tests/docs/reference_data_test.cpp Vocabulary
/// Maps known values to their position in a list. The ids are, in this order, one for
/// missing values (with Missing::kOwnId), num_oov_indices for unknown values, and one for
/// each known value. The hash of an unknown value selects one of the num_oov_indices ids.
///
///   // Id 0: missing, 1: another country, 2: "de", 3: "fr".
///   const PipelineOutput country{
///       .name = "country",
///       .columns = {"country"},
///       .transform = transforms::Vocabulary{
///           .values = std::vector<std::string>{"de", "fr"}}};
///
/// Source:  keras.layers.IntegerLookup and StringLookup.
/// Differs: with num_oov_indices > 1, Keras chooses by remainder or FarmHash.
struct Vocabulary {
  /// One or more different values, without missing ones. VocabularyBuilder collects them.
  VocabularyValues values = {};
  /// The number of ids for unknown values. With 0, an unknown value raises
  /// c10::IndexError.
  int64_t num_oov_indices = 1;
  Missing missing = Missing::kOwnId;

  bool operator==(const Vocabulary&) const = default;

  TESSERA_FIELDS(values, num_oov_indices, missing)
};

// snippet: tests/docs/reference_data_test.cpp Cross
/// Hashes combinations of the values of two or more columns: hash mod num_bins.
///
/// If columns are ragged, an example gives all combinations of its values, and the last
/// column's values change fastest. A combination is missing if one of its values is.
///
///   // Each pair of a site and an hour has an embedding.
///   const PipelineOutput site_and_hour{
///       .name = "site_and_hour",
///       .columns = {"site", "hour"},
///       .transform = transforms::Cross{.num_bins = 1'000'000}};
///
/// Source:  keras.layers.HashedCrossing (single values), tf's crossed_column. Their
///          hash is different, see Hash.
/// Errors:  c10::ValueError for more than 2^26 combinations in a batch.
struct Cross {
  /// The same as in Hash.
  int64_t num_bins = 0;
  int64_t salt = 0;
  Missing missing = Missing::kAsValue;

  bool operator==(const Cross&) const = default;

  TESSERA_FIELDS(num_bins, salt, missing)
};

// snippet: tests/docs/reference_data_test.cpp Hash64
/// Hashes integers or text to 64 bits, the keys of a table with TableConfig::keys. The hash
/// is that of Hash, without bins, so different values hardly ever collide. With
/// Missing::kOwnId, the key is the hash plus 1, and the key of missing values is 0.
///
///   const PipelineOutput site{
///       .name = "site", .columns = {"site"}, .transform = transforms::Hash64{}};
struct Hash64 {
  /// The seed of the hash.
  int64_t salt = 0;
  Missing missing = Missing::kOwnId;

  bool operator==(const Hash64&) const = default;

  TESSERA_FIELDS(salt, missing)
};

// snippet: tests/docs/reference_data_test.cpp Cross64
/// Hashes combinations of the values of two or more columns to 64 bits, as Cross without
/// bins.
///
///   const PipelineOutput site_and_hour{
///       .name = "site_and_hour",
///       .columns = {"site", "hour"},
///       .transform = transforms::Cross64{}};
///
/// Errors:  c10::ValueError for more than 2^26 combinations in a batch.
struct Cross64 {
  int64_t salt = 0;
  /// With kOwnId, missing combinations have the key 0.
  Missing missing = Missing::kAsValue;

  bool operator==(const Cross64&) const = default;

  TESSERA_FIELDS(salt, missing)
};

// snippet: tests/docs/reference_data_test.cpp Identity
/// Takes integers in [0, num_ids) as ids. With Missing::kOwnId, the ids are larger by
/// one.
///
///   const PipelineOutput weekday{
///       .name = "weekday",
///       .columns = {"weekday"},
///       .transform = transforms::Identity{.num_ids = 7}};
///
/// Source:  tf.feature_column.categorical_column_with_identity.
struct Identity {
  /// >= 1.
  int64_t num_ids = 0;
  /// The id, in [0, num_ids), for integers that are out of range. If unset, such integers
  /// raise c10::IndexError.
  std::optional<int64_t> default_id = {};
  Missing missing = Missing::kError;

  bool operator==(const Identity&) const = default;

  TESSERA_FIELDS(num_ids, default_id, missing)
};

// snippet: tests/docs/reference_data_test.cpp Log1p
/// Maps numbers to log(1 + max(x, 0)), as DLRM does with Criteo's counts.
///
///   const PipelineOutput counts{
///       .name = "counts",
///       .columns = {"clicks", "views"},
///       .transform = transforms::Log1p{}};
struct Log1p {
  /// The result for a missing number.
  double missing_value = 0.0;

  bool operator==(const Log1p&) const = default;

  TESSERA_FIELDS(missing_value)
};

// snippet: tests/docs/reference_data_test.cpp Normalize
/// Maps numbers to (x - mean) / max(sqrt(variance), 1e-7). The defaults change nothing.
///
///   const PipelineOutput age{
///       .name = "age",
///       .columns = {"age"},
///       .transform = transforms::Normalize{.mean = 40.0, .variance = 100.0}};
///
/// Source:  keras.layers.Normalization.
struct Normalize {
  double mean = 0.0;
  /// >= 0.
  double variance = 1.0;
  /// The result for a missing number. 0 stands for the mean.
  double missing_value = 0.0;

  bool operator==(const Normalize&) const = default;

  TESSERA_FIELDS(mean, variance, missing_value)
};

}  // namespace transforms

/// Any transform. Log1p and Normalize give numbers, the others give ids.
using Transform = std::variant<
    transforms::Hash,
    transforms::Bucketize,
    transforms::Vocabulary,
    transforms::Cross,
    transforms::Identity,
    transforms::Log1p,
    transforms::Normalize,
    transforms::Hash64,
    transforms::Cross64>;

/// One feature, or a group of numbers, and the columns that it is computed from.
struct PipelineOutput {
  /// The key of the feature, unique in a pipeline. Names of outputs and columns must be
  /// valid UTF-8.
  std::string name = {};
  /// The names of the columns. Cross and Cross64 need two or more, and other transforms to
  /// ids need one. Transforms to numbers take one or more, and give one dense column for
  /// each.
  std::vector<std::string> columns = {};
  Transform transform = {};
  /// The maximum number of ids per example. Further ids are dropped. 0 means no limit.
  int64_t max_length = 0;

  bool operator==(const PipelineOutput&) const = default;

  TESSERA_FIELDS(name, columns, transform, max_length)
};

/// The class_name in JSON, such as "Hash" or "Bucketize".
const char* name_of(const Transform& transform);

/// Returns whether the transform gives numbers (Log1p, Normalize) and not ids.
bool gives_numbers(const Transform& transform);

/// The number of rows that a table for the transform's ids needs. The ids are in
/// [0, vocabulary_size). 0 for Hash64 and Cross64, whose tables need TableConfig::keys.
/// Errors:  c10::ValueError for fields out of range, and for a transform to
///          numbers.
int64_t vocabulary_size(const Transform& transform);

/// The number of ids that stand for missing and unknown values: the ids from 0 up to this
/// number. 0 for Hash64 and Cross64.
/// Errors:  those of vocabulary_size().
int64_t num_reserved_ids(const Transform& transform);

}  // namespace tessera::data
