// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/row_update.h"
#include "src/common/buffer.h"
#include "src/features/id_bags.h"
#include "src/kernels/kernels.h"

#include <c10/util/ArrayRef.h>
#include <c10/util/SmallVector.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace tessera {

class KeyIndex;
struct TableState;

/// Records the keys of rows as used, with KeyIndex::record_use().
struct RowRecord {
  KeyIndex* index = nullptr;  // nullptr: records nothing
  uint32_t update = 0;
};

/// What one update does to one table.
struct TableUpdate {
  /// The gradient of one feature's activation.
  struct Term {
    const IdBags* bags = nullptr;
    const float* gradient = nullptr;  // [bags, stride]
    /// The number of floats from one bag's gradient to the next. With 0, all bags share
    /// one row.
    int64_t stride = 0;
    /// Multiplies the gradient.
    float factor = 1.0F;
    /// The row of `gradient` for each bag, [bags]. If nullptr, bag b has row b.
    const uint32_t* positions = nullptr;
    /// The row of each id, [nnz], or kNoRow for an id that is left out. If nullptr, the ids
    /// are rows.
    const uint32_t* rows = nullptr;

    const uint32_t* ids() const {
      return rows == nullptr ? bags->ids.data() : rows;
    }
  };

  TableState* table = nullptr;
  optim::RowUpdate rows = {};
  kernels::Rounding rounding = {};
  c10::SmallVector<Term, 1> terms = {};
  /// Applies to each row that occurs in the terms.
  RowRecord record = {};
  /// All ids are less than this. If unset, ids are rows of the table.
  std::optional<int64_t> id_limit = {};
};

/// The summed gradient of some rows of a table.
struct RowGradients {
  Buffer<uint32_t> rows;  // [distinct rows], each once
  Buffer<float> sums;  // [distinct rows, dim]
};

/// Sums the gradients of each touched row and updates the row. Tables and rows are
/// processed in parallel.
///
/// Each row belongs to one task, and its terms keep the order of the batch, so the
/// result does not depend on the number of threads. Updates reuse the memory of earlier
/// ones.
class TableUpdater {
 public:
  /// Updates the tables. Raises no errors, because the caller has checked everything.
  void update(const std::vector<TableUpdate>& updates);

  /// Returns only the summed gradients, one entry per update. Update rules are ignored.
  std::vector<RowGradients> sum(const std::vector<TableUpdate>& updates);

 private:
  // Ids are spread over 2^bin_bits bins, and each bin is one task. If the ids are spread
  // evenly, the high bits of an id select its bin, which is a range of rows. The rows of a
  // task are then close together, and the processor finds more of their page addresses in
  // its caches: a step on a million rows of 64 floats took 0.8 to 0.9 times as long on two
  // threads of a Zen 3. Otherwise, low bits select the bin, so that neighbouring frequent
  // rows get different tasks. Narrow rows that share a cache line get the same task, because
  // two threads would wait for each other. In a sweep, each bin must be a range of rows.
  struct Workspace {
    Buffer<kernels::GradientSource> sources;
    Buffer<kernels::Contribution> contributions;
    int bin_bits = 0;
    int bin_shift = 0;
    int row_bits = 0;

    // A copy for loops, because a compiler reads members again after each store.
    struct BinOf {
      int shift = 0;
      uint32_t mask = 0;

      uint32_t operator()(uint32_t row) const {
        return static_cast<uint32_t>(uint64_t{row} >> shift) & mask;
      }
    };
    BinOf bin_of() const {
      return {bin_shift, (1U << bin_bits) - 1};
    }
    std::vector<int64_t> bin_begin;  // [bins + 1]

    int64_t bins() const {
      return int64_t{1} << bin_bits;
    }
    int64_t count(int64_t bin) const {
      return bin_begin[bin + 1] - bin_begin[bin];
    }
  };
  // A range of one term's ids.
  struct Chunk {
    size_t table = 0;
    size_t term = 0;
    int64_t begin_id = 0;
    int64_t end_id = 0;
    int64_t first_source = 0;
    int64_t first_counter = 0;  // in counters_, where each bin has one
  };
  enum class BinSizes {
    kFixed,  // the order of the rows does not depend on the number of threads
    kByThreads  // many threads get smaller bins
  };

  // A table and one of its bins.
  using Task = std::pair<size_t, int64_t>;
  using Updates = c10::ArrayRef<TableUpdate>;

  // Updates one table after the other on this thread.
  void update_few_ids(const std::vector<TableUpdate>& updates);
  void update_group(Updates updates);
  void plan(Updates updates, BinSizes sizes);
  static void choose_bins(
      const TableUpdate& update,
      BinSizes sizes,
      int64_t ids_per_bin,
      Workspace& workspace);
  void add_chunks(
      const TableUpdate& update,
      size_t table,
      int64_t ids_per_chunk);
  // Puts all contributions into their bins and returns one task per bin.
  std::vector<Task> distribute(Updates updates, BinSizes sizes);
  void count_bins(const TableUpdate& update, const Chunk& chunk);
  void place_bins(size_t tables);
  void scatter(const TableUpdate& update, const Chunk& chunk);
  // Makes the contributions to each row adjacent. In a sweep, it also sorts the rows.
  static const kernels::Contribution* group_bin(
      const TableUpdate& update,
      Workspace& workspace,
      int64_t bin);
  static kernels::Contribution* sort_bin(Workspace& workspace, int64_t bin);
  static void update_bin(
      const TableUpdate& update,
      Workspace& workspace,
      int64_t bin);

  int64_t bytes_ = 0;  // of memory traffic
  std::vector<Workspace> workspaces_;  // [tables updated together]
  std::vector<Chunk> chunks_;
  // For each chunk and bin, first the number of ids, then the position of the next id.
  Buffer<uint32_t> counters_;
};

}  // namespace tessera
