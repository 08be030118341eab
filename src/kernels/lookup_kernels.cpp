// SPDX-License-Identifier: Apache-2.0
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/kernels/lookup_kernels.cpp"
#include <hwy/foreach_target.h>
// Must come after foreach_target.h.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include "src/kernels/kernels.h"
#include "src/kernels/targets.h"

HWY_BEFORE_NAMESPACE();
namespace tessera::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Rows fetched ahead of their use: enough to cover a memory access, few enough
// to stay in the first-level cache.
constexpr int64_t kPrefetchAhead = 8;
constexpr int64_t kFloatsPerLine = 16;

HWY_INLINE void PrefetchRow(const CombineArgs& args, int64_t position) {
  if (position >= args.nnz) {
    return;
  }
  const float* row =
      args.table + static_cast<int64_t>(args.ids[position]) * args.dim;
  for (int64_t column = 0; column < args.dim; column += kFloatsPerLine) {
    hwy::Prefetch(row + column);
  }
}

// Sums columns [column, column + kVectors * lanes) of one bag in registers.
template <int kVectors, bool kPrefetch, class D>
HWY_INLINE void SumColumns(
    D d,
    const CombineArgs& args,
    int64_t begin,
    int64_t end,
    int64_t column,
    float scale,
    float* HWY_RESTRICT out) {
  using V = hn::Vec<D>;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  V sum0 = hn::Zero(d), sum1 = sum0, sum2 = sum0, sum3 = sum0;
  V sum4 = sum0, sum5 = sum0, sum6 = sum0, sum7 = sum0;
  for (int64_t i = begin; i < end; ++i) {
    if constexpr (kPrefetch) {
      PrefetchRow(args, i + kPrefetchAhead);
    }
    const float* HWY_RESTRICT row =
        args.table + static_cast<int64_t>(args.ids[i]) * args.dim + column;
    const V weight =
        hn::Set(d, args.weights == nullptr ? 1.0F : args.weights[i]);
    sum0 = hn::MulAdd(weight, hn::LoadU(d, row), sum0);
    if constexpr (kVectors >= 2) {
      sum1 = hn::MulAdd(weight, hn::LoadU(d, row + lanes), sum1);
    }
    if constexpr (kVectors >= 4) {
      sum2 = hn::MulAdd(weight, hn::LoadU(d, row + 2 * lanes), sum2);
      sum3 = hn::MulAdd(weight, hn::LoadU(d, row + 3 * lanes), sum3);
    }
    if constexpr (kVectors >= 8) {
      sum4 = hn::MulAdd(weight, hn::LoadU(d, row + 4 * lanes), sum4);
      sum5 = hn::MulAdd(weight, hn::LoadU(d, row + 5 * lanes), sum5);
      sum6 = hn::MulAdd(weight, hn::LoadU(d, row + 6 * lanes), sum6);
      sum7 = hn::MulAdd(weight, hn::LoadU(d, row + 7 * lanes), sum7);
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
}

// The first columns of a bag prefetch whole rows; the rest find them in cache.
template <int kVectors, class D>
HWY_INLINE void SumFirstOrLaterColumns(
    D d,
    const CombineArgs& args,
    int64_t begin,
    int64_t end,
    int64_t column,
    float scale,
    float* HWY_RESTRICT out) {
  if (column == 0) {
    SumColumns<kVectors, true>(d, args, begin, end, column, scale, out);
  } else {
    SumColumns<kVectors, false>(d, args, begin, end, column, scale, out);
  }
}

void Combine(const CombineArgs& args) {
  const hn::ScalableTag<float> d;
  const hn::CappedTag<float, 1> one;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t bag = args.begin_bag; bag < args.end_bag; ++bag) {
    const int64_t begin = args.offsets == nullptr ? bag : args.offsets[bag];
    const int64_t end =
        args.offsets == nullptr ? bag + 1 : args.offsets[bag + 1];
    const float scale = args.scales == nullptr ? 1.0F : args.scales[bag];
    float* HWY_RESTRICT out = args.out + bag * args.dim;
    int64_t column = 0;
    for (; column + 8 * lanes <= args.dim; column += 8 * lanes) {
      SumFirstOrLaterColumns<8>(d, args, begin, end, column, scale, out);
    }
    if (column + 4 * lanes <= args.dim) {
      SumFirstOrLaterColumns<4>(d, args, begin, end, column, scale, out);
      column += 4 * lanes;
    }
    if (column + 2 * lanes <= args.dim) {
      SumFirstOrLaterColumns<2>(d, args, begin, end, column, scale, out);
      column += 2 * lanes;
    }
    if (column + lanes <= args.dim) {
      SumFirstOrLaterColumns<1>(d, args, begin, end, column, scale, out);
      column += lanes;
    }
    // One lane at a time: a masked load may read past the end of the table.
    for (; column < args.dim; ++column) {
      SumFirstOrLaterColumns<1>(one, args, begin, end, column, scale, out);
    }
  }
}

template <class Id>
bool Narrow(const Id* ids, int64_t n, int64_t vocab, uint32_t* out) {
  uint64_t bad = 0;
  const uint64_t limit = static_cast<uint64_t>(vocab);
  for (int64_t i = 0; i < n; ++i) {
    // A negative id becomes a huge unsigned one.
    const uint64_t id = static_cast<uint64_t>(static_cast<int64_t>(ids[i]));
    bad |= static_cast<uint64_t>(id >= limit);
    out[i] = static_cast<uint32_t>(id);
  }
  return bad == 0;
}

bool NarrowInt32(const int32_t* ids, int64_t n, int64_t vocab, uint32_t* out) {
  return Narrow(ids, n, vocab, out);
}

bool NarrowInt64(const int64_t* ids, int64_t n, int64_t vocab, uint32_t* out) {
  return Narrow(ids, n, vocab, out);
}

void AddLookupKernels(KernelTable& table) {
  table.combine = Combine;
  table.narrow_int32 = NarrowInt32;
  table.narrow_int64 = NarrowInt64;
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera::kernels {

HWY_EXPORT(AddLookupKernels);

void add_lookup_kernels(KernelTable& table) {
  HWY_DYNAMIC_DISPATCH(AddLookupKernels)(table);
}

}  // namespace tessera::kernels
#endif
