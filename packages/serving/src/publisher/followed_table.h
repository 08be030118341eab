// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>
#include <tessera/engine/strategy.h>
#include <tessera/serving/publisher.h>

#include "packages/serving/src/format/key_buckets.h"
#include "packages/serving/src/format/version_file.h"
#include "packages/serving/src/publisher/published_directory.h"
#include "src/common/active_kernels.h"
#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"

#include <ATen/core/Tensor.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera::serving {

/// How rows of a dtype are stored. RowFormat::kTable stores their numbers unchanged.
inline StoredFormat stored_format(RowFormat format, at::ScalarType dtype) {
  // The other formats are those of StoredFormat, in the same order.
  static_assert(
      static_cast<int>(RowFormat::kInt4) ==
      static_cast<int>(StoredFormat::kInt4) + 1);
  return format != RowFormat::kTable
      ? static_cast<StoredFormat>(static_cast<int>(format) - 1)
      : dtype == at::kBFloat16 ? StoredFormat::kBFloat16
      : dtype == at::kHalf     ? StoredFormat::kFloat16
      : dtype == at::kChar     ? StoredFormat::kTableInt8
                               : StoredFormat::kFloat32;
}

/// Copies rows of a table in the format in which they are published.
class RowCopier {
 public:
  /// `values` are TableState::parameters. It copies the rows with the numbers `chosen`, or
  /// all.
  RowCopier(
      std::string table_name,
      at::Tensor values,
      StoredFormat format,
      std::optional<std::vector<uint32_t>> chosen)
      : table_name_(std::move(table_name)),
        values_(std::move(values)),
        format_(format),
        chosen_(std::move(chosen)) {}

  /// Copies the chosen rows [begin, end) to `out`, on all threads.
  /// Errors:  c10::ValueError naming the row for a number that the format can't store.
  void operator()(int64_t begin, int64_t end, std::byte* out) const {
    constexpr int64_t kRowsPerTask = 1024;
    const int64_t count = end - begin;
    std::atomic<int64_t> refused = -1;
    run_tasks(
        (count + kRowsPerTask - 1) / kRowsPerTask,
        count * (table_row_bytes_ + row_bytes_),
        [&](int64_t task) {
          std::vector<float> scratch(static_cast<size_t>(dim_));
          const int64_t last = std::min(count, (task + 1) * kRowsPerTask);
          for (int64_t i = task * kRowsPerTask; i < last; ++i) {
            const int64_t row =
                chosen_ ? int64_t{(*chosen_)[begin + i]} : begin + i;
            if (!copy_row(row, out + i * row_bytes_, scratch.data())) {
              refused = row;
            }
          }
        });
    TESSERA_CHECK_VALUE(
        refused < 0,
        "[Publisher] table '{}': row {} has a number that is not finite or too large, which {} can't store. Choose another format, or find out why training gives such numbers, for example with NonFiniteGradients::kRefuse.",
        shorten(table_name_),
        refused.load(),
        to_string(format_));
  }

 private:
  // Returns false if a finite number becomes infinite.
  template <class To>
  static bool narrow(const float* from, int64_t dim, std::byte* to) {
    bool fits = true;
    for (int64_t i = 0; i < dim; ++i) {
      const To value(from[i]);
      std::memcpy(to + i * sizeof(To), &value, sizeof(To));
      fits = fits &&
          (std::isfinite(static_cast<float>(value)) || !std::isfinite(from[i]));
    }
    return fits;
  }

  // Returns false if the format can't store a number of the row.
  bool copy_row(int64_t row, std::byte* out, float* scratch) const {
    const void* from =
        static_cast<const std::byte*>(rows_.data) + row * table_row_bytes_;
    if (is_copy_) {
      std::memcpy(out, from, static_cast<size_t>(row_bytes_));
      return true;
    }
    const float* values = scratch;
    if (rows_.storage == kernels::Storage::kFloat32) {
      values = static_cast<const float*>(from);
    } else {
      active_kernels().combine(
          {.table = rows_,
           .rows = &from,
           .nnz = 1,
           .out = scratch,
           .end_bag = 1});
    }
    switch (format_) {
      case StoredFormat::kFloat32:
        std::memcpy(out, values, static_cast<size_t>(row_bytes_));
        return true;
      case StoredFormat::kBFloat16:
        return narrow<c10::BFloat16>(values, dim_, out);
      case StoredFormat::kFloat16:
        return narrow<c10::Half>(values, dim_, out);
      case StoredFormat::kInt8:
      case StoredFormat::kInt4:
      case StoredFormat::kTableInt8:
        break;
    }
    return kernels::quantize_row(values, dim_, bits_of(format_), out);
  }

