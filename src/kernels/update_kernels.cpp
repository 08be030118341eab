// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/update_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>
#include <math.h>

#include <cstring>
#include <limits>
#include <type_traits>

#include "src/kernels/kernels.h"
#include "src/kernels/prefetch.h"
#include "src/kernels/targets.h"

// With a sanitizer, forced inlining made this file take more than 10 minutes to compile.
#ifndef TESSERA_ROW_INLINE
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define TESSERA_ROW_INLINE HWY_NOINLINE
#else
#define TESSERA_ROW_INLINE HWY_INLINE
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/columns-inl.h"
#include "src/kernels/prefetch-inl.h"
#include "src/kernels/random_bits-inl.h"
#include "src/kernels/row_rules-inl.h"
#include "src/kernels/storage-inl.h"

// A NaN stays, because comparisons with it are false. Min() and Max() are not used
// here, because their result for NaN differs between targets.
struct Clamp {
  const float* from;
  float* to;
  float low;
  float high;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const auto lowest = hn::Set(d, low);
    const auto highest = hn::Set(d, high);
    auto value = hn::LoadU(d, from + column);
    value = hn::IfThenElse(hn::Lt(value, lowest), lowest, value);
    value = hn::IfThenElse(hn::Gt(value, highest), highest, value);
    hn::StoreU(value, d, to + column);
  }
};

struct Decay {
  float* weights;
  float decay;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const auto weight = hn::LoadU(d, weights + column);
    hn::StoreU(
        hn::NegMulAdd(hn::Set(d, decay), weight, weight), d, weights + column);
  }
};

// The gradients of one row: contributions [begin, end), which are summed in this order.
struct GradientRun {
  const GradientSource* sources;
  const Contribution* begin;
  const Contribution* end;
};

// Sums columns [column, column + kVectors * lanes) of a run in registers.
template <int kVectors, class D>
HWY_INLINE void SumGradientColumns(
    D d,
    const GradientRun& run,
    int64_t column,
    float* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  V sum4 = sum0, sum5 = sum0, sum6 = sum0, sum7 = sum0;
  for (const Contribution* i = run.begin; i < run.end; ++i) {
    const GradientSource& source = run.sources[i->source];
    const float* HWY_RESTRICT gradient = source.gradient + column;
    const V factor = hn::Set(d, source.factor);
    const auto add = [&](int64_t vector, V& sum) HWY_ATTR {
      sum = hn::MulAdd(factor, hn::LoadU(d, gradient + vector * lanes), sum);
    };
    add(0, sum0);
    if constexpr (kVectors >= 2) {
      add(1, sum1);
    }
    if constexpr (kVectors >= 4) {
      add(2, sum2);
      add(3, sum3);
    }
    if constexpr (kVectors >= 8) {
      add(4, sum4);
      add(5, sum5);
      add(6, sum6);
      add(7, sum7);
    }
  }
  out += column;
  hn::StoreU(sum0, d, out);
  if constexpr (kVectors >= 2) {
    hn::StoreU(sum1, d, out + lanes);
  }
  if constexpr (kVectors >= 4) {
    hn::StoreU(sum2, d, out + 2 * lanes);
    hn::StoreU(sum3, d, out + 3 * lanes);
  }
  if constexpr (kVectors >= 8) {
    hn::StoreU(sum4, d, out + 4 * lanes);
    hn::StoreU(sum5, d, out + 5 * lanes);
    hn::StoreU(sum6, d, out + 6 * lanes);
    hn::StoreU(sum7, d, out + 7 * lanes);
  }
}

struct SumLastColumns {
  const GradientRun& run;
  float* out;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    SumGradientColumns<1>(d, run, column, out);
  }
};

// out = sum of factor * gradient over the run. It is not inlined, because every rule
// calls it.
HWY_NOINLINE void SumGradients(
    int64_t dim,
    const GradientRun& run,
    float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + 8 * lanes <= dim; column += 8 * lanes) {
    SumGradientColumns<8>(d, run, column, out);
  }
  if (column + 4 * lanes <= dim) {
    SumGradientColumns<4>(d, run, column, out);
    column += 4 * lanes;
  }
  if (column + 2 * lanes <= dim) {
    SumGradientColumns<2>(d, run, column, out);
    column += 2 * lanes;
  }
  if (column + lanes <= dim) {
    SumGradientColumns<1>(d, run, column, out);
    column += lanes;
  }
  ForLastColumns(dim, column, SumLastColumns{run, out});
}

// What SumRows() has summed.
struct Summed {
  int64_t rows;
  int64_t contributions;
};

