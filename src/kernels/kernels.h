// SPDX-License-Identifier: Apache-2.0
#pragma once

// The loops over rows, as raw pointers. Nothing here checks its input: ids are
// in range and offsets ascend by the time they arrive.

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

/// Buckets that values are rounded to: lower + k * step, up to upper.
struct Buckets {
  float lower = 0.0F;
  float upper = 0.0F;
  float step = 0.0F;
};

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
  int64_t nnz = 0;
  const int64_t* offsets = nullptr;  // [bags + 1]; nullptr: bag b holds id b
  const float* weights = nullptr;  // [nnz]; nullptr: ones
  const float* scales = nullptr;  // [bags]; nullptr: ones
  Buckets buckets = {};  // step 0: rows are not rounded
  float* out = nullptr;  // [bags, dim]
  int64_t begin_bag = 0;
  int64_t end_bag = 0;
};

/// One term of a row's gradient: gain * gradient.
struct GradientSource {
  const float* gradient;  // [dim]
  float gain;
};

/// An id of the batch: which row it names, which source its gradient has.
struct Contribution {
  uint32_t row;
  uint32_t source;
};

/// What happens to a row around the rule, in this order.
struct RowStages {
  bool clip_gradient = false;
  float clip_gradient_min = 0.0F;
  float clip_gradient_max = 0.0F;
  /// weight -= weight_decay * weight; the learning rate is folded in.
  float weight_decay = 0.0F;
  bool clip_weight = false;
  float clip_weight_min = 0.0F;
  float clip_weight_max = 0.0F;

  bool any() const {
    return clip_gradient || clip_weight || weight_decay != 0.0F;
  }
};

/// Updates each row that occurs in `contributions`:
///
///   for each run of equal rows r:                  (accumulate)
///     gradient = sum of gain * gradient over the run
///     stages and rule on table[r] and slots[..][r]
///
/// Without `accumulate` the rule runs once per contribution, in order. With a
/// sweep, every other row of [first_row, end_row) gets a gradient of zeros.
struct UpdateArgs {
  StoredRows table = {};
  /// Each [vocab, dim], or [vocab] where the rule keeps one number per row;
  /// nullptr where it has none.
  std::array<float*, kMaxSlots> slots = {};
  const Contribution* contributions = nullptr;  // [count], sorted by row
  int64_t count = 0;
  const GradientSource* sources = nullptr;
  float* gradient = nullptr;  // [dim], scratch
  float* direction = nullptr;  // [dim], scratch
  float* weights = nullptr;  // [dim], scratch
  bool accumulate = true;
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

/// Fills rows [begin_row, end_row) of `out` with random values, a function of
/// (key, row, column): row i is rows[i] of its table.
///
///   uniform   low + (last - low) * u        u in (0, 1)
///   normal    mean + stddev * quantile(1/2 + mass * (u - 1/2)), the quantile
///             within +- limit
struct RandomArgs {
  bool is_uniform = false;
  float uniform_low = 0.0F;
  float uniform_last = 0.0F;
  float mean = 0.0F;
  float stddev = 1.0F;
  float mass = 1.0F;  // of the distribution that truncation keeps,
  float limit = std::numeric_limits<float>::infinity();  // and where it ends
  uint64_t key = 0;
  RowNumbers rows = {};
  int64_t begin_row = 0;
  int64_t end_row = 0;
  int64_t dim = 0;
  float* out = nullptr;  // [end_row, dim]
};

/// A feature of a batch: example b's row [dim] begins at first + b * stride.
template <class Float>
struct FeatureRows {
  Float* first = nullptr;
  int64_t stride = 0;
};

/// Dot products of all pairs of features within examples [begin_example,
/// end_example), and from the dots' gradient that of the features:
///
///   for b in begin_example .. end_example:
///     for i in 0 .. num_features, for j in 0 .. i:  (i itself, too, with_self)
///       dots[b][pair] = x[i][b] . x[j][b]
///       gradients[i][b] += dots_gradient[b][pair] * x[j][b]  (and i, j swapped)
struct PairwiseDotsArgs {
  const FeatureRows<const float>* features = nullptr;  // [num_features]
  int64_t num_features = 0;
  int64_t dim = 0;
  bool with_self = false;
  int64_t begin_example = 0;
  int64_t end_example = 0;
  float* dots = nullptr;  // [batch, pairs]
  FeatureRows<const float> dots_gradient = {};  // rows of [pairs]
  const FeatureRows<float>* gradients = nullptr;  // [num_features], overwritten
};

/// What a cross does beside its matrix products, with product = x W, and the
/// same for gradients:
///
///   for r in 0 .. rows:
///     out[r] = x0[r] * (product[r] + bias) + x[r]
///
///   for r in 0 .. rows:
///     x0_gradient[r] += gradient[r] * (product[r] + bias)
///     product_gradient[r] = gradient[r] * x0[r]
///     bias_gradient += product_gradient[r]
struct CrossArgs {
  int64_t rows = 0;
  int64_t dim = 0;
  const float* x0 = nullptr;  // [rows, dim], like all that have r
  const float* product = nullptr;
  const float* bias = nullptr;  // [dim]; nullptr: zeros
  const float* x = nullptr;
  float* out = nullptr;
  const float* gradient = nullptr;
  float* x0_gradient = nullptr;
  float* product_gradient = nullptr;
  float* bias_gradient = nullptr;  // [dim]; nullptr: not asked for
};

/// The kernels of one instruction set.
struct KernelTable {
  /// "avx512", "avx2", "sse4", "sse2", or what Highway calls its target.
  std::string isa;
  void (*combine)(const CombineArgs&) = nullptr;
  /// Copies ids as uint32; false when one is not in [0, vocab).
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
  /// By the rule's index in RowRule.
  std::array<
      void (*)(const UpdateArgs&, const void* rule),
      std::variant_size_v<RowRule>>
      update_by_rule = {};
  void (*sum_rows)(const SumArgs&) = nullptr;
  void (*fill_random)(const RandomArgs&) = nullptr;
  /// table[row] = values [dim], rounded as the table asks.
  void (*assign_row)(
      const StoredRows& table,
      int64_t row,
      const float* values) = nullptr;
  void (*pairwise_dots)(const PairwiseDotsArgs&) = nullptr;
  void (*pairwise_dots_gradient)(const PairwiseDotsArgs&) = nullptr;
  void (*cross)(const CrossArgs&) = nullptr;
  void (*cross_gradient)(const CrossArgs&) = nullptr;

  void update(const UpdateArgs& args, const RowRule& rule) const {
    std::visit(
        [&](const auto& typed) { update_by_rule[rule.index()](args, &typed); },
        rule);
  }
};

/// All instruction sets that this machine has, best first.
const std::vector<KernelTable>& available_kernels();

/// nullptr when this machine lacks `isa`.
const KernelTable* find_kernels(std::string_view isa);

}  // namespace tessera::kernels
