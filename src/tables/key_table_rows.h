// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/key_index.h"
#include "src/tables/key_snapshot.h"
#include "src/tables/reserved_memory.h"
#include "src/tables/table_state.h"

#include <tessera/tables/table_config.h>

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/FunctionRef.h>

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

/// Keys and the numbers of their rows.
struct NumberedKeys {
  at::Tensor keys = {};  // [keys] int64
  at::Tensor rows = {};  // [keys] int64
};

/// Initial values that a lookup has computed. The update that gives rows to the keys takes
/// them.
struct InitialValues {
  uint64_t seed = 0;  // of the layer
  std::vector<int64_t> keys = {};  // in the order of their hashes
  at::Tensor values = {};  // [keys, dim] float32
};

/// The keys of a key table and the memory of its rows, or those of the partitions that
/// this rank owns.
///
/// Behind the rows of the partitions, the memory has a row of zeros for keys without a row,
/// and then scratch rows. A lookup must not change the table. So it takes scratch rows for
/// the initial values of keys that get a row in the next update.
class KeyTableRows {
 public:
  /// `seed`: of the layer.
  /// Errors:  c10::Error if the system can't reserve the memory.
  KeyTableRows(
      const TableConfig& config,
      const std::string& name,
      uint64_t seed,
      PartitionRange owned);

  /// A copy of the keys and rows. The scratch rows are not copied.
  std::shared_ptr<KeyTableRows> clone() const;

  KeyIndex& index() {
    return index_;
  }
  const KeyIndex& index() const {
    return index_;
  }

  /// The rows that keys can have, [index().rows(), dim].
  at::Tensor rows() const {
    return all_rows_.narrow(0, 0, index_.rows());
  }
  /// All rows that lookups read, [index().rows() + 1 + scratch rows, dim].
  const at::Tensor& all_rows() const {
    return all_rows_;
  }
  uint32_t zero_row() const {
    return static_cast<uint32_t>(index_.rows());
  }
  /// The row that keys without a row look up in evaluation.
  uint32_t row_of_unknown_keys() const {
    const uint32_t row = index_.default_row();
    return row == kNoRow ? zero_row() : row;
  }

  /// Changes the seed of later initial values and random admissions.
  void set_seed(uint64_t seed);

  /// The initial values of keys, [keys, dim] float32. They are a function of (seed, table,
  /// key, column).
  /// Errors:  c10::ValueError for values that the dtype can't hold, and for an unusable
  ///          result of a Callable.
  at::Tensor initial_values(c10::ArrayRef<int64_t> keys) const;
  /// The initial values of keys that are in the order of their hashes.
  std::shared_ptr<const InitialValues> ordered_initial_values(
      std::vector<int64_t> keys) const;
  /// Like initial_values() of keys in the order of their hashes, but takes the values that
  /// are known. Elements of `known` may be nullptr.
  at::Tensor initial_values(
      c10::ArrayRef<int64_t> keys,
      c10::ArrayRef<std::shared_ptr<const InitialValues>> known) const;

  /// Records the keys of rows, which stochastic rounding uses.
  void set_row_keys(c10::ArrayRef<uint32_t> rows, c10::ArrayRef<int64_t> keys);
  /// The key of each row, or nullptr if nothing is rounded at random.
  const int64_t* row_keys() const {
    return row_keys_.data();
  }

  /// Sets rows of all_rows(), rounded to the dtype. `values` [rows, dim] float32,
  /// contiguous.
  void assign(c10::ArrayRef<uint32_t> rows, const at::Tensor& values);

  /// All keys in ascending order, and the number of the row of each in all_rows().
  NumberedKeys sorted_keys() const;

  /// The keys as they were in the last checkpoint; nullopt unless checkpoints are
  /// incremental. A copy of the table has none.
  std::optional<KeySnapshot>& snapshot() {
    return snapshot_;
  }

  /// Scratch rows that belong to one lookup.
  class Lease {
   public:
    Lease(KeyTableRows& rows, uint32_t first) : rows_(rows), first_(first) {}
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;

    uint32_t first() const {
      return first_;
    }

   private:
    KeyTableRows& rows_;
    uint32_t first_;
  };
  /// Returns `count` scratch rows. If fewer are left, waits until all other leases end.
  /// Errors:  c10::Error if there are fewer than `count` in all.
  std::unique_ptr<Lease> lease(int64_t count);

 private:
  KeyTableRows(
      const TableConfig& config,
      const std::string& name,
      uint64_t seed,
      KeyIndex index);

  TableConfig config_;
  std::string name_;
  uint64_t seed_;
  KeyIndex index_;
  at::Tensor all_rows_;
  ReservedArray<int64_t> row_keys_;  // [index().rows()], or empty
  std::optional<KeySnapshot> snapshot_;
  std::mutex mutex_;  // guards the members below
  std::condition_variable is_free_;
  int64_t leases_ = 0;
  int64_t leased_rows_ = 0;  // since there was no lease
};

/// Calls write(i) for each index i of `rows`, in parallel, and prefetches row rows[i] of
/// `data` before. No row may occur twice.
void write_rows(
    c10::ArrayRef<uint32_t> rows,
    const void* data,
    int64_t row_bytes,
    c10::function_ref<void(int64_t)> write);

/// The rows that lookups read, [rows, dim].
const at::Tensor& lookup_rows_of(const TableState& table);

}  // namespace tessera