// Sums the gradients of up to `max_rows` rows of kVectors full vectors. There is no branch
// at the end of a run, because the lengths of runs can't be predicted: each partial sum is
// stored, and the next one overwrites it unless the run has ended. If rows are in the
// cache, an update of dim 16 takes half the time that it takes with such a branch.
template <int kVectors, class D>
Summed SumNarrowRows(D d, const SumArgs& given, int64_t max_rows) {
  static_assert(kVectors == 1 || kVectors == 2 || kVectors == 4);
  using V = hn::Vec<D>;
  const SumArgs args = given;  // a copy, because stores could change `given`
  const hn::Repartition<uint32_t, D> d32;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  int64_t rows = 0;
  int64_t i = 0;
  for (; i < args.count && rows < max_rows; ++i) {
    const Contribution current = args.contributions[i];
    const bool is_last = i + 1 == args.count;
    const uint32_t next_row = args.contributions[i + (is_last ? 0 : 1)].row;
    const uint32_t is_same = current.row == next_row && !is_last ? 1 : 0;
    const V keep = hn::BitCast(d, hn::Set(d32, 0U - is_same));
    const GradientSource source = args.sources[current.source];
    const V factor = hn::Set(d, source.factor);
    float* HWY_RESTRICT out = args.sums + rows * args.dim;
    const auto add = [&](int64_t vector, V& sum) HWY_ATTR {
      const V gradient = hn::LoadU(d, source.gradient + vector * lanes);
      const V total = hn::MulAdd(factor, gradient, sum);
      hn::StoreU(total, d, out + vector * lanes);
      sum = hn::And(total, keep);
    };
    add(0, sum0);
    if constexpr (kVectors >= 2) {
      add(1, sum1);
    }
    if constexpr (kVectors >= 4) {
      add(2, sum2);
      add(3, sum3);
    }
    args.rows[rows] = current.row;
    rows += 1 - is_same;
  }
  return {rows, i};
}

Summed SumAnyRows(const SumArgs& args, int64_t max_rows) {
  int64_t rows = 0;
  const Contribution* end = args.contributions + args.count;
  const Contribution* begin = args.contributions;
  for (; begin < end && rows < max_rows; ++rows) {
    const Contribution* next = begin;
    while (next < end && next->row == begin->row) {
      ++next;
    }
    args.rows[rows] = begin->row;
    SumGradients(
        args.dim, {args.sources, begin, next}, args.sums + rows * args.dim);
    begin = next;
  }
  return {rows, begin - args.contributions};
}

HWY_NOINLINE Summed SumSomeRows(const SumArgs& args, int64_t max_rows) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 8> d8;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (args.dim == lanes) {
    return SumNarrowRows<1>(d, args, max_rows);
  }
  if (args.dim == 2 * lanes) {
    return SumNarrowRows<2>(d, args, max_rows);
  }
  if (args.dim == 4 * lanes) {
    return SumNarrowRows<4>(d, args, max_rows);
  }
  if (args.dim == static_cast<int64_t>(hn::Lanes(d8))) {
    return SumNarrowRows<1>(d8, args, max_rows);
  }
  return SumAnyRows(args, max_rows);
}

void SumRows(const SumArgs& args) {
  SumSomeRows(args, args.count);
}

// sum = keep & sum + factor * gradient.
struct AddScattered {
  const float* gradient;
  float factor;
  uint32_t keep;
  float* sum;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const auto old =
        hn::And(hn::LoadU(d, sum + column), hn::BitCast(d, hn::Set(d32, keep)));
    hn::StoreU(
        hn::MulAdd(hn::Set(d, factor), hn::LoadU(d, gradient + column), old),
        d,
        sum + column);
  }
};

// Sums the gradients of all rows, in the order of their first contributions. The sort that
// SumSomeRows() needs takes longer than these sums. kVectors is 0 if rows do not consist of
// 1, 2 or 4 full vectors. Returns the number of rows.
template <int kVectors, class D>
int64_t SumScatteredColumns(D d, const UpdateArgs& args) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const SumScratch sums = args.sums;  // in registers
  const int64_t dim = kVectors == 0 ? args.table.dim : kVectors * lanes;
  const Contribution* const end = args.contributions + args.count;
  const GradientSource* const sources = args.sources;
  uint32_t rows = 0;
  for (const Contribution* i = args.contributions; i < end; ++i) {
    // The processor can't predict which rows are new. So there is no condition here, because
    // a compiler would make a branch of it.
    uint16_t& place = sums.places[sums.number_of(i->row)];
    const uint32_t known = place - 1U;  // all bits are set if the row is new
    const uint32_t is_new = known >> 31;
    const uint32_t keep = is_new - 1;
    const uint32_t index = (known & keep) | (rows & ~keep);
    place = static_cast<uint16_t>(index + 1);
    sums.rows[index] = i->row;
    rows += is_new;
    const GradientSource source = sources[i->source];
    const AddScattered add{
        source.gradient,
        source.factor,
        keep,
        sums.sums + static_cast<int64_t>(index) * dim};
    if constexpr (kVectors == 0) {
      ForColumns(dim, add);
    }
    for (int64_t vector = 0; vector < kVectors; ++vector) {
      add(d, vector * lanes);
    }
  }
  return rows;
}

