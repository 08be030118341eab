// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>
#include <tessera/features/feature.h>
#include "packages/data/src/value_index.h"

#include <concepts>
#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace tessera::data {

/// Checks the fields of a transform, except for repeated values in a vocabulary, which
/// take longer to find.
/// Errors:  c10::ValueError beginning with `where`.
void check_fields(const Transform& transform, const std::string& where);

/// The values that ids of a transform stand for.
/// Errors:  c10::ValueError or c10::IndexError beginning with `where`.
std::vector<std::string> texts_of_ids(
    const Transform& transform,
    std::span<const int64_t> ids,
    const std::string& where);

/// The number of ids for missing values, by which all other ids are shifted.
constexpr int64_t num_missing_ids(Missing missing) {
  return missing == Missing::kOwnId ? 1 : 0;
}

/// Whether a transform gives ids. Only such a transform has a policy for missing values. A
/// transform to numbers has a number that replaces a missing value.
template <class Kind>
concept ReturnsIds = requires(const Kind& transform) {
  { transform.missing } -> std::convertible_to<Missing>;
};

/// The kinds of columns that a transform reads.
struct ReadableColumns {
  bool integers = false;
  bool floats = false;
  bool text = false;
  bool lists = false;  // whether examples may have several values

  bool has(const Column& column) const;
  /// "integers or text", for messages.
  std::string describe() const;
};

ReadableColumns readable_columns(const Transform& transform);

/// A transform and the data that it needs in addition to its fields. The transform must
/// outlive this object, which keeps a reference to it.
class PreparedTransform {
 public:
  /// Errors:  c10::ValueError beginning with `where`, from check_fields() and for
  ///          repeated values in a vocabulary.
  PreparedTransform(const Transform& transform, std::string where);

  PreparedTransform(const PreparedTransform&) = delete;
  PreparedTransform& operator=(const PreparedTransform&) = delete;

  /// Runs a transform to ids on columns that it can read. If max_length > 0, keeps at
  /// most max_length ids of each example.
  Feature to_ids(const std::vector<const Column*>& columns, int64_t max_length)
      const;

  /// Runs a transform to numbers on a column that it can read. Writes one number per
  /// example, to out[0], out[stride], ...
  void to_numbers(const Column& column, float* out, int64_t stride) const;

 private:
  // If row_splits is undefined, there is one id per example.
  struct Ids {
    at::Tensor values;
    at::Tensor row_splits;
  };
  void make_index(const transforms::Vocabulary&);
  // For Cross and Cross64.
  template <class Crossed>
  Ids crossed_ids(const Crossed&, const std::vector<const Column*>&) const;
  at::Tensor ids_of(const transforms::Hash&, const Column&) const;
  at::Tensor ids_of(const transforms::Hash64&, const Column&) const;
  at::Tensor ids_of(const transforms::Bucketize&, const Column&) const;
  at::Tensor ids_of(const transforms::Vocabulary&, const Column&) const;
  at::Tensor ids_of(const transforms::Identity&, const Column&) const;

  const Transform& transform_;
  std::string where_;
  std::variant<std::monostate, ValueIndex<int64_t>, ValueIndex<std::string>>
      index_ = {};
  std::vector<float> boundaries_ = {};  // those of Bucketize, for float columns
};

}  // namespace tessera::data
