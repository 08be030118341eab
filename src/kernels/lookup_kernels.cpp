// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/lookup_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstring>

#include "src/kernels/kernels.h"
#include "src/kernels/prefetch.h"
#include "src/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

#include "src/kernels/columns-inl.h"
#include "src/kernels/prefetch-inl.h"
#include "src/kernels/storage-inl.h"

// The arguments of one call, with the element type of the table.
template <class RowType, Places kPlaces>
struct BagsOf {
  using Row = RowType;

  const CombineArgs& args;
  const typename Row::Element* table;
  // The positions of this call end here. Later rows are not prefetched, because another
  // thread may use them.
  int64_t end;
  // How many positions ahead of its use a row is prefetched.
  int64_t prefetch_distance;
  // The same for the second-level cache, or kNoPrefetch.
  int64_t far_prefetch_distance;

  // The first number of the row at a position.
  const typename Row::Element* RowOf(int64_t position) const {
    return RowOf(position, args.table.dim);
  }

  // The same if the compiler knows `dim`.
  HWY_INLINE const typename Row::Element* RowOf(int64_t position, int64_t dim)
      const {
    if constexpr (kPlaces == Places::kPointers) {
      return static_cast<const typename Row::Element*>(args.rows[position]) +
          Row::kHeader;
    } else {
      return table +
          static_cast<int64_t>(args.ids[position]) * (dim + Row::kHeader) +
          Row::kHeader;
    }
  }
};

// Prefetches the row of `dim` numbers that begin at `first`.
template <class Row, CacheLevel kLevel>
HWY_INLINE void PrefetchNumbers(
    const typename Row::Element* first,
    int64_t dim) {
  constexpr auto kElement = static_cast<int64_t>(sizeof(typename Row::Element));
  if constexpr (kHasScale<Row>) {
    PrefetchUnaligned<kLevel>(
        first - Row::kHeader, (dim + Row::kHeader) * kElement);
  } else {
    PrefetchLines<kLevel>(first, dim * kElement);
  }
}

template <CacheLevel kLevel = CacheLevel::kFirst, class Bags>
HWY_INLINE void PrefetchRow(const Bags& bags, int64_t position) {
  if (position < bags.end) {
    PrefetchNumbers<typename Bags::Row, kLevel>(
        bags.RowOf(position), bags.args.table.dim);
  }
}

// Prefetches a row that is exactly kVectors vectors wide, so the compiler knows the number
// of lines. With that, a lookup of rows of 512 bytes took 0.63 times as long on Zen 5.
template <
    int kVectors,
    CacheLevel kLevel = CacheLevel::kFirst,
    class Bags,
    class D>
HWY_INLINE void PrefetchRowOfVectors(D d, const Bags& bags, int64_t position) {
  if (position < bags.end) {
    PrefetchNumbers<typename Bags::Row, kLevel>(
        bags.RowOf(position), kVectors * static_cast<int64_t>(hn::Lanes(d)));
  }
}

// sum += weight * values, or sum += values.
template <bool kWeighted, class V>
HWY_INLINE V AddTerm(V weight, V values, V sum) {
  if constexpr (kWeighted) {
    return hn::MulAdd(weight, values, sum);
  } else {
    return hn::Add(values, sum);
  }
}

// Whether what Load() gives is multiplied before it is added.
template <bool kWeighted, class Bags>
inline constexpr bool kMultiplies = kWeighted || kHasScale<typename Bags::Row>;

// The weight of the id at a position, times the scale of its row, whose first number is at
// `first`.
template <bool kWeighted, class Bags, class D>
HWY_INLINE hn::Vec<D> WeightOf(
    D d,
    const Bags& bags,
    int64_t i,
    const typename Bags::Row::Element* first) {
  using Row = typename Bags::Row;
  if constexpr (kWeighted && kHasScale<Row>) {
    return hn::Set(d, bags.args.weights[i] * Row::ScaleOf(first));
  } else if constexpr (kHasScale<Row>) {
    return hn::Set(d, Row::ScaleOf(first));
  } else if constexpr (kWeighted) {
    return hn::Set(d, bags.args.weights[i]);
  } else {
    return hn::Zero(d);
  }
}