HWY_NOINLINE int64_t SumScatteredRows(const UpdateArgs& args) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t dim = args.table.dim;
  if (dim == lanes) {
    return SumScatteredColumns<1>(d, args);
  }
  if (dim == 2 * lanes) {
    return SumScatteredColumns<2>(d, args);
  }
  if (dim == 4 * lanes) {
    return SumScatteredColumns<4>(d, args);
  }
  return SumScatteredColumns<0>(d, args);
}

// The bits of the largest |value|. Without its sign, a float is ordered like an integer,
// and NaN comes after infinity.
struct LargestOfLast {
  const float* values;
  int32_t& largest;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const hn::Rebind<int32_t, D> di;
    const auto bits = hn::BitCast(di, hn::Abs(hn::LoadU(d, values + column)));
    largest = HWY_MAX(largest, hn::GetLane(hn::MaxOfLanes(di, bits)));
  }
};

float LargestMagnitude(
    const FeatureRows<const float>& rows,
    int64_t count,
    int64_t dim) {
  const hn::ScalableTag<float> d;
  const hn::Rebind<int32_t, decltype(d)> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  auto largest = hn::Zero(di);
  int32_t last = 0;
  for (int64_t row = 0; row < count; ++row) {
    const float* values = rows.first + row * rows.stride;
    int64_t column = 0;
    for (; column + lanes <= dim; column += lanes) {
      const auto value = hn::Abs(hn::LoadU(d, values + column));
      largest = hn::Max(largest, hn::BitCast(di, value));
    }
    ForLastColumns(dim, column, LargestOfLast{values, last});
  }
  last = HWY_MAX(last, hn::GetLane(hn::MaxOfLanes(di, largest)));
  return hn::GetLane(hn::BitCast(d, hn::Set(di, last)));
}

struct Copy {
  const float* from;
  float* to;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    hn::StoreU(hn::LoadU(d, from + column), d, to + column);
  }
};

// Converts a 16-bit row to float32.
template <class Row>
struct Widen {
  const typename Row::Element* from;
  float* to;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    hn::StoreU(Row::Load(d, from + column), d, to + column);
  }
};

// Rounds a float32 row to the nearest 16-bit numbers.
template <class Row>
struct RoundNearest {
  const float* from;
  typename Row::Element* to;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    Row::StoreNearest(d, hn::LoadU(d, from + column), to + column);
  }
};

// Rounds a float32 row to 16 bits, up or down at random.
template <class Row>
struct RoundAtRandom {
  const float* from;
  typename Row::Element* to;
  RowKey key;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const auto random = RandomHalves(d32, key, column);
    Row::StoreAtRandom(d, hn::LoadU(d, from + column), random, to + column);
  }

  template <class D>
  HWY_INLINE void two(D d, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const int64_t next = column + static_cast<int64_t>(hn::Lanes(d));
    const auto random = RandomHalvesOfTwo(d32, key, column);
    Row::StoreAtRandom(
        d, hn::LoadU(d, from + column), random.first, to + column);
    Row::StoreAtRandom(d, hn::LoadU(d, from + next), random.second, to + next);
  }
};

template <class Row>
HWY_INLINE void RoundRow(
    const StoredRows& table,
    int64_t row,
    int64_t step,
    const float* weights) {
  auto* to = static_cast<typename Row::Element*>(table.data) + row * table.dim;
  if (table.rounding.is_stochastic) {
    const uint64_t key = table.rounding.key + static_cast<uint64_t>(step);
    ForTwoVectors(
        table.dim,
        RoundAtRandom<Row>{
            weights, to, key_of_row(key, table.rounding.number_of(row))});
  } else {
    ForColumns(table.dim, RoundNearest<Row>{weights, to});
  }
}

// The weights of a row in kInt8, for reading.
struct CodedWeights {
  const int8_t* codes;
  float scale;

  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int64_t column) const {
    return hn::Mul(Int8Row::Load(d, codes + column), hn::Set(d, scale));
  }
};

struct WidenInt8 {
  CodedWeights from;
  float* to;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    hn::StoreU(from.Load(d, column), d, to + column);
  }
};

// Rounds numbers to codes, to the nearest one. A number that is a code already keeps it.
struct NearestCodes {
  const float* from;
  float inverse;  // of the scale
  int8_t* to;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    Store(d, hn::LoadU(d, from + column), hn::Zero(d), column);
  }

  // Stores the codes of one vector of numbers. `shift` is added to the numbers in units of
  // the scale.
  template <class D, class V = hn::Vec<D>>
  HWY_INLINE void Store(D d, V value, V shift, int64_t column) const {
    // A float of at most 2^22 plus this has the nearest integer in its lowest bits.
    constexpr float kRoundToInteger = 0x1.8p23F;
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<uint8_t, D> d8;
    const auto rounded = hn::Add(
        hn::MulAdd(value, hn::Set(d, inverse), shift),
        hn::Set(d, kRoundToInteger));
    hn::StoreU(
        hn::TruncateTo(d8, hn::BitCast(d32, rounded)),
        d8,
        reinterpret_cast<uint8_t*>(to) + column);
  }
};

