// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>
#include <tessera/features/feature.h>
#include "src/data/value_index.h"

#include <concepts>
#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera::data {

/// Everything that one look at the fields shows, so all but values that are twice
/// in a vocabulary.
/// Errors:  c10::ValueError beginning with `where`.
void check_fields(const Transform& transform, const std::string& where);

/// Moves ids to make room for the id of missing values.
constexpr int64_t num_missing_ids(Missing missing) {
  return missing == Missing::kOwnId ? 1 : 0;
}

/// One of the Transforms. Those to ids have a policy for missing values, those to
/// numbers have a number.
template <class Kind>
concept GivesIds = requires(const Kind& transform) {
  { transform.missing } -> std::convertible_to<Missing>;
};

/// Columns that a transform reads.
struct ReadableColumns {
  bool integers = false;
  bool floats = false;
  bool text = false;
  bool lists = false;  // too, and not only one value per example

  bool has(const Column& column) const;
  /// "integers or text", for messages.
  std::string describe() const;
};

ReadableColumns readable_columns(const Transform& transform);

/// A transform with what it needs besides its fields. It stays where it is: what
/// it holds points to the transform.
class PreparedTransform {
 public:
  /// Errors:  c10::ValueError beginning with `where`, from check_fields() and for
  ///          values that are twice in a vocabulary.
  PreparedTransform(const Transform& transform, std::string where);

  PreparedTransform(const PreparedTransform&) = delete;
  PreparedTransform& operator=(const PreparedTransform&) = delete;

  /// Of a transform to ids, from columns that it reads, as to_numbers(). At most
  /// max_length ids of each example, where that is > 0.
  Feature to_ids(const std::vector<const Column*>& columns, int64_t max_length)
      const;

  /// Of a transform to numbers: writes to out[0], out[stride], ..., one per example.
  void to_numbers(const Column& column, float* out, int64_t stride) const;

 private:
  // Undefined row_splits: one id per example.
  struct Ids {
    at::Tensor values;
    at::Tensor row_splits;
  };
  void make_index(const transforms::Vocabulary&);
  Ids crossed_ids(const transforms::Cross&, const std::vector<const Column*>&)
      const;
  at::Tensor ids_of(const transforms::Hash&, const Column&) const;
  at::Tensor ids_of(const transforms::Bucketize&, const Column&) const;
  at::Tensor ids_of(const transforms::Vocabulary&, const Column&) const;
  at::Tensor ids_of(const transforms::Identity&, const Column&) const;

  const Transform& transform_;
  std::string where_;
  std::variant<std::monostate, ValueIndex<int64_t>, ValueIndex<std::string>>
      index_ = {};
  std::vector<float> boundaries_ = {};  // of a Bucketize, for float columns
};

}  // namespace tessera::data