// The rows that the loop over columns [column, column + kVectors * lanes) prefetches: none,
// rows that have only these columns, or rows with more columns.
enum class Prefetched { kNothing, kRowsOfVectors, kWiderRows };

// Sums columns [column, column + kVectors * lanes) of one bag in registers.
template <
    int kVectors,
    Prefetched kPrefetched,
    bool kWeighted,
    class Bags,
    class D>
HWY_INLINE void SumColumns(
    D d,
    const Bags& bags,
    int64_t begin,
    int64_t end,
    int64_t column,
    float scale,
    float* HWY_RESTRICT out) {
  using Row = typename Bags::Row;
  using V = hn::Vec<D>;
  constexpr bool kTimes = kMultiplies<kWeighted, Bags>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  V sum4 = sum0, sum5 = sum0, sum6 = sum0, sum7 = sum0;
  V sum8 = sum0, sum9 = sum0, sum10 = sum0, sum11 = sum0;
  V sum12 = sum0, sum13 = sum0, sum14 = sum0, sum15 = sum0;
  for (int64_t i = begin; i < end; ++i) {
    if constexpr (kPrefetched == Prefetched::kRowsOfVectors) {
      PrefetchRowOfVectors<kVectors, CacheLevel::kSecond>(
          d, bags, i + bags.far_prefetch_distance);
      PrefetchRowOfVectors<kVectors>(d, bags, i + bags.prefetch_distance);
    } else if constexpr (kPrefetched == Prefetched::kWiderRows) {
      PrefetchRow<CacheLevel::kSecond>(bags, i + bags.far_prefetch_distance);
      PrefetchRow(bags, i + bags.prefetch_distance);
    }
    const auto* HWY_RESTRICT first = bags.RowOf(i);
    const auto* HWY_RESTRICT row = first + column;
    const V w = WeightOf<kWeighted>(d, bags, i, first);
    sum0 = AddTerm<kTimes>(w, Row::Load(d, row), sum0);
    if constexpr (kVectors >= 2) {
      sum1 = AddTerm<kTimes>(w, Row::Load(d, row + lanes), sum1);
    }
    if constexpr (kVectors >= 4) {
      sum2 = AddTerm<kTimes>(w, Row::Load(d, row + 2 * lanes), sum2);
      sum3 = AddTerm<kTimes>(w, Row::Load(d, row + 3 * lanes), sum3);
    }
    if constexpr (kVectors >= 8) {
      sum4 = AddTerm<kTimes>(w, Row::Load(d, row + 4 * lanes), sum4);
      sum5 = AddTerm<kTimes>(w, Row::Load(d, row + 5 * lanes), sum5);
      sum6 = AddTerm<kTimes>(w, Row::Load(d, row + 6 * lanes), sum6);
      sum7 = AddTerm<kTimes>(w, Row::Load(d, row + 7 * lanes), sum7);
    }
    if constexpr (kVectors >= 16) {
      sum8 = AddTerm<kTimes>(w, Row::Load(d, row + 8 * lanes), sum8);
      sum9 = AddTerm<kTimes>(w, Row::Load(d, row + 9 * lanes), sum9);
      sum10 = AddTerm<kTimes>(w, Row::Load(d, row + 10 * lanes), sum10);
      sum11 = AddTerm<kTimes>(w, Row::Load(d, row + 11 * lanes), sum11);
      sum12 = AddTerm<kTimes>(w, Row::Load(d, row + 12 * lanes), sum12);
      sum13 = AddTerm<kTimes>(w, Row::Load(d, row + 13 * lanes), sum13);
      sum14 = AddTerm<kTimes>(w, Row::Load(d, row + 14 * lanes), sum14);
      sum15 = AddTerm<kTimes>(w, Row::Load(d, row + 15 * lanes), sum15);
    }
  }
  const V factor = hn::Set(d, scale);
  hn::StoreU(hn::Mul(sum0, factor), d, out + column);
  if constexpr (kVectors >= 2) {
    hn::StoreU(hn::Mul(sum1, factor), d, out + column + lanes);
  }
  if constexpr (kVectors >= 4) {
    hn::StoreU(hn::Mul(sum2, factor), d, out + column + 2 * lanes);
    hn::StoreU(hn::Mul(sum3, factor), d, out + column + 3 * lanes);
  }
  if constexpr (kVectors >= 8) {
    hn::StoreU(hn::Mul(sum4, factor), d, out + column + 4 * lanes);
    hn::StoreU(hn::Mul(sum5, factor), d, out + column + 5 * lanes);
    hn::StoreU(hn::Mul(sum6, factor), d, out + column + 6 * lanes);
    hn::StoreU(hn::Mul(sum7, factor), d, out + column + 7 * lanes);
  }
  if constexpr (kVectors >= 16) {
    hn::StoreU(hn::Mul(sum8, factor), d, out + column + 8 * lanes);
    hn::StoreU(hn::Mul(sum9, factor), d, out + column + 9 * lanes);
    hn::StoreU(hn::Mul(sum10, factor), d, out + column + 10 * lanes);
    hn::StoreU(hn::Mul(sum11, factor), d, out + column + 11 * lanes);
    hn::StoreU(hn::Mul(sum12, factor), d, out + column + 12 * lanes);
    hn::StoreU(hn::Mul(sum13, factor), d, out + column + 13 * lanes);
    hn::StoreU(hn::Mul(sum14, factor), d, out + column + 14 * lanes);
    hn::StoreU(hn::Mul(sum15, factor), d, out + column + 15 * lanes);
  }
}

