// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::data {

/// What becomes of a value that is missing: kMissing, NaN, the empty text.
enum class Missing {
  /// Id 0 is theirs, and all other ids move up by one, as with Keras's mask_token
  /// and mask_value.
  kOwnId,
  /// It has no id. A column with one value per example gives a RaggedFeature
  /// then, with an empty bag where the value is missing.
  kDrop,
  /// A value like any other: hashed, or outside of the vocabulary.
  kAsValue,
  /// Raise c10::ValueError.
  kError
};

/// "own_id", "drop", "as_value", "error".
std::string to_string(Missing policy);
/// Errors:  c10::ValueError listing the names.
Missing missing_from_string(std::string_view name);

namespace transforms {

/// Integers or text to bins: hash(value) mod num_bins.
///
/// The hash is XXH3 (64 bits, seeded with the salt) of the text's bytes, or of an
/// integer's eight, least significant first: the same on every machine, today and
/// tomorrow.
/// Differs: keras.layers.Hashing has FarmHash or SipHash of the decimal text, so
///          bins are others than there.
struct Hash {
  /// Rows of the table, >= 1; with Missing::kOwnId >= 2, one of which is theirs.
  int64_t num_bins = 0;
  /// Features with different salts collide in different values.
  int64_t salt = 0;
  Missing missing = Missing::kOwnId;

  bool operator==(const Hash&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("num_bins", self.num_bins);
    visit("salt", self.salt);
    visit("missing", self.missing);
  }
};

/// Numbers to intervals: bin i where boundaries[i - 1] <= x < boundaries[i], from
/// -infinity in bin 0 to infinity in the last.
///
/// Float columns are compared in float32, integers in float64.
/// Source:  keras.layers.Discretization, which puts NaN into the last bin.
struct Bucketize {
  /// Ascending and finite, one or more: see quantile_boundaries().
  std::vector<double> boundaries = {};
  /// Not kAsValue.
  Missing missing = Missing::kOwnId;

  bool operator==(const Bucketize&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("boundaries", self.boundaries);
    visit("missing", self.missing);
  }
};

/// Integers, or text of any bytes.
using VocabularyValues =
    std::variant<std::vector<int64_t>, std::vector<std::string>>;

/// Known values to their place in a list. Ids in order: one of missing values
/// (Missing::kOwnId), num_oov_indices of unknown ones, chosen by their hash, then
/// the values.
///
/// Source:  keras.layers.IntegerLookup and StringLookup.
/// Differs: with num_oov_indices > 1, Keras chooses by remainder or FarmHash.
struct Vocabulary {
  /// One or more, all different, none that counts as missing: see
  /// VocabularyBuilder.
  VocabularyValues values = {};
  /// 0: an unknown value raises c10::IndexError.
  int64_t num_oov_indices = 1;
  Missing missing = Missing::kOwnId;

  bool operator==(const Vocabulary&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("values", self.values);
    visit("num_oov_indices", self.num_oov_indices);
    visit("missing", self.missing);
  }
};

/// Combinations of two or more columns' values to bins: hash mod num_bins.
///
/// Of ragged columns, all combinations of an example, the last column's values
/// changing fastest; a combination is missing when one of its values is.
/// Source:  keras.layers.HashedCrossing (single values), tf's crossed_column;
///          the hash is another, see Hash.
/// Errors:  c10::ValueError for more than 2^26 combinations in a batch.
struct Cross {
  /// As in Hash.
  int64_t num_bins = 0;
  int64_t salt = 0;
  Missing missing = Missing::kAsValue;

  bool operator==(const Cross&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("num_bins", self.num_bins);
    visit("salt", self.salt);
    visit("missing", self.missing);
  }
};

/// Integers in [0, num_ids) as they are (one more with Missing::kOwnId).
///
/// Source:  tf.feature_column.categorical_column_with_identity.
struct Identity {
  /// >= 1.
  int64_t num_ids = 0;
  /// Stands for integers out of range, in [0, num_ids). Unset: those raise
  /// c10::IndexError.
  std::optional<int64_t> default_id = {};
  Missing missing = Missing::kError;

  bool operator==(const Identity&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("num_ids", self.num_ids);
    visit("default_id", self.default_id);
    visit("missing", self.missing);
  }
};

/// Numbers to log(1 + max(x, 0)), as DLRM takes Criteo's counts.
struct Log1p {
  /// The result for a missing number.
  double missing_value = 0.0;

  bool operator==(const Log1p&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("missing_value", self.missing_value);
  }
};

/// Numbers to (x - mean) / max(sqrt(variance), 1e-7); the defaults leave them as
/// they are.
///
/// Source:  keras.layers.Normalization.
struct Normalize {
  double mean = 0.0;
  /// >= 0.
  double variance = 1.0;
  /// The result for a missing number. 0 stands for the mean.
  double missing_value = 0.0;

  bool operator==(const Normalize&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("mean", self.mean);
    visit("variance", self.variance);
    visit("missing_value", self.missing_value);
  }
};

}  // namespace transforms

/// Log1p and Normalize give numbers, the others ids.
using Transform = std::variant<
    transforms::Hash,
    transforms::Bucketize,
    transforms::Vocabulary,
    transforms::Cross,
    transforms::Identity,
    transforms::Log1p,
    transforms::Normalize>;
static_assert(std::is_aggregate_v<transforms::Vocabulary>);

/// "Hash", "Bucketize", ...; the class_name in JSON.
const char* name_of(const Transform& transform);

/// Whether it is one to numbers, Log1p or Normalize, and not to ids.
bool gives_numbers(const Transform& transform);

/// Rows of a table for the transform's ids, which are in [0, vocabulary_size).
/// Errors:  c10::ValueError for fields out of range, and for a transform to
///          numbers.
int64_t vocabulary_size(const Transform& transform);

}  // namespace tessera::data