// Rounds numbers to codes, up or down at random: a random number in (-1/2, 1/2) is added in
// units of the scale, and the sum is rounded to the nearest code.
struct RandomCodes {
  NearestCodes nearest;
  RowKey key;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    Round(d, Load(d, column), RandomHalves(d32, key, column), column);
  }

  template <class D>
  HWY_INLINE void two(D d, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const int64_t next = column + static_cast<int64_t>(hn::Lanes(d));
    const auto random = RandomHalvesOfTwo(d32, key, column);
    Round(d, Load(d, column), random.first, column);
    Round(d, Load(d, next), random.second, next);
  }

  template <class D, class R>
  HWY_INLINE void Round(D d, hn::Vec<D> value, R random, int64_t column) const {
    // The number of a code is off by up to 2^-16 units, because the inverse and the product
    // are rounded. So the shift stays 2^-15 below 1/2, and the code does not change.
    constexpr float kUnit = 0x1p-16F * (1.0F - 0x1p-14F);
    const hn::Rebind<int32_t, D> di32;
    const auto shift = hn::MulAdd(
        hn::ConvertTo(d, hn::BitCast(di32, random)),
        hn::Set(d, kUnit),
        hn::Set(d, -32767.5F * kUnit));
    nearest.Store(d, value, shift, column);
  }

 private:
  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int64_t column) const {
    return hn::LoadU(d, nearest.from + column);
  }
};

constexpr float kLargestCode = 127.0F;
// A scale is halved if all codes are below this share of the largest one.
constexpr float kSmallShare = 0.25F;

// Returns the scale of a row in kInt8 for numbers up to `largest`, if it was `old` before.
// 0: there was none. A new scale has some room, and one that is four times too large is
// halved, which changes no number. So a row seldom gets another scale, and with it other
// roundings of all its numbers.
float NextScale(float largest, float old) {
  constexpr float kRoom = 1.125F;
  constexpr float kSmallest = 0x1p-126F;  // its inverse is finite
  if (largest <= old * kLargestCode) {
    const bool is_small = largest < old * kLargestCode * kSmallShare;
    return !is_small ? old : old >= 2 * kSmallest ? 0.5F * old : 0.0F;
  }
  const float scale = largest / kLargestCode * kRoom;
  if (scale < kSmallest) {
    return 0.0F;
  }
  if (!(scale <= std::numeric_limits<float>::max())) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  // Rounds up to bfloat16.
  uint32_t bits;
  std::memcpy(&bits, &scale, sizeof(bits));
  bits = (bits + 0xFFFFU) & 0xFFFF0000U;
  float rounded;
  std::memcpy(&rounded, &bits, sizeof(rounded));
  return rounded;
}

// The first code of a row in kInt8.
HWY_INLINE int8_t* FirstCode(const StoredRows& table, int64_t row) {
  return static_cast<int8_t*>(table.data) +
      row * bytes_of_row(Storage::kInt8, table.dim) + Int8Row::kHeader;
}

HWY_NOINLINE void NarrowInt8Row(
    const StoredRows& table,
    int64_t row,
    int64_t step,
    const float* weights) {
  const Rounding& rounding = table.rounding;
  int8_t* codes = FirstCode(table, row);
  const float scale = NextScale(
      LargestMagnitude({.first = weights}, 1, table.dim),
      rounding.keeps_scale ? Int8Row::ScaleOf(codes) : 0.0F);
  Int8Row::SetScale(codes, scale);
  const NearestCodes nearest{weights, 1.0F / scale, codes};
  if (scale == 0.0F) {
    std::memset(codes, 0, static_cast<size_t>(table.dim));
  } else if (rounding.is_stochastic) {
    const uint64_t key = rounding.key + static_cast<uint64_t>(step);
    ForTwoVectors(
        table.dim,
        RandomCodes{nearest, key_of_row(key, rounding.number_of(row))});
  } else {
    ForColumns(table.dim, nearest);
  }
}

// Converts a row to float32. This function is not inlined, because every rule calls it
// several times. With inlined conversions, the compiler took five times as long.
HWY_NOINLINE void WidenRow(
    const StoredRows& table,
    int64_t row,
    float* weights) {
  if (table.storage == Storage::kInt8) {
    const int8_t* codes = FirstCode(table, row);
    ForColumns(table.dim, WidenInt8{{codes, Int8Row::ScaleOf(codes)}, weights});
    return;
  }
  const auto* from = static_cast<const uint16_t*>(table.data) + row * table.dim;
  if (table.storage == Storage::kBFloat16) {
    ForColumns(table.dim, Widen<BFloat16Row>{from, weights});
  } else {
    ForColumns(table.dim, Widen<Float16Row>{from, weights});
  }
}

// `step` counts the steps of one update on one row. Each step rounds with other random
// bits.
HWY_NOINLINE void NarrowRow(
    const StoredRows& table,
    int64_t row,
    int64_t step,
    const float* weights) {
  if (table.storage == Storage::kInt8) {
    NarrowInt8Row(table, row, step, weights);
  } else if (table.storage == Storage::kBFloat16) {
    RoundRow<BFloat16Row>(table, row, step, weights);
  } else {
    RoundRow<Float16Row>(table, row, step, weights);
  }
}