// Sums a bag of rows of one or two vectors. Four rows at a time have separate sums, which
// do not wait for each other. This is twice as fast as one row at a time.
template <int kVectors, bool kWeighted, class Bags, class D>
HWY_INLINE void SumNarrowRows(
    D d,
    const Bags& bags,
    int64_t begin,
    int64_t end,
    float scale,
    float* HWY_RESTRICT out) {
  using Row = typename Bags::Row;
  using V = hn::Vec<D>;
  constexpr bool kTimes = kMultiplies<kWeighted, Bags>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V low0 = hn::Zero(d), low1 = low0, low2 = low0, low3 = low0;
  V high0 = low0, high1 = low0, high2 = low0, high3 = low0;
  int64_t i = begin;
  for (; i + 4 <= end; i += 4) {
    for (int64_t j = 0; j < 4; ++j) {
      PrefetchRowOfVectors<kVectors>(d, bags, i + j + bags.prefetch_distance);
    }
    for (int64_t j = 0; j < 4; ++j) {
      PrefetchRowOfVectors<kVectors, CacheLevel::kSecond>(
          d, bags, i + j + bags.far_prefetch_distance);
    }
    const auto* HWY_RESTRICT row0 = bags.RowOf(i);
    const auto* HWY_RESTRICT row1 = bags.RowOf(i + 1);
    const auto* HWY_RESTRICT row2 = bags.RowOf(i + 2);
    const auto* HWY_RESTRICT row3 = bags.RowOf(i + 3);
    const V w0 = WeightOf<kWeighted>(d, bags, i, row0);
    const V w1 = WeightOf<kWeighted>(d, bags, i + 1, row1);
    const V w2 = WeightOf<kWeighted>(d, bags, i + 2, row2);
    const V w3 = WeightOf<kWeighted>(d, bags, i + 3, row3);
    low0 = AddTerm<kTimes>(w0, Row::Load(d, row0), low0);
    low1 = AddTerm<kTimes>(w1, Row::Load(d, row1), low1);
    low2 = AddTerm<kTimes>(w2, Row::Load(d, row2), low2);
    low3 = AddTerm<kTimes>(w3, Row::Load(d, row3), low3);
    if constexpr (kVectors == 2) {
      high0 = AddTerm<kTimes>(w0, Row::Load(d, row0 + lanes), high0);
      high1 = AddTerm<kTimes>(w1, Row::Load(d, row1 + lanes), high1);
      high2 = AddTerm<kTimes>(w2, Row::Load(d, row2 + lanes), high2);
      high3 = AddTerm<kTimes>(w3, Row::Load(d, row3 + lanes), high3);
    }
  }
  for (; i < end; ++i) {
    PrefetchRowOfVectors<kVectors>(d, bags, i + bags.prefetch_distance);
    const auto* HWY_RESTRICT row = bags.RowOf(i);
    const V w = WeightOf<kWeighted>(d, bags, i, row);
    low0 = AddTerm<kTimes>(w, Row::Load(d, row), low0);
    if constexpr (kVectors == 2) {
      high0 = AddTerm<kTimes>(w, Row::Load(d, row + lanes), high0);
    }
  }
  const V factor = hn::Set(d, scale);
  const V low = hn::Add(hn::Add(low0, low1), hn::Add(low2, low3));
  hn::StoreU(hn::Mul(low, factor), d, out);
  if constexpr (kVectors == 2) {
    const V high = hn::Add(hn::Add(high0, high1), hn::Add(high2, high3));
    hn::StoreU(hn::Mul(high, factor), d, out + lanes);
  }
}

