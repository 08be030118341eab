// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/reader.h>

#include "packages/search/src/scan/row_scan.h"
#include "packages/serving/src/format/key_buckets.h"
#include "packages/serving/src/format/version_file.h"
#include "packages/serving/src/reader/version_data.h"
#include "src/common/active_kernels.h"
#include "src/features/id_rule.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace tessera::serving {

class KeyOverlay;
class RowOverlay;

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

  /// Returns the table as it is in the next version, `version`, with the rows that have
  /// changed there.
  /// Errors:  ValueError beginning with `where`, if `file` is of another table, or has
  ///          rows that this table does not have.
  PublishedTable with(
      const TableFile& file,
      const VersionData& version,
      const std::string& where) const;

  /// What the base says about the table.
  const TableFile& file() const {
    return file_;
  }
  Version::TableInfo info() const;
  /// Which ids of a feature of this table count.
  IdRule rule_of(const FeatureFile& feature) const;

  /// Where the rows of a table with a vocabulary are.
  RowMemory memory() const;

  /// Sums the rows of each bag. The row numbers must be below the vocabulary_size.
  void combine(const RowBags& bags, float* out) const;

 private:
  PublishedTable() = default;

  const std::byte* find(int64_t key) const;
  void find_places(const RowBags& bags, const void** places) const;
  void find_default_row();

  TableFile file_;
  StoredFormat format_ = StoredFormat::kFloat32;
  int64_t row_bytes_ = 0;
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