// Returns the weights of a row as float32: the row itself, or a copy in `scratch`.
HWY_INLINE float* OpenRow(
    const StoredRows& table,
    int64_t row,
    float* scratch) {
  if (table.storage == Storage::kFloat32) {
    return static_cast<float*>(table.data) + row * table.dim;
  }
  WidenRow(table, row, scratch);
  return scratch;
}

// Writes back what OpenRow() copied.
HWY_INLINE void CloseRow(
    const StoredRows& table,
    int64_t row,
    int64_t step,
    const float* weights) {
  if (table.storage != Storage::kFloat32) {
    NarrowRow(table, row, step, weights);
  }
}

// The weights of a row as float32, which are updated in place.
struct FloatWeights {
  float* row;

  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int64_t column) const {
    return hn::LoadU(d, row + column);
  }

  template <class D>
  HWY_INLINE void Store(D d, hn::Vec<D> value, int64_t column) const {
    hn::StoreU(value, d, row + column);
  }
};

// The weights of a 16-bit row, rounded at random. They are updated without a copy of the
// row.
template <class Stored>
struct RandomlyRoundedWeights {
  typename Stored::Element* row;
  RowKey key;

  template <class D>
  HWY_INLINE hn::Vec<D> Load(D d, int64_t column) const {
    return Stored::Load(d, row + column);
  }

  template <class D>
  HWY_INLINE void Store(D d, hn::Vec<D> value, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    Stored::StoreAtRandom(
        d, value, RandomHalves(d32, key, column), row + column);
  }

  template <class D>
  HWY_INLINE void StoreTwo(
      D d,
      hn::Vec<D> first,
      hn::Vec<D> second,
      int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const int64_t next = column + static_cast<int64_t>(hn::Lanes(d));
    const auto random = RandomHalvesOfTwo(d32, key, column);
    Stored::StoreAtRandom(d, first, random.first, row + column);
    Stored::StoreAtRandom(d, second, random.second, row + next);
  }
};

// The members are copies, which can stay in registers. Through a reference, all of them were
// loaded again after each store.
template <class Row, class Weights>
struct Step {
  typename Row::Rule rule;
  float rate;  // from Row::Begin()
  RowSlots slots;
  Weights weights;
  const float* HWY_RESTRICT gradient;

  template <class D>
  HWY_INLINE hn::Vec<D> Stepped(D d, int64_t column) const {
    return Row::Step(
        d,
        rule,
        {weights.Load(d, column),
         hn::LoadU(d, gradient + column),
         {slots, column},
         rate});
  }

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    weights.Store(d, Stepped(d, column), column);
  }

  template <class D>
  HWY_INLINE void two(D d, int64_t column) const {
    const auto first = Stepped(d, column);
    const auto second = Stepped(d, column + static_cast<int64_t>(hn::Lanes(d)));
    weights.StoreTwo(d, first, second, column);
  }
};

// The update of one row. `step` counts the steps of one update on the row.
template <class Row, bool kStages>
struct StepAnyRow {
  const UpdateArgs& args;
  const typename Row::Rule& rule;

  TESSERA_ROW_INLINE void operator()(
      uint32_t row,
      int64_t step,
      const float* gradient) const {
    const int64_t dim = args.table.dim;
    const RowStages& stages = args.stages;
    float* weights = OpenRow(args.table, row, args.weights);
    if constexpr (kStages) {
      if (stages.clip_gradient) {
        ForColumns(
            dim,
            Clamp{
                gradient,
                args.gradient,
                stages.clip_gradient_min,
                stages.clip_gradient_max});
        gradient = args.gradient;
      }
      if (stages.weight_decay != 0.0F) {
        ForColumns(dim, Decay{weights, stages.weight_decay});
      }
    }
    const float rate = Row::Begin(args, rule, row, weights, gradient);
    ForColumns(
        dim,
        Step<Row, FloatWeights>{
            rule,
            rate,
            SlotsOf<Row>(args, row),
            {weights},
            GradientOf<Row>(args, gradient)});
    if constexpr (kStages) {
      if (stages.clip_weight) {
        ForColumns(
            dim,
            Clamp{
                weights,
                weights,
                stages.clip_weight_min,
                stages.clip_weight_max});
      }
    }
    CloseRow(args.table, row, step, weights);
  }
};

// Like StepAnyRow, for 16-bit rows that are rounded at random, and without stages.
template <class Row, class Stored>
struct StepRandomlyRoundedRow {
  const UpdateArgs& args;
  const typename Row::Rule& rule;