// The sum of the first columns prefetches whole rows, so the later columns are in cache.
template <int kVectors, bool kWeighted, class Bags, class D>
HWY_INLINE void SumFirstOrLaterColumns(
    D d,
    const Bags& bags,
    int64_t begin,
    int64_t end,
    int64_t column,
    float scale,
    float* HWY_RESTRICT out) {
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (column > 0) {
    SumColumns<kVectors, Prefetched::kNothing, kWeighted>(
        d, bags, begin, end, column, scale, out);
  } else if (bags.args.table.dim > kVectors * lanes) {
    SumColumns<kVectors, Prefetched::kWiderRows, kWeighted>(
        d, bags, begin, end, column, scale, out);
  } else {
    SumColumns<kVectors, Prefetched::kRowsOfVectors, kWeighted>(
        d, bags, begin, end, column, scale, out);
  }
}

// Sums rows narrower than a vector. Two ranges of kLanes columns cover [0, dim). They may
// overlap, because both write the same numbers there.
template <int kLanes, bool kWeighted, class Bags>
HWY_INLINE void SumShortRows(
    const Bags& bags,
    int64_t begin,
    int64_t end,
    float scale,
    float* HWY_RESTRICT out) {
  const hn::CappedTag<float, kLanes> d;
  const int64_t last = bags.args.table.dim - kLanes;
  SumColumns<1, Prefetched::kWiderRows, kWeighted>(
      d, bags, begin, end, 0, scale, out);
  if (last > 0) {
    SumColumns<1, Prefetched::kNothing, kWeighted>(
        d, bags, begin, end, last, scale, out);
  }
}

