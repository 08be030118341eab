// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loops over rows, on raw pointers. The kernels do not check their input. Callers
// have checked that ids are in range and that offsets ascend.

#include "src/kernels/overlaid_rows.h"
#include "src/kernels/quantized_rows.h"
#include "src/kernels/random_bits.h"
#include "src/kernels/row_rules.h"
#include "src/kernels/storage.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace tessera::kernels {

/// The buckets of a table whose values are rounded when they are looked up. Values are
/// limited to [lower, upper] and rounded to the nearest lower + k * step.
struct Buckets {
  float lower = 0.0F;
  float upper = 0.0F;
  float step = 0.0F;
};

/// Where the rows of one call are: in one table, or each at a place of its own.
enum class Places { kTable, kPointers };

/// Sums the rows of bags [begin_bag, end_bag):
///
///   for b in begin_bag .. end_bag:
///     out[b] = 0
///     for i in offsets[b] .. offsets[b + 1]:
///       out[b] += weights[i] * rounded(table[ids[i]])
///     out[b] *= scales[b]
struct CombineArgs {
  StoredRows table = {};
  const uint32_t* ids = nullptr;  // [nnz], each < vocab
  /// The row of each id, [nnz], for rows that are not all in one table. Then table.data and
  /// ids are not used.
  const void* const* rows = nullptr;
  int64_t nnz = 0;
  const int64_t* offsets = nullptr;  // [bags + 1]; nullptr: bag b holds id b
  const float* weights = nullptr;  // [nnz]; nullptr: ones
  const float* scales = nullptr;  // [bags]; nullptr: ones
  Buckets buckets = {};  // step 0: rows are not rounded
  float* out = nullptr;  // [bags, dim]
  int64_t begin_bag = 0;
  int64_t end_bag = 0;
};

/// Sums quantized rows, as CombineArgs does. They are in the format of QuantizedRow.
struct CombineQuantizedArgs {
  int64_t dim = 0;
  int bits = 8;  // 8 or 4
  const void* table = nullptr;
  const uint32_t* ids = nullptr;  // [nnz], each < vocab
  const void* const* rows = nullptr;  // [nnz]; as in CombineArgs
  int64_t nnz = 0;
  const int64_t* offsets = nullptr;  // [bags + 1]; nullptr: bag b holds id b
  const float* weights = nullptr;  // [nnz]; nullptr: ones
  const float* scales = nullptr;  // [bags]; nullptr: ones
  float* out = nullptr;  // [bags, dim]
  int64_t begin_bag = 0;
  int64_t end_bag = 0;
};

/// One term of a row's gradient. The term is factor * gradient.
struct GradientSource {
  const float* gradient;  // [dim]
  float factor;
};

/// An id of the batch. It has the row of the id and the index of its GradientSource.
struct Contribution {
  uint32_t row;
  uint32_t source;
};

/// The steps before and after the rule, in this order. The rule comes after the weight
/// decay.
struct RowStages {
  bool clip_gradient = false;
  float clip_gradient_min = 0.0F;
  float clip_gradient_max = 0.0F;
  /// weight -= weight_decay * weight. The factor includes the learning rate if the
  /// optimizer's spec says so.
  float weight_decay = 0.0F;
  bool clip_weight = false;
  float clip_weight_min = 0.0F;
  float clip_weight_max = 0.0F;

  bool any() const {
    return clip_gradient || clip_weight || weight_decay != 0.0F;
  }
};

/// Numbers rows from 0, without the bits that all of them share.
struct RowNumbering {
  uint32_t low_mask = 0;  // the bits below the shared ones
  int shared_bits = 0;

  uint32_t operator()(uint32_t row) const {
    return (row & low_mask) | ((row >> shared_bits) & ~low_mask);
  }
};

/// Memory for the summed gradients of some rows.
struct SumScratch {
  uint32_t* rows = nullptr;  // [max_rows]
  float* sums = nullptr;  // [max_rows, dim]
  int64_t max_rows = 0;
  /// nullptr, or a place for each number that `number_of` gives. With places, the
  /// contributions to a row need not be adjacent. max_rows must be at least the number of
  /// distinct rows, which must be at most 65,535. All places are 0 before and after the
  /// update.
  uint16_t* places = nullptr;
  RowNumbering number_of = {};
};

/// Updates each row that occurs in `contributions`:
///
///   for each run of equal rows r:                  (accumulate)
///     gradient = sum of factor * gradient over the run
///     apply stages and rule to table[r] and slots[..][r]
///
/// The contributions to a row are adjacent, except with SumScratch::places. Without
/// `accumulate`, the rule runs once per contribution, in order. With `sweep`, the
/// contributions are sorted by row, and the other rows of [first_row, end_row) are updated
/// with a gradient of zeros.
struct UpdateArgs {
  StoredRows table = {};
  /// Each [vocab, dim], or [vocab] if the rule keeps one number per row; nullptr if the
  /// rule does not use the slot. With `narrow_slots`, each [dim], scratch.
  std::array<float*, kMaxSlots> slots = {};
  /// nullptr, or the slots as they are stored in 16 bits, [kMaxSlots]. One that the rule
  /// does not use has no data.
  const StoredRows* narrow_slots = nullptr;
  const Contribution* contributions = nullptr;  // [count]
  int64_t count = 0;
  const GradientSource* sources = nullptr;
  float* gradient = nullptr;  // [dim], scratch
  float* direction = nullptr;  // [dim], scratch
  float* weights = nullptr;  // [dim], scratch
  bool accumulate = true;
  /// If it has memory, the gradients of many rows are summed before these rows are updated,
  /// which is faster for narrow rows. It needs `accumulate`, and no `sweep`.
  SumScratch sums = {};
  RowStages stages = {};
  bool sweep = false;
  uint32_t first_row = 0;
  uint32_t end_row = 0;
  const float* zeros = nullptr;  // [dim], for a sweep
};

