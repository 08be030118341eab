// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>
#include <tessera/feature.h>
#include "src/data/value_index.h"

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

namespace tessera {

/// Everything that one look at the fields shows, so all but values that are twice
/// in a vocabulary.
/// Errors:  c10::ValueError beginning with `where`.
void check_fields(const Transform& transform, const std::string& where);

/// A transform with what it needs besides its fields. It stays where it is: what
/// it holds points to the transform.
class PreparedTransform {
 public:
  /// Errors:  c10::ValueError beginning with `where`, from check_fields() and for
  ///          values that are twice in a vocabulary.
  PreparedTransform(const Transform& transform, std::string where);

  PreparedTransform(const PreparedTransform&) = delete;
  PreparedTransform& operator=(const PreparedTransform&) = delete;

  /// The kinds of columns that it reads, for messages.
  const char* kinds() const;
  /// Whether kinds() has the column's, and it may be ragged.
  bool reads(const Column& column) const;

  /// At most max_length ids of each example, where that is > 0.
  Feature to_ids(const std::vector<const Column*>& columns, int64_t max_length)
      const;

  /// Writes to out[0], out[stride], ..., one number per example.
  void to_numbers(const Column& column, float* out, int64_t stride) const;

 private:
  at::Tensor map_values(const Column& column) const;

  const Transform& transform_;
  std::string where_;
  std::variant<std::monostate, ValueIndex<int64_t>, ValueIndex<std::string>>
      index_ = {};
  std::vector<float> boundaries_ = {};  // of a Bucketize, for float columns
};

}  // namespace tessera
