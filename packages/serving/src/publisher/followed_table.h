// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>
#include <tessera/serving/publisher.h>

#include "packages/serving/src/format/version_file.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "src/engine/embedding_state.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::serving {

/// How rows of a dtype are stored. RowFormat::kTable stores their numbers unchanged.
StoredFormat stored_format(RowFormat format, at::ScalarType dtype);

/// Follows the changes of one table, or of the part of it that this rank has.
class FollowedTable {
 public:
  /// `file` describes the table, with its format.
  /// Errors:  c10::Error naming the table if another publisher follows it.
  FollowedTable(TableState& table, const Strategy& strategy, TableFile file);

  const TableFile& file() const {
    return file_;
  }
  bool is_sharded() const {
    return is_sharded_;
  }
  /// The rows of this rank in a base.
  int64_t count(const TableState& table) const;
  int64_t row_bytes() const {
    return row_bytes_;
  }

  /// The changes between two calls of take().
  struct Changes {
    bool are_all = false;
    std::vector<uint32_t> rows = {};  // ascending
    std::vector<int64_t> lost_keys = {};
  };
  /// Returns the changes since the last call. Pass `again` = true if the version of the
  /// last call was not written. Its changes are then part of the result. content() and
  /// pack() use the result.
  const Changes& take(const TableState& table, bool again);

  /// Returns all rows for a base, and otherwise the changed rows.
  TableContent content(const TableState& table, bool is_base) const;

  /// The rows and keys that this rank has of a version, as bytes.
  std::string pack(const TableState& table, bool is_base) const;
  /// Joins the bytes of all ranks.
  TableContent unpack(const std::vector<std::string>& ranks, bool is_base)
      const;

 private:
  // Local rows, and their numbers in the table or their keys.
  struct Rows {
    std::vector<uint32_t> rows = {};
    std::vector<int64_t> ids = {};
    std::vector<int64_t> removed = {};  // keys
  };
  Rows select(const TableState& table, bool is_base) const;
  void set_ids(
      const std::vector<int64_t>& ids,
      const std::vector<int64_t>& removed,
      bool is_base,
      TableContent& content) const;

  TableFile file_;
  StoredFormat format_;
  int64_t row_bytes_;
  bool is_sharded_;
  std::shared_ptr<RowMarks> marks_;
  std::shared_ptr<KeyIndex::LostKeys> lost_keys_;
  std::optional<TouchedRows> compared_;
  uint32_t version_ = 0;  // of LibTorch's tensor
  Changes changes_;
};

/// The rows of a table without keys: those that have changed, or all of `values`.
TableContent content_of(
    const TableFile& file,
    const at::Tensor& values,
    std::optional<std::vector<uint32_t>> changed);

/// Copies the rows now, so that the table may change before they are written.
void copy_now(TableContent& content);

}  // namespace tessera::serving