/// Sums the gradients of each row that occurs in `contributions`.
struct SumArgs {
  int64_t dim = 0;
  const Contribution* contributions = nullptr;  // [count], sorted by row
  int64_t count = 0;
  const GradientSource* sources = nullptr;
  uint32_t* rows = nullptr;  // [distinct rows]
  float* sums = nullptr;  // [distinct rows, dim]
};

/// Fills rows [begin_row, end_row) of `out` with random values. They are a function of
/// (key, row number, column). Row i of `out` has the row number rows[i] in the table.
///
///   uniform   low + (last - low) * u        u in (0, 1)
///   normal    mean + stddev * quantile(1/2 + mass * (u - 1/2)), where the quantile of
///             the standard normal distribution is limited to [-limit, limit]
struct RandomArgs {
  bool is_uniform = false;
  float uniform_low = 0.0F;
  float uniform_last = 0.0F;
  float mean = 0.0F;
  float stddev = 1.0F;
  float mass = 1.0F;  // the probability that truncation keeps
  /// The largest |quantile|, in standard deviations.
  float limit = std::numeric_limits<float>::infinity();
  uint64_t key = 0;
  RowNumbers rows = {};
  int64_t begin_row = 0;
  int64_t end_row = 0;
  int64_t dim = 0;
  float* out = nullptr;  // [end_row, dim]
};

/// A feature of a batch. The row [dim] of example b begins at first + b * stride. With
/// stride 0, all examples have the same row.
template <class Float>
struct FeatureRows {
  Float* first = nullptr;
  int64_t stride = 0;
};

/// What a scan needs besides the vector of a query. ScanArgs says what the numbers mean.
struct ScanQuery {
  float step = 1.0F;  // of the integers of its vector; floats have 1
  float sum = 0.0F;  // of its vector
  float weight = 0.0F;
  float slack = 0.0F;
  float threshold = 0.0F;
};

/// Estimates the score of each row for each query, and finds the rows whose score may reach
/// the threshold of a query:
///
///   scores[q][r]      scales[r] * step * dot(query q, row r) + offsets[r] * sum
///   error             weight * widths[r] + slack
///   bit r of hits[q]  not scores[q][r] + error < threshold, or |scores[q][r]| > kLargest
///
/// Rows are float32, or the codes of 8 bits of a QuantizedRow, which are multiplied with
/// integers and need a sum of |integer| below 2^31 / 255. Sums of floats have their terms
/// in any order. What is behind a row, up to a multiple of 32 numbers, is read and
/// multiplied by 0.
struct ScanArgs {
  static constexpr int64_t kRows = 64;  // of a call
  static constexpr float kLargest = 0x1p126F;

  static constexpr int64_t padded(int64_t dim) {
    return (dim + 31) / 32 * 32;
  }

  int64_t dim = 0;
  const void* const* rows = nullptr;  // [num_rows, rounded up to 4]
  int64_t num_rows = 0;  // 1 .. kRows
  const float* scales = nullptr;  // [kRows]
  const float* offsets = nullptr;  // [kRows]
  const float* widths = nullptr;  // [kRows]
  const ScanQuery* queries = nullptr;  // [num_queries]
  /// The vectors with zeros at the end. `integers` are for codes, and otherwise nullptr.
  const float* vectors = nullptr;  // [num_queries, padded(dim)]
  const int16_t* integers = nullptr;  // [num_queries, padded(dim)]
  int64_t num_queries = 0;
  float* scratch = nullptr;  // [padded(dim), kRows]
  float* scores = nullptr;  // [num_queries, kRows]
  uint64_t* hits = nullptr;  // [num_queries]
};

/// The kernels of one instruction set.
struct KernelTable {
  /// "avx512", "avx2", "sse4", "sse2", or Highway's name of the target in lower case.
  std::string isa;
  void (*combine)(const CombineArgs&) = nullptr;
  void (*combine_quantized)(const CombineQuantizedArgs&) = nullptr;
  void (*locate)(const LocateArgs&) = nullptr;
  void (*scan)(const ScanArgs&) = nullptr;
  /// Copies ids as uint32. Returns false if an id is not in [0, vocab).
  bool (*narrow_int32)(
      const int32_t* ids,
      int64_t n,
      int64_t vocab,
      uint32_t* out) = nullptr;
  bool (*narrow_int64)(
      const int64_t* ids,
      int64_t n,
      int64_t vocab,
      uint32_t* out) = nullptr;
  /// The index is that of the rule in RowRule.
  std::array<
      void (*)(const UpdateArgs&, const void* rule),
      std::variant_size_v<RowRule>>
      update_by_rule = {};
  void (*sum_rows)(const SumArgs&) = nullptr;
  /// The largest |value| of `count` rows [dim]. NaN if any value is NaN.
  float (*largest_magnitude)(
      const FeatureRows<const float>& rows,
      int64_t count,
      int64_t dim) = nullptr;
  void (*fill_random)(const RandomArgs&) = nullptr;
  /// table[row] = values [dim], rounded to the storage of the table.
  void (*assign_row)(
      const StoredRows& table,
      int64_t row,
      const float* values) = nullptr;

  void update(const UpdateArgs& args, const RowRule& rule) const {
    std::visit(
        [&](const auto& typed) { update_by_rule[rule.index()](args, &typed); },
        rule);
  }
};

/// The kernels of all instruction sets that this machine has. The best one is the first.
const std::vector<KernelTable>& available_kernels();

/// The kernels of `isa`, or nullptr if this machine lacks it.
const KernelTable* find_kernels(std::string_view isa);

}  // namespace tessera::kernels