  TESSERA_ROW_INLINE void operator()(
      uint32_t row,
      int64_t step,
      const float* gradient) const {
    const StoredRows& table = args.table;
    const int64_t offset = static_cast<int64_t>(row) * table.dim;
    const uint64_t key = table.rounding.key + static_cast<uint64_t>(step);
    const RandomlyRoundedWeights<Stored> weights{
        static_cast<typename Stored::Element*>(table.data) + offset,
        key_of_row(key, table.rounding.number_of(row))};
    const float rate = Row::Begin(args, rule, row, nullptr, gradient);
    ForTwoVectors(
        table.dim,
        Step<Row, RandomlyRoundedWeights<Stored>>{
            rule, rate, SlotsOf<Row>(args, row), weights, gradient});
  }
};

// The columns of StepInt8Row after the full vectors.
template <class Row>
struct StepLastCodes {
  const Step<Row, CodedWeights>& stepped;
  const RandomCodes& codes;
  float* weights;
  int32_t& largest;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const hn::Rebind<uint32_t, D> d32;
    const auto value = stepped.Stepped(d, column);
    hn::StoreU(value, d, weights + column);
    LargestOfLast{weights, largest}(d, column);
    codes.Round(d, value, RandomHalves(d32, codes.key, column), column);
  }
};

// Like StepAnyRow, for rows in kInt8 that are rounded at random, and without stages. Nearly
// all rows keep their scale. So each number gets its code of this scale at once, and a row
// that needs another scale is rounded again. When all numbers waited for the largest of them,
// an update took 2.5 times as long.
template <class Row>
struct StepInt8Row {
  const UpdateArgs& args;
  const typename Row::Rule& rule;

  TESSERA_ROW_INLINE void operator()(
      uint32_t row,
      int64_t step,
      const float* gradient) const {
    const hn::ScalableTag<float> d;
    const hn::Rebind<int32_t, decltype(d)> di;
    const hn::Rebind<uint32_t, decltype(d)> d32;
    const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
    const StoredRows& table = args.table;
    const int64_t dim = table.dim;
    float* HWY_RESTRICT weights = args.weights;
    int8_t* codes = FirstCode(table, row);
    const float scale = Int8Row::ScaleOf(codes);
    const uint64_t key = table.rounding.key + static_cast<uint64_t>(step);
    const RandomCodes random_codes{
        {weights, 1.0F / scale, codes},
        key_of_row(key, table.rounding.number_of(row))};
    const float rate = Row::Begin(args, rule, row, nullptr, gradient);
    const Step<Row, CodedWeights> stepped{
        rule, rate, SlotsOf<Row>(args, row), {codes, scale}, gradient};
    // The bits of the largest |weight|, as in LargestMagnitude().
    auto largest = hn::Zero(di);
    const auto keep = [&](hn::Vec<decltype(d)> value, int64_t column) HWY_ATTR {
      hn::StoreU(value, d, weights + column);
      largest = hn::Max(largest, hn::BitCast(di, hn::Abs(value)));
    };
    int64_t column = 0;
    for (; column + 2 * lanes <= dim; column += 2 * lanes) {
      const auto first = stepped.Stepped(d, column);
      const auto second = stepped.Stepped(d, column + lanes);
      keep(first, column);
      keep(second, column + lanes);
      const auto random = RandomHalvesOfTwo(d32, random_codes.key, column);
      random_codes.Round(d, first, random.first, column);
      random_codes.Round(d, second, random.second, column + lanes);
    }
    if (column + lanes <= dim) {
      const auto value = stepped.Stepped(d, column);
      keep(value, column);
      const auto random = RandomHalves(d32, random_codes.key, column);
      random_codes.Round(d, value, random, column);
      column += lanes;
    }
    int32_t last = 0;
    ForLastColumns(
        dim, column, StepLastCodes<Row>{stepped, random_codes, weights, last});
    largest = hn::Max(largest, hn::Set(di, last));
    const auto magnitude = hn::BitCast(d, largest);
    const float limit = scale * kLargestCode;
    const bool fits = hn::AllTrue(d, hn::Le(magnitude, hn::Set(d, limit))) &&
        !hn::AllTrue(d, hn::Lt(magnitude, hn::Set(d, limit * kSmallShare)));
    if (HWY_UNLIKELY(!fits || scale == 0.0F)) {
      NarrowInt8Row(table, row, step, weights);
    }
  }
};

HWY_NOINLINE void WidenSlots(const UpdateArgs& args, int64_t row) {
  for (size_t i = 0; i < kMaxSlots; ++i) {
    if (args.slots[i] != nullptr) {
      WidenRow(args.narrow_slots[i], row, args.slots[i]);
    }
  }
}

HWY_NOINLINE void NarrowSlots(
    const UpdateArgs& args,
    int64_t row,
    int64_t step) {
  for (size_t i = 0; i < kMaxSlots; ++i) {
    if (args.slots[i] != nullptr) {
      NarrowRow(args.narrow_slots[i], row, step, args.slots[i]);
    }
  }
}

// Updates a row, and converts its slots before and after that if they have 16 bits.
template <class Row, class StepRow>
struct StepWithSlots {
  const UpdateArgs& args;
  const StepRow& step_row;

