// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/serving/src/format/key_buckets.h"
#include "packages/serving/src/format/version_file.h"
#include "packages/serving/src/reader/overlay.h"
#include "packages/serving/src/reader/version_data.h"
#include "src/kernels/kernels.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::serving {

/// The bags of one lookup, with checked ids.
struct RowBags {
  const int64_t* keys = nullptr;  // [nnz], of a table with keys
  const uint32_t* rows = nullptr;  // [nnz], of a table with a vocabulary
  int64_t nnz = 0;
  const int64_t* offsets = nullptr;  // as in kernels::CombineArgs
  const float* weights = nullptr;
  const float* scales = nullptr;
  int64_t bags = 0;
};

/// One table in one version: the rows of the base, and those that have changed since. A
/// copy shares both.
class PublishedTable {
 public:
  /// The table of a base.
  /// Errors:  ValueError beginning with `where` for keys that do not fit the rows.
  PublishedTable(
      const TableFile& file,
      const VersionData& base,
      const std::string& where);

  /// The table in the next version.
  /// Errors:  ValueError beginning with `where` for another table, or for rows that it does
  ///          not have.
  PublishedTable with(
      const TableFile& file,
      const VersionData& version,
      const std::string& where) const;

  const std::string& name() const {
    return name_;
  }
  int64_t dim() const {
    return dim_;
  }
  StoredFormat format() const {
    return format_;
  }
  int64_t vocabulary_size() const {
    return vocabulary_size_;
  }
  const std::optional<KeyOptions>& keys() const {
    return keys_;
  }
  int64_t rows() const {
    return keys_ ? num_keys_ : vocabulary_size_;
  }
  int64_t overlaid_rows() const;

  /// Sums the rows of bags. Numbers of rows must be below vocabulary_size().
  void combine(const RowBags& bags, float* out) const;

 private:
  PublishedTable() = default;

  const std::byte* base_row(uint32_t row) const {
    return base_rows_ + int64_t{row} * row_bytes_;
  }
  const std::byte* find(int64_t key) const;
  void find_places(const RowBags& bags, const void** places) const;
  void find_default_row();

  std::string name_;
  int64_t dim_ = 0;
  StoredFormat format_ = StoredFormat::kFloat32;
  int64_t row_bytes_ = 0;
  int64_t vocabulary_size_ = 0;
  std::optional<KeyOptions> keys_;
  std::optional<RoundedTo> rounded_to_;
  kernels::Buckets buckets_ = {};
  const std::byte* base_rows_ = nullptr;
  const KeyBucket* key_buckets_ = nullptr;
  int64_t num_key_buckets_ = 0;
  int64_t num_keys_ = 0;
  std::shared_ptr<const RowOverlay> row_overlay_;
  std::shared_ptr<const KeyOverlay> key_overlay_;
  // The row of unknown keys.
  const std::byte* default_row_ = nullptr;
};

}  // namespace tessera::serving
