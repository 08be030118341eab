// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"
#include "src/features/id_values.h"
#include "src/features/output_shapes.h"
#include "src/features/tensor_checks.h"

#include <utility>

namespace tessera {

namespace {

void check_parts(const FeatureState& feature, const SparseFeature& input) {
  check_integers(feature, input.values, "values", /*rank=*/1);
  check_integers(feature, input.indices, "indices");
  check_integers(feature, input.dense_shape, "dense_shape", /*rank=*/1);
  const int64_t rank = input.dense_shape.numel();
  const int64_t nnz = input.values.numel();
  TESSERA_CHECK_VALUE(
      rank >= 2,
      "{}a sparse feature must have rank 2 or above, but dense_shape has {} entries. Add a dimension: ids are combined over the last dimension.",
      where_of(feature),
      rank);
  TESSERA_CHECK_VALUE(
      input.indices.dim() == 2 && input.indices.size(0) == nnz &&
          input.indices.size(1) == rank,
      "{}indices must have shape [nnz, rank] = [{}, {}], but got {}. Pass one row of indices for each value.",
      where_of(feature),
      nnz,
      rank,
      input.indices.sizes());
}

void check_indices(
    const FeatureState& feature,
    const int64_t* indices,
    int64_t nnz,
    c10::IntArrayRef shape) {
  const auto rank = std::ssize(shape);
  int64_t cells = 1;
  for (int64_t axis = 0; axis < rank; ++axis) {
    TESSERA_CHECK_VALUE(
        shape[axis] >= 0 && !__builtin_mul_overflow(cells, shape[axis], &cells),
        "{}the entries of dense_shape must be >= 0, and their product must fit in 64 bits, but entry {} is {}. Correct the dense_shape.",
        where_of(feature),
        axis,
        shape[axis]);
  }
  for (int64_t i = 0; i < nnz; ++i) {
    for (int64_t axis = 0; axis < rank; ++axis) {
      const int64_t index = indices[i * rank + axis];
      TESSERA_CHECK_VALUE(
          index >= 0 && index < shape[axis],
          "{}indices must lie inside dense_shape, but indices[{}][{}] is {} and dense_shape[{}] is {}. Correct one of them.",
          where_of(feature),
          i,
          axis,
          index,
          axis,
          shape[axis]);
    }
  }
}

// `length` is the length of the sequences, or 0 without sequences. The axis after the
// leading ones is the position in a sequence.
BagIndices compute_bag_indices(
    const int64_t* indices,
    int64_t nnz,
    c10::IntArrayRef shape,
    int64_t leading_axes,
    int64_t length) {
  const auto rank = std::ssize(shape);
  BagIndices bag_indices(nnz);
  for (int64_t i = 0; i < nnz; ++i) {
    const int64_t* index = indices + i * rank;
    int64_t bag = 0;
    for (int64_t axis = 0; axis < leading_axes; ++axis) {
      bag = bag * shape[axis] + index[axis];
    }
    if (length > 0) {
      const int64_t position = index[leading_axes];
      bag = position < length ? bag * length + position : kNoBag;
    }
    bag_indices[i] = bag;
  }
  return bag_indices;
}

}  // namespace

IdBags read_sparse_bags(
    const FeatureState& feature,
    const SparseFeature& input,
    const at::Tensor& weights) {
  check_parts(feature, input);
  const at::Tensor dense_shape = as_int64(input.dense_shape);
  const c10::IntArrayRef shape(
      dense_shape.data_ptr<int64_t>(), dense_shape.numel());
  const at::Tensor indices = as_int64(input.indices);
  const int64_t nnz = input.values.numel();
  check_indices(feature, indices.data_ptr<int64_t>(), nnz, shape);
  IdBags bags =
      bags_without_ids(feature, output_shape_of_batch(feature, shape.vec()));
  bags.bags = count_bags(feature, bags.batch_shape);
  const int64_t length = feature.config.sequence_length();
  if (length > 0 && shape.size() == 2) {
    bags.combiner = Combiner::kSum;  // at most one id per position
  }
  const auto rank = std::ssize(bags.batch_shape);
  BagIndices bag_indices = compute_bag_indices(
      indices.data_ptr<int64_t>(),
      nnz,
      shape,
      length > 0 ? rank - 1 : rank,
      length);
  const std::vector<char> is_dropped =
      read_id_values(feature, input.values, weights, bag_indices, bags);
  sort_into_bags(is_dropped, std::move(bag_indices), bags);
  compute_scales(bags);
  return bags;
}

}  // namespace tessera