  std::string table_name_;
  at::Tensor values_;
  StoredFormat format_;
  std::optional<std::vector<uint32_t>> chosen_;
  kernels::StoredRows rows_ = stored_rows(values_);
  int64_t dim_ = rows_.dim;
  int64_t table_row_bytes_ = kernels::bytes_of_row(rows_.storage, dim_);
  int64_t row_bytes_ = serving::row_bytes(format_, dim_);
  // If true, the bytes of rows are copied as they are.
  bool is_copy_ =
      format_ == stored_format(RowFormat::kTable, values_.scalar_type());
};

/// Makes the content read `rows`, which are copies.
inline void set_rows(
    std::shared_ptr<const Buffer<char>> rows,
    TableContent& content) {
  content.is_copy = true;
  content.copy = [rows = std::move(rows), row_bytes = content.row_bytes](
                     int64_t begin, int64_t end, std::byte* out) {
    std::memcpy(
        out,
        rows->data() + begin * row_bytes,
        static_cast<size_t>((end - begin) * row_bytes));
  };
}

/// The rows of a table without keys: those that have changed, or all of `values`.
inline TableContent content_of(
    const TableFile& file,
    const at::Tensor& values,
    std::optional<std::vector<uint32_t>> changed) {
  const StoredFormat format = format_from_string(file.format);
  TableContent content{.file = file, .row_bytes = row_bytes(format, file.dim)};
  content.file.count = file.vocabulary_size;
  if (changed) {
    content.file.count = std::ssize(*changed);
    content.numbers = bytes_of(*changed);
  }
  content.copy = RowCopier(file.name, values, format, std::move(changed));
  return content;
}

/// Follows the changes of one table, or of the part of it that this rank has.
class FollowedTable {
 public:
  /// `file` describes the table, with its format.
  /// Errors:  c10::Error naming the table if another publisher follows it.
  FollowedTable(TableState& table, const Strategy& strategy, TableFile file)
      : file_(std::move(file)),
        format_(format_from_string(file_.format)),
        row_bytes_(serving::row_bytes(format_, file_.dim)),
        is_sharded_(strategy.is_sharded()) {
    if (strategy.is_fused()) {
      TESSERA_CHECK(
          table.marks == nullptr || table.marks.use_count() == 1,
          "[Publisher] another Publisher follows table '{}'. Destroy it before you make a new one.",
          shorten(file_.name));
      table.marks = std::make_shared<RowMarks>(
          table.rows.count, "the marks of table '" + shorten(table.name) + "'");
      marks_ = table.marks;
      if (table.key_rows != nullptr) {
        lost_keys_ = table.key_rows->index().collect_lost_keys();
      }
    } else {
      compared_.emplace(table);
    }
    version_ = table.parameters._version();
  }

  const TableFile& file() const {
    return file_;
  }
  bool is_sharded() const {
    return is_sharded_;
  }
  /// The rows of this rank in a base.
  int64_t count(const TableState& table) const {
    return table.rows.is_copy       ? 0
        : table.key_rows != nullptr ? table.key_rows->index().size()
                                    : table.rows.count;
  }
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
  const Changes& take(const TableState& table, bool again) {
    if (!again) {
      changes_ = {};
    }
    // If this throws, the next call adds to what changes_ has.
    Changes& changes = changes_;
    // LibTorch's version changes if other code than an update has written to the tensor.
    const auto version = table.parameters._version();
    if (marks_ != nullptr && std::exchange(version_, version) != version) {
      changes.are_all = true;
    }
    std::vector<uint32_t> touched;
    if (marks_ != nullptr) {
      touched = marks_->take();
    } else {
      touched = compared_->rows(table);
      compared_->accept(table, touched);
    }
    std::vector<uint32_t> all;
    std::ranges::set_union(changes.rows, touched, std::back_inserter(all));
    changes.rows = std::move(all);
    if (lost_keys_ != nullptr) {
      for (std::vector<int64_t>& keys : *lost_keys_) {
        changes.lost_keys.insert(
            changes.lost_keys.end(), keys.begin(), keys.end());
        keys.clear();
      }
    }
    return changes;
  }

  /// Returns all rows for a base, and otherwise the changed rows.
  TableContent content(const TableState& table, bool is_base) const {
    if (table.key_rows == nullptr) {
      return content_of(
          file_,
          table.parameters,
          is_base ? std::nullopt : std::optional(changes_.rows));
    }
    Rows rows = select(table, is_base);
    TableContent content{.file = file_, .row_bytes = row_bytes_};
    set_ids(rows.ids, rows.removed, is_base, content);
    content.copy =
        RowCopier(file_.name, table.parameters, format_, std::move(rows.rows));
    return content;
  }