template <bool kWeighted, class Bags>
HWY_INLINE void SumBag(
    const Bags& bags,
    int64_t begin,
    int64_t end,
    float scale,
    float* HWY_RESTRICT out) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t dim = bags.args.table.dim;
  if (dim < lanes) {
    if (dim >= 8) {
      SumShortRows<8, kWeighted>(bags, begin, end, scale, out);
    } else if (dim >= 4) {
      SumShortRows<4, kWeighted>(bags, begin, end, scale, out);
    } else if (dim >= 2) {
      SumShortRows<2, kWeighted>(bags, begin, end, scale, out);
    } else {
      SumShortRows<1, kWeighted>(bags, begin, end, scale, out);
    }
    return;
  }
  if (dim == lanes) {
    SumNarrowRows<1, kWeighted>(d, bags, begin, end, scale, out);
    return;
  }
  if (dim == 2 * lanes) {
    SumNarrowRows<2, kWeighted>(d, bags, begin, end, scale, out);
    return;
  }
  int64_t column = 0;
  for (; !kMultiplies<kWeighted, Bags> && column + 16 * lanes <= dim;
       column += 16 * lanes) {
    // Sixteen sums fill the registers of AVX2. Weights would need one more.
    SumFirstOrLaterColumns<16, kWeighted>(
        d, bags, begin, end, column, scale, out);
  }
  for (; column + 8 * lanes <= dim; column += 8 * lanes) {
    SumFirstOrLaterColumns<8, kWeighted>(
        d, bags, begin, end, column, scale, out);
  }
  if (column + 4 * lanes <= dim) {
    SumFirstOrLaterColumns<4, kWeighted>(
        d, bags, begin, end, column, scale, out);
    column += 4 * lanes;
  }
  if (column + 2 * lanes <= dim) {
    SumFirstOrLaterColumns<2, kWeighted>(
        d, bags, begin, end, column, scale, out);
    column += 2 * lanes;
  }
  if (column + lanes <= dim) {
    SumFirstOrLaterColumns<1, kWeighted>(
        d, bags, begin, end, column, scale, out);
    column += lanes;
  }
  if (column < dim) {
    // The last vector overlaps columns that are already done. A masked load might read
    // past the table.
    SumColumns<1, Prefetched::kNothing, kWeighted>(
        d, bags, begin, end, dim - lanes, scale, out);
  }
}

struct FillZero {
  float* values;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    hn::StoreU(hn::Zero(d), d, values + column);
  }
};

struct Scale {
  float factor;
  float* values;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const auto scaled =
        hn::Mul(hn::LoadU(d, values + column), hn::Set(d, factor));
    hn::StoreU(scaled, d, values + column);
  }
};

// sum += weight * row, with the row's values rounded to the buckets.
template <class Row>
struct AddRounded {
  const typename Row::Element* row;
  const Buckets& buckets;
  float weight;
  float* sum;

  template <class D>
  HWY_INLINE void operator()(D d, int64_t column) const {
    const auto lower = hn::Set(d, buckets.lower);
    const auto step = hn::Set(d, buckets.step);
    auto loaded = Row::Load(d, row + column);
    if constexpr (kHasScale<Row>) {
      loaded = hn::Mul(loaded, hn::Set(d, Row::ScaleOf(row)));
    }
    const auto value =
        hn::Min(hn::Max(loaded, lower), hn::Set(d, buckets.upper));
    const auto bucket = hn::Floor(
        hn::Add(hn::Div(hn::Sub(value, lower), step), hn::Set(d, 0.5F)));
    const auto rounded = hn::IfThenElse(
        hn::IsNaN(loaded), loaded, hn::MulAdd(bucket, step, lower));
    const auto term = hn::Mul(hn::Set(d, weight), rounded);
    hn::StoreU(hn::Add(hn::LoadU(d, sum + column), term), d, sum + column);
  }
};

template <class Bags>
HWY_NOINLINE void CombineRounded(const Bags& bags) {
  using Row = typename Bags::Row;
  const CombineArgs& args = bags.args;
  const int64_t dim = args.table.dim;
  for (int64_t bag = args.begin_bag; bag < args.end_bag; ++bag) {
    float* HWY_RESTRICT out = args.out + bag * dim;
    ForColumns(dim, FillZero{out});
    const int64_t begin = args.offsets == nullptr ? bag : args.offsets[bag];
    const int64_t end =
        args.offsets == nullptr ? bag + 1 : args.offsets[bag + 1];
    for (int64_t i = begin; i < end; ++i) {
      PrefetchRow<CacheLevel::kSecond>(bags, i + bags.far_prefetch_distance);
      PrefetchRow(bags, i + bags.prefetch_distance);
      const float weight = args.weights == nullptr ? 1.0F : args.weights[i];
      ForColumns(
          dim, AddRounded<Row>{bags.RowOf(i), args.buckets, weight, out});
    }
    if (args.scales != nullptr) {
      ForColumns(dim, Scale{args.scales[bag], out});
    }
  }
}