  TESSERA_ROW_INLINE void operator()(
      uint32_t row,
      int64_t step,
      const float* gradient) const {
    const bool is_narrow = Row::kSlots > 0 && args.narrow_slots != nullptr;
    if (HWY_UNLIKELY(is_narrow)) {
      WidenSlots(args, row);
    }
    step_row(row, step, gradient);
    if (HWY_UNLIKELY(is_narrow)) {
      NarrowSlots(args, row, step);
    }
  }
};

// The bytes of a row of a slot with `dim` columns.
HWY_INLINE int64_t SlotBytes(const UpdateArgs& args) {
  return bytes_of_row(
      args.narrow_slots == nullptr ? Storage::kFloat32 : Storage::kBFloat16,
      args.table.dim);
}

// Prefetches the weights and slots of a row.
template <class Row, CacheLevel kLevel>
TESSERA_ROW_INLINE void PrefetchRow(const UpdateArgs& args, uint32_t row) {
  if constexpr (kHasOneSlotPerRow<Row>) {
    PrefetchLine<kLevel>(args.slots[0] + row);
  }
  const int64_t row_bytes = bytes_of_row(args.table.storage, args.table.dim);
  PrefetchLines<kLevel>(
      static_cast<const char*>(args.table.data) + row * row_bytes, row_bytes);
  if constexpr (!kHasOneSlotPerRow<Row>) {
    const int64_t slot_bytes = SlotBytes(args);
    for (size_t i = 0; i < Row::kSlots; ++i) {
      if (args.slots[i] != nullptr) {
        const void* slot = args.narrow_slots == nullptr
            ? args.slots[i]
            : args.narrow_slots[i].data;
        PrefetchLines<kLevel>(
            static_cast<const char*>(slot) + row * slot_bytes, slot_bytes);
      }
    }
  }
}

// Prefetches the row of a contribution, unless the previous contribution has it, too.
template <class Row, CacheLevel kLevel>
TESSERA_ROW_INLINE void PrefetchNewRow(const UpdateArgs& args, int64_t index) {
  if (index < args.count &&
      args.contributions[index].row != args.contributions[index - 1].row) {
    PrefetchRow<Row, kLevel>(args, args.contributions[index].row);
  }
}

// How many contributions ahead of their use rows and gradients are prefetched.
struct PrefetchDistances {
  int64_t row;
  int64_t gradient;
};

template <class Row>
HWY_INLINE PrefetchDistances DistancesOf(const UpdateArgs& args) {
  const int64_t floats = static_cast<int64_t>(sizeof(float));
  int64_t slots = 0;
  for (size_t i = 0; i < Row::kSlots && !kHasOneSlotPerRow<Row>; ++i) {
    slots += args.slots[i] != nullptr ? 1 : 0;
  }
  const int64_t dim = args.table.dim;
  const int64_t row_bytes =
      slots * SlotBytes(args) + bytes_of_row(args.table.storage, dim);
  return {
      update_prefetch_distance(row_bytes),
      prefetch_distance(row_bytes + dim * floats)};
}

// Prefetches the rows of contributions [begin, end).
template <class Row>
TESSERA_ROW_INLINE void PrefetchFirstRows(
    const UpdateArgs& args,
    int64_t begin,
    int64_t end) {
  for (int64_t i = begin; i < HWY_MIN(end, args.count); ++i) {
    PrefetchRow<Row, CacheLevel::kSecond>(args, args.contributions[i].row);
  }
}

// Prefetches what the contributions after `index` need.
template <class Row>
TESSERA_ROW_INLINE void PrefetchAhead(
    const UpdateArgs& args,
    const PrefetchDistances& distances,
    int64_t index) {
  const int64_t with_gradient = index + distances.gradient;
  if (with_gradient < args.count) {
    const uint32_t source = args.contributions[with_gradient].source;
    PrefetchLines(
        args.sources[source].gradient,
        args.table.dim * static_cast<int64_t>(sizeof(float)));
  }
  PrefetchNewRow<Row, CacheLevel::kSecond>(args, index + distances.row);
  PrefetchNewRow<Row, CacheLevel::kFirst>(args, index + kNearRows);
}

template <class StepRow>
TESSERA_ROW_INLINE void SweepRows(
    const UpdateArgs& args,
    const StepRow& step_row,
    uint32_t begin,
    uint32_t end) {
  for (uint32_t row = begin; row < end; ++row) {
    step_row(row, 0, args.zeros);
  }
}