  /// The rows and keys that this rank has of a version, as bytes.
  std::string pack(const TableState& table, bool is_base) const {
    Rows rows = select(table, is_base);
    const int64_t count = std::ssize(rows.ids);
    std::string bytes =
        bytes_of(std::vector<int64_t>{count, std::ssize(rows.removed)});
    bytes += bytes_of(rows.ids);
    bytes += bytes_of(rows.removed);
    const size_t first = bytes.size();
    bytes.resize(first + static_cast<size_t>(count * row_bytes_));
    RowCopier(file_.name, table.parameters, format_, std::move(rows.rows))(
        0, count, reinterpret_cast<std::byte*>(bytes.data() + first));
    return bytes;
  }
  /// Joins the bytes of all ranks.
  TableContent unpack(const std::vector<std::string>& ranks, bool is_base)
      const {
    std::vector<std::pair<int64_t, const std::byte*>> rows;
    std::vector<int64_t> removed;
    for (const std::string& rank : ranks) {
      const auto* numbers = reinterpret_cast<const int64_t*>(rank.data());
      const int64_t* first_removed = numbers + 2 + numbers[0];
      const int64_t* end = first_removed + numbers[1];
      const auto* row = reinterpret_cast<const std::byte*>(end);
      for (const int64_t* id = numbers + 2; id != first_removed; ++id) {
        rows.emplace_back(*id, row);
        row += row_bytes_;
      }
      removed.insert(removed.end(), first_removed, end);
    }
    // Each rank may have every n-th row.
    std::ranges::sort(rows);
    std::vector<int64_t> ids;
    const auto bytes = std::make_shared<Buffer<char>>();
    bytes->resize(rows.size() * static_cast<size_t>(row_bytes_));
    auto* to = reinterpret_cast<std::byte*>(bytes->data());
    for (const auto& [id, row] : rows) {
      ids.push_back(id);
      std::memcpy(to, row, static_cast<size_t>(row_bytes_));
      to += row_bytes_;
    }
    TableContent content{.file = file_, .row_bytes = row_bytes_};
    set_ids(ids, removed, is_base, content);
    set_rows(bytes, content);
    return content;
  }

 private:
  // Local rows, and their numbers in the table or their keys.
  struct Rows {
    std::vector<uint32_t> rows = {};
    std::vector<int64_t> ids = {};
    std::vector<int64_t> removed = {};  // keys
  };
  Rows select(const TableState& table, bool is_base) const {
    Rows selected;
    if (table.rows.is_copy) {
      return selected;
    }
    if (table.key_rows == nullptr) {
      if (!is_base) {
        selected.rows = changes_.rows;
      } else {
        selected.rows.resize(table.rows.count);
        std::iota(selected.rows.begin(), selected.rows.end(), 0U);
      }
      for (const uint32_t row : selected.rows) {
        selected.ids.push_back(table.rows.numbers[row]);
      }
      return selected;
    }
    const KeyIndex& index = table.key_rows->index();
    if (is_base) {
      const NumberedKeys sorted = table.key_rows->sorted_keys();
      const auto* keys = sorted.keys.const_data_ptr<int64_t>();
      const auto* rows = sorted.rows.const_data_ptr<int64_t>();
      selected.ids.assign(keys, keys + sorted.keys.numel());
      selected.rows.assign(rows, rows + sorted.rows.numel());
      return selected;
    }
    for (const uint32_t row : changes_.rows) {
      // A row has no key if its key was evicted after the update.
      if (const auto key = index.key_of_row(row)) {
        selected.rows.push_back(row);
        selected.ids.push_back(*key);
      }
    }
    std::vector<uint32_t> found(changes_.lost_keys.size());
    index.find(changes_.lost_keys.data(), std::ssize(found), found.data());
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == kNoRow) {
        selected.removed.push_back(changes_.lost_keys[i]);
      }
    }
    return selected;
  }
  void set_ids(
      const std::vector<int64_t>& ids,
      const std::vector<int64_t>& removed,
      bool is_base,
      TableContent& content) const {
    content.file.count = std::ssize(ids);
    if (!file_.keys) {
      if (!is_base) {
        content.numbers =
            bytes_of(std::vector<uint32_t>(ids.begin(), ids.end()));
      }
      return;
    }
    content.numbers = is_base ? bytes_of(make_key_buckets(ids)) : bytes_of(ids);
    if (!is_base) {
      content.removed = bytes_of(removed);
    }
  }

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

/// Copies the rows now, so that the table may change before they are written.
inline void copy_now(TableContent& content) {
  if (content.is_copy) {
    return;
  }
  const auto rows = std::make_shared<Buffer<char>>();
  rows->resize(content.file.count * content.row_bytes);
  content.copy(
      0, content.file.count, reinterpret_cast<std::byte*>(rows->data()));
  set_rows(rows, content);
}

}  // namespace tessera::serving
