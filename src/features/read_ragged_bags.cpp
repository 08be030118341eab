// SPDX-License-Identifier: Apache-2.0
#include "src/common/check.h"
#include "src/features/id_rule.h"
#include "src/features/id_values.h"
#include "src/features/output_shapes.h"
#include "src/features/tensor_checks.h"

#include <utility>

namespace tessera {

namespace {

void check_row_splits(
    const FeatureState& feature,
    const int64_t* splits,
    int64_t rows,
    int64_t nnz) {
  TESSERA_CHECK_VALUE(
      rows >= 0,
      "{}row_splits must have one entry more than the batch has rows, but is empty. For a batch of zero rows, pass the row_splits [0].",
      where_of(feature));
  TESSERA_CHECK_VALUE(
      splits[0] == 0,
      "{}row_splits must begin with 0, but begins with {}. Correct the row_splits.",
      where_of(feature),
      splits[0]);
  for (int64_t row = 0; row < rows; ++row) {
    TESSERA_CHECK_VALUE(
        splits[row] <= splits[row + 1],
        "{}row_splits must not decrease, but entry {} is {}, and the entry before it is {}. Correct the row_splits.",
        where_of(feature),
        row + 1,
        splits[row + 1],
        splits[row]);
  }
  TESSERA_CHECK_VALUE(
      splits[rows] == nnz,
      "{}row_splits must end with the number of values, {}, but ends with {}. Correct the row_splits.",
      where_of(feature),
      nnz,
      splits[rows]);
}

// The bag of each value. Each row is a bag, or with a `length` each position in a row.
BagIndices compute_bag_indices(
    const int64_t* splits,
    int64_t rows,
    int64_t length) {
  BagIndices bag_indices(splits[rows]);
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = splits[row]; i < splits[row + 1]; ++i) {
      const int64_t position = i - splits[row];
      bag_indices[i] = length == 0 ? row
          : position < length      ? row * length + position
                                   : kNoBag;
    }
  }
  return bag_indices;
}

}  // namespace

IdBags read_ragged_bags(
    const FeatureState& feature,
    const RaggedFeature& input,
    const at::Tensor& weights) {
  check_integers(feature, input.values, "values", /*rank=*/1);
  check_integers(feature, input.row_splits, "row_splits", /*rank=*/1);
  const at::Tensor row_splits = as_int64(input.row_splits);
  const int64_t* splits = row_splits.data_ptr<int64_t>();
  const int64_t rows = row_splits.numel() - 1;
  check_row_splits(feature, splits, rows, input.values.numel());
  RaggedRows shape = ragged_rows_of_batch(feature, rows);
  const int64_t length = shape.sequence_length;
  TESSERA_CHECK_VALUE(
      length == 0 || !weights.defined(),
      "{}weights are given, but output_shape {} makes each of the {} rows a sequence, and the ids of a sequence are not combined. Leave the weights out.",
      where_of(feature),
      c10::IntArrayRef(shape.output_shape),
      rows);
  IdBags bags = bags_without_ids(feature, std::move(shape.output_shape));
  bags.ragged_rows = shape.fixed_rows;
  bags.bags = rows;
  BagIndices bag_indices;
  if (length > 0) {
    bags.bags = count_bags(feature, bags.batch_shape);
    bags.combiner = Combiner::kSum;  // at most one id per position
    bag_indices = compute_bag_indices(splits, rows, length);
  }
  const std::vector<char> is_dropped =
      read_id_values(feature, input.values, weights, bag_indices, bags);
  if (length > 0 || !is_dropped.empty()) {
    sort_into_bags(
        is_dropped,
        length > 0 ? std::move(bag_indices)
                   : compute_bag_indices(splits, rows, /*length=*/0),
        bags);
  } else if (weights.defined() || !has_one_id_per_row(splits, rows)) {
    bags.offsets.assign(splits, splits + rows + 1);  // no value moves
  }
  compute_scales(bags);
  return bags;
}

}  // namespace tessera
