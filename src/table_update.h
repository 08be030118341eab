// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/row_update.h"
#include "src/buffer.h"
#include "src/embedding_state.h"
#include "src/id_bags.h"
#include "src/kernels/kernels.h"

#include <cstdint>
#include <vector>

namespace tessera {

/// What one update does to one table.
struct TableUpdate {
  /// The gradient of one feature's activation.
  struct Term {
    const IdBags* bags = nullptr;
    const float* gradient = nullptr;  // [bags, stride]
    /// Floats from one bag's gradient to the next; 0: all share one row.
    int64_t stride = 0;
  };

  TableState* table = nullptr;
  optim::RowUpdate rows = {};
  std::vector<Term> terms = {};
};

/// Sums the gradients of each touched row and updates it, tables and rows in
/// parallel.
///
/// A row belongs to one task and its terms keep the order of the batch, so the
/// result does not depend on the number of threads. Memory is kept from one
/// update to the next.
class TableUpdater {
 public:
  /// Errors:  none; the caller has checked everything.
  void update(const std::vector<TableUpdate>& updates);

 private:
  // Ids are spread over 2^bucket_bits buckets by their low bits, so that
  // neighbouring hot rows land in different ones; a bucket is one task.
  struct Workspace {
    Buffer<kernels::GradientSource> sources;
    Buffer<kernels::Contribution> contributions;
    Buffer<kernels::Contribution> scratch;
    int bucket_bits = 0;
    int row_bits = 0;
    std::vector<int64_t> bucket_begin;  // [buckets + 1]
  };
  // A stretch of one term's ids.
  struct Chunk {
    size_t table = 0;
    size_t term = 0;
    int64_t begin_id = 0;
    int64_t end_id = 0;
    int64_t first_contribution = 0;
    int64_t first_source = 0;
    std::vector<int64_t> next;  // [buckets], counts and then positions
  };

  void plan(const std::vector<TableUpdate>& updates);
  void fill(const TableUpdate& update, Chunk& chunk);
  void scatter(Chunk& chunk);
  void place_buckets();
  void update_bucket(
      const TableUpdate& update,
      Workspace& workspace,
      int64_t bucket);

  std::vector<Workspace> workspaces_;
  std::vector<Chunk> chunks_;
};

}  // namespace tessera