// Copies one row per bag. The compiler knows the number of vectors of a row. When this
// number was found for each bag, bags of one id took 1.3 times as long.
template <int kVectors, class Bags>
HWY_INLINE void CopyRows(const Bags& bags) {
  using Row = typename Bags::Row;
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  const CombineArgs& args = bags.args;
  const int64_t dim = kVectors * lanes;
  float* HWY_RESTRICT out = args.out + args.begin_bag * dim;
  for (int64_t i = args.begin_bag; i < args.end_bag; ++i) {
    if (bags.far_prefetch_distance != kNoPrefetch) {
      const int64_t late =
          HWY_MIN(i + bags.far_prefetch_distance, bags.end - 1);
      PrefetchNumbers<Row, CacheLevel::kSecond>(bags.RowOf(late, dim), dim);
    }
    const int64_t soon = HWY_MIN(i + bags.prefetch_distance, bags.end - 1);
    PrefetchNumbers<Row, CacheLevel::kFirst>(bags.RowOf(soon, dim), dim);
    const auto* HWY_RESTRICT row = bags.RowOf(i, dim);
    const auto scale = WeightOf<false>(d, bags, i, row);
    for (int64_t vector = 0; vector < kVectors; ++vector) {
      auto values = Row::Load(d, row + vector * lanes);
      if constexpr (kHasScale<Row>) {
        values = hn::Mul(values, scale);
      }
      hn::StoreU(values, d, out);
      out += lanes;
    }
  }
}

// Returns false, and does nothing, if the bags are not copies of rows of 1, 2, 4, 8 or
// 16 vectors.
template <class Bags>
HWY_INLINE bool CopyBags(const Bags& bags) {
  const CombineArgs& args = bags.args;
  if (args.offsets != nullptr || args.weights != nullptr ||
      args.scales != nullptr) {
    return false;
  }
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  if (args.table.dim == lanes) {
    CopyRows<1>(bags);
  } else if (args.table.dim == 2 * lanes) {
    CopyRows<2>(bags);
  } else if (args.table.dim == 4 * lanes) {
    CopyRows<4>(bags);
  } else if (args.table.dim == 8 * lanes) {
    CopyRows<8>(bags);
  } else if (args.table.dim == 16 * lanes) {
    CopyRows<16>(bags);
  } else {
    return false;
  }
  return true;
}

template <class Row, Places kPlaces>
void CombineRows(const CombineArgs& args) {
  const int64_t row_bytes = bytes_of_row(args.table.storage, args.table.dim);
  const auto first_of = [&args](int64_t bag) HWY_ATTR {
    return args.offsets == nullptr ? bag : args.offsets[bag];
  };
  const bool is_cached = kPlaces == Places::kTable && args.table.vocab > 0 &&
      args.table.vocab * row_bytes <= kCachedTableBytes;
  const BagsOf<Row, kPlaces> bags{
      args,
      static_cast<const typename Row::Element*>(args.table.data),
      first_of(args.end_bag),
      is_cached ? prefetch_distance(row_bytes)
                : near_prefetch_distance(row_bytes),
      is_cached ? kNoPrefetch : far_prefetch_distance(row_bytes)};
  const int64_t first = first_of(args.begin_bag);
  const int64_t ahead =
      is_cached ? bags.prefetch_distance : bags.far_prefetch_distance;
  for (int64_t i = first; i < HWY_MIN(first + ahead, bags.end); ++i) {
    if (is_cached) {
      PrefetchRow<CacheLevel::kFirst>(bags, i);
    } else {
      PrefetchRow<CacheLevel::kSecond>(bags, i);
    }
  }
  if (args.buckets.step > 0.0F) {
    CombineRounded(bags);
    return;
  }
  if (CopyBags(bags)) {
    return;
  }
  for (int64_t bag = args.begin_bag; bag < args.end_bag; ++bag) {
    const int64_t begin = args.offsets == nullptr ? bag : args.offsets[bag];
    const int64_t end =
        args.offsets == nullptr ? bag + 1 : args.offsets[bag + 1];
    const float scale = args.scales == nullptr ? 1.0F : args.scales[bag];
    float* HWY_RESTRICT out = args.out + bag * args.table.dim;
    if (args.weights == nullptr) {
      SumBag<false>(bags, begin, end, scale, out);
    } else {
      SumBag<true>(bags, begin, end, scale, out);
    }
  }
}

