// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/transforms.h>

#include "packages/data/src/column_view.h"
#include "packages/data/src/value_hash.h"

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

namespace tessera::data {

/// Joins lambdas to one function for std::visit(), with one lambda for each alternative.
/// c10::overloaded does the same, but needs LibTorch.
template <class... Functions>
struct Overloaded : Functions... {
  explicit Overloaded(Functions... functions)
      : Functions(std::move(functions))... {}

  using Functions::operator()...;
};

/// Finds the positions of values in a list without copying the list. This is a hash table
/// with open addressing and linear probing, which is at most half full and takes 16 to 32
/// bytes per value.
template <class T>
class ValueIndex {
 public:
  static constexpr int64_t kMaxSize = int64_t{1} << 30;

  /// `values` has at most kMaxSize entries and must outlive the index.
  explicit ValueIndex(const std::vector<T>& values)
      : values_(values.data()), slots_(std::bit_ceil(2 * values.size() + 1)) {
    for (size_t i = 0; i < values.size() && !repeated_; ++i) {
      const uint64_t hash = hash_of(values[i], 0);
      Slot& slot = slots_[slot_of(values[i], hash)];
      if (slot.position >= 0) {
        repeated_ = static_cast<int64_t>(i);
      }
      slot = {tag_of(hash), static_cast<int32_t>(i)};
    }
  }

  /// The position at which a value appears for the second time. The values after it
  /// are not in the index.
  std::optional<int64_t> repeated() const {
    return repeated_;
  }

  /// The position of the value, or -1 if it is not in the list. `hash` must be
  /// hash_of(value, 0).
  int64_t find(const T& value, uint64_t hash) const {
    return slots_[slot_of(value, hash)].position;
  }

 private:
  struct Slot {
    uint32_t tag = 0;  // saves most comparisons with different values
    int32_t position = -1;
  };

  static uint32_t tag_of(uint64_t hash) {
    return static_cast<uint32_t>(hash >> 32);
  }

  // The slot of the value, or the free slot where it would be.
  size_t slot_of(const T& value, uint64_t hash) const {
    size_t i = hash & (slots_.size() - 1);
    while (slots_[i].position >= 0 &&
           (slots_[i].tag != tag_of(hash) ||
            values_[slots_[i].position] != value)) {
      i = (i + 1) & (slots_.size() - 1);
    }
    return i;
  }

  const T* values_;
  std::vector<Slot> slots_;
  std::optional<int64_t> repeated_ = {};
};

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

  /// Returns whether values of this type are read.
  bool has(ColumnType type) const;
  bool has(const ColumnView& column) const;
  /// "integers or text", for messages.
  std::string describe() const;
};

ReadableColumns readable_columns(const Transform& transform);

/// The memory for the ids of an output. The caller of PreparedTransform::to_ids() decides
/// what it is, such as a tensor.
class IdsMemory {
 public:
  IdsMemory() = default;
  virtual ~IdsMemory() = default;
  IdsMemory(const IdsMemory&) = delete;
  IdsMemory& operator=(const IdsMemory&) = delete;

  /// Gives memory for `size` ids. This is called once.
  virtual std::span<int64_t> make_ids(size_t size) = 0;
  /// Keeps the first `size` ids.
  virtual void shrink_ids(size_t size) = 0;
  /// Gives memory for the row splits of the ids, [batch + 1]. If this is not called, each
  /// example has one id.
  virtual std::span<int64_t> make_row_splits(size_t size) = 0;
  /// Uses `row_splits`, which are those of the output's first column, for the ids, too.
  virtual void take_row_splits(std::span<const int64_t> row_splits);
};

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
  void to_ids(
      std::span<const ColumnView* const> columns,
      int64_t max_length,
      IdsMemory& memory) const;

  /// Runs a transform to numbers on a column that it can read. Writes one number per
  /// example, to out[0], out[stride], ...
  void to_numbers(const ColumnView& column, float* out, int64_t stride) const;

 private:
  void make_index(const transforms::Vocabulary&);
  // Write one id for each value of the column.
  template <class Hashed>  // Hash or Hash64
  void write_ids(const Hashed&, const ColumnView&, int64_t*) const;
  void write_ids(const transforms::Bucketize&, const ColumnView&, int64_t*)
      const;
  void write_ids(const transforms::Vocabulary&, const ColumnView&, int64_t*)
      const;
  void write_ids(const transforms::Identity&, const ColumnView&, int64_t*)
      const;

  const Transform& transform_;
  std::string where_;
  std::variant<std::monostate, ValueIndex<int64_t>, ValueIndex<std::string>>
      index_ = {};
  std::vector<float> boundaries_ = {};  // those of Bucketize, for float columns
};

}  // namespace tessera::data
