// SPDX-License-Identifier: Apache-2.0
// Loops over a row's columns. There is no include guard, because this file is included
// once per instruction set, inside the target namespace of the kernels.

template <int kLanes, class F>
HWY_INLINE void ForVectors(int64_t dim, int64_t& column, const F& f) {
  const hn::CappedTag<float, kLanes> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (; column + lanes <= dim; column += lanes) {
    f(d, column);
  }
}

// Calls f(tag, column) for the columns after the full vectors, with shorter vectors. Without
// AVX2, a masked load would read past the end of the table.
template <class F>
HWY_INLINE void ForLastColumns(int64_t dim, int64_t column, const F& f) {
  if (column == dim) {
    return;
  }
  ForVectors<4>(dim, column, f);
  ForVectors<1>(dim, column, f);
}

// Calls f(tag, column) for all columns of a row.
template <class F>
HWY_INLINE void ForColumns(int64_t dim, const F& f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + lanes <= dim; column += lanes) {
    f(d, column);
  }
  ForLastColumns(dim, column, f);
}

// Like ForColumns(), but calls f.two(tag, column) for the columns of two full vectors, as
// long as there are two.
template <class F>
HWY_INLINE void ForTwoVectors(int64_t dim, const F& f) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t column = 0;
  for (; column + 2 * lanes <= dim; column += 2 * lanes) {
    f.two(d, column);
  }
  if (column + lanes <= dim) {
    f(d, column);
    column += lanes;
  }
  ForLastColumns(dim, column, f);
}