// Sums the gradients of many rows before it updates them. The processor then predicts all
// branches, and works on several rows at the same time.
template <class Row, class StepRow>
TESSERA_ROW_INLINE void UpdateSummedRows(
    const UpdateArgs& args,
    const StepRow& step_row) {
  const int64_t distance = DistancesOf<Row>(args).row;
  const int64_t dim = args.table.dim;
  const SumScratch& sums = args.sums;
  for (int64_t begin = 0; begin < args.count;) {
    PrefetchFirstRows<Row>(args, begin, begin + distance);
    Summed summed{0, args.count};
    if (sums.places != nullptr) {
      summed.rows = SumScatteredRows(args);
    } else {
      summed = SumSomeRows(
          {.dim = dim,
           .contributions = args.contributions + begin,
           .count = args.count - begin,
           .sources = args.sources,
           .rows = sums.rows,
           .sums = sums.sums},
          sums.max_rows);
    }
    for (int64_t i = 0; i < summed.rows; ++i) {
      if (i + distance < summed.rows) {
        PrefetchRow<Row, CacheLevel::kSecond>(args, sums.rows[i + distance]);
      }
      if (i + kNearSummedRows < summed.rows) {
        PrefetchRow<Row, CacheLevel::kFirst>(
            args, sums.rows[i + kNearSummedRows]);
      }
      step_row(sums.rows[i], 0, sums.sums + i * dim);
    }
    for (int64_t i = 0; i < summed.rows && sums.places != nullptr; ++i) {
      sums.places[sums.number_of(sums.rows[i])] = 0;
    }
    begin += summed.contributions;
  }
}

template <class Row, class StepRow>
void UpdateRows(const UpdateArgs& args, const StepRow& step_columns) {
  const StepWithSlots<Row, StepRow> step_row{args, step_columns};
  if (args.sums.sums != nullptr) {
    UpdateSummedRows<Row>(args, step_row);
    return;
  }
  const PrefetchDistances distances = DistancesOf<Row>(args);
  PrefetchFirstRows<Row>(args, 0, distances.row);
  uint32_t next_row = args.first_row;
  int64_t step = 0;  // of this row, if each contribution is a step
  int64_t i = 0;
  while (i < args.count) {
    const uint32_t row = args.contributions[i].row;
    if (args.sweep) {
      SweepRows(args, step_row, next_row, row);
      next_row = row + 1;
    }
    PrefetchAhead<Row>(args, distances, i);
    const GradientSource& source = args.sources[args.contributions[i].source];
    ++i;
    const bool is_single =
        !args.accumulate || i == args.count || args.contributions[i].row != row;
    if (!args.accumulate) {
      step = i > 1 && args.contributions[i - 2].row == row ? step + 1 : 0;
    }
    if (is_single && source.factor == 1.0F) {
      step_row(row, step, source.gradient);
      continue;
    }
    const Contribution* begin = args.contributions + i - 1;
    for (; !is_single && i < args.count && args.contributions[i].row == row;
         ++i) {
      PrefetchAhead<Row>(args, distances, i);
    }
    SumGradients(
        args.table.dim,
        {args.sources, begin, args.contributions + i},
        args.gradient);
    step_row(row, step, args.gradient);
  }
  if (args.sweep) {
    SweepRows(args, step_row, next_row, args.end_row);
  }
}

template <class Row, class... Rows>
inline constexpr bool kIsAnyOf = (std::is_same_v<Row, Rows> || ...);

// Whether a rule updates 16-bit and 8-bit rows without a copy of the row, which saves a
// third of the time. The other rules are too rare to be worth the time that their loops take to compile.
// To compile all rules takes three times as long as to compile these four.
template <class Row>
inline constexpr bool kStepsWithoutCopy =
    kIsAnyOf<Row, SgdRow, AdagradRow, AdamRow, RowWiseAdagradRow>;

template <class Row>
void Update(const UpdateArgs& args, const void* rule) {
  const auto& typed = *static_cast<const typename Row::Rule*>(rule);
  if (args.stages.any()) {
    UpdateRows<Row>(args, StepAnyRow<Row, true>{args, typed});
    return;
  }
  if constexpr (kStepsWithoutCopy<Row>) {
    if (args.table.rounding.is_stochastic) {
      if (args.table.storage == Storage::kInt8) {
        UpdateRows<Row>(args, StepInt8Row<Row>{args, typed});
        return;
      }
      if (args.table.storage == Storage::kBFloat16) {
        UpdateRows<Row>(
            args, StepRandomlyRoundedRow<Row, BFloat16Row>{args, typed});
        return;
      }
      if (args.table.storage == Storage::kFloat16) {
        UpdateRows<Row>(
            args, StepRandomlyRoundedRow<Row, Float16Row>{args, typed});
        return;
      }
    }
  }
  UpdateRows<Row>(args, StepAnyRow<Row, false>{args, typed});
}

template <class... Rows>
void FillUpdates(RowList<Rows...>, KernelTable& table) {
  static_assert(
      std::is_same_v<RowRule, std::variant<typename Rows::Rule...>>,
      "list AllRows in the order of RowRule");
  table.update_by_rule = {Update<Rows>...};
}

void AssignRow(const StoredRows& table, int64_t row, const float* values) {
  if (table.storage == Storage::kFloat32) {
    ForColumns(table.dim, Copy{values, OpenRow(table, row, nullptr)});
  } else {
    CloseRow(table, row, 0, values);
  }
}

void AddUpdateKernels(KernelTable& table) {
  table.sum_rows = SumRows;
  table.assign_row = AssignRow;
  table.largest_magnitude = LargestMagnitude;
  FillUpdates(AllRows(), table);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();