template <Places kPlaces>
void CombineRowsAt(const CombineArgs& args) {
  switch (args.table.storage) {
    case Storage::kFloat32:
      CombineRows<Float32Row, kPlaces>(args);
      break;
    case Storage::kBFloat16:
      CombineRows<BFloat16Row, kPlaces>(args);
      break;
    case Storage::kFloat16:
      CombineRows<Float16Row, kPlaces>(args);
      break;
    case Storage::kInt8:
      CombineRows<Int8Row, kPlaces>(args);
      break;
  }
}

void Combine(const CombineArgs& args) {
  if (args.rows != nullptr) {
    CombineRowsAt<Places::kPointers>(args);
  } else {
    CombineRowsAt<Places::kTable>(args);
  }
}

template <class Id>
bool NarrowIds(const Id* ids, int64_t n, int64_t vocab, uint32_t* out) {
  uint64_t any_invalid = 0;
  const uint64_t limit = static_cast<uint64_t>(vocab);
  for (int64_t i = 0; i < n; ++i) {
    // A negative id becomes a huge unsigned one.
    const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    any_invalid |= static_cast<uint64_t>(id >= limit);
    out[i] = static_cast<uint32_t>(id);
  }
  return any_invalid == 0;
}

// An id needs two reads, of its word and of the place with the row's address. Each is
// prefetched.
void Locate(const LocateArgs& args) {
  constexpr int64_t kChunkWords = LocateArgs::kChunkRows / OverlaidWord::kRows;
  constexpr int64_t kWordAhead = 64;
  constexpr int64_t kPlaceAhead = 32;
  const LocateArgs in = args;  // in registers, because out could point to args
  const void* const* places[kPlaceAhead] = {};
  const auto word_of = [&in](int64_t i) HWY_ATTR {
    const int64_t id = in.ids[i];
    return in.chunks[id / LocateArgs::kChunkRows] +
        id / OverlaidWord::kRows % kChunkWords;
  };
  for (int64_t i = -kWordAhead; i < in.nnz; ++i) {
    if (i + kWordAhead < in.nnz) {
      PrefetchLine<CacheLevel::kFirst>(word_of(i + kWordAhead));
    }
    const int64_t near = i + kPlaceAhead;
    const void* const*& place =
        places[static_cast<uint64_t>(near) % kPlaceAhead];
    if (i >= 0) {
      in.out[i] = *place;
    }
    if (near >= 0 && near < in.nnz) {
      const int64_t id = in.ids[near];
      in.out[near] = static_cast<const char*>(in.table) + id * in.row_bytes;
      const OverlaidWord& word = *word_of(near);
      const int64_t bit = id % OverlaidWord::kRows;
      const uint64_t before = word.replaced & ((uint64_t{1} << bit) - 1);
      // A choice from an array takes no branch. Replacements come at random.
      const void* const* choices[] = {
          in.out + near, word.rows + __builtin_popcountll(before)};
      place = choices[word.replaced >> bit & 1];
      PrefetchLine<CacheLevel::kFirst>(place);
    }
  }
}

void AddLookupKernels(KernelTable& table) {
  table.combine = Combine;
  table.locate = Locate;
  table.narrow_int32 = NarrowIds<int32_t>;
  table.narrow_int64 = NarrowIds<int64_t>;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();
