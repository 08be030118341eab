// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/feature.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include "src/common/check.h"

namespace tessera {

namespace {

void check_vector(
    const at::Tensor& tensor,
    const char* where,
    const char* what) {
  TESSERA_CHECK_TYPE(
      tensor.defined() &&
          (tensor.scalar_type() == at::kLong ||
           tensor.scalar_type() == at::kInt),
      "[{}] {} must be an int32 or int64 tensor, but got {}. Convert it with .to(torch::kLong).",
      where,
      what,
      tensor.defined() ? c10::toString(tensor.scalar_type()) : "no tensor");
  TESSERA_CHECK_VALUE(
      tensor.dim() == 1,
      "[{}] {} must have rank 1, but got shape {}. Reshape it.",
      where,
      what,
      tensor.sizes());
}

}  // namespace

SparseFeature SparseFeature::from_coo(const at::Tensor& coo) {
  TESSERA_CHECK_TYPE(
      coo.defined() && coo.layout() == at::kSparse,
      "[SparseFeature::from_coo] expected a tensor of sparse COO layout, but got {}. Pass ids as a dense tensor, or build the feature from its parts.",
      coo.defined() ? c10::str("layout ", coo.layout()) : "no tensor");
  // Unlike indices() and values(), these also work on a tensor that is not coalesced.
  // Coalescing it would add up the ids that have the same coordinates.
  return {
      .indices = coo._indices().t(),
      .values = coo._values(),
      .dense_shape = at::tensor(coo.sizes(), at::kLong)};
}

RaggedFeature RaggedFeature::from_lengths(
    at::Tensor values,
    const at::Tensor& lengths) {
  check_vector(lengths, "RaggedFeature::from_lengths", "lengths");
  TESSERA_CHECK_VALUE(
      lengths.numel() == 0 || lengths.min().item<int64_t>() >= 0,
      "[RaggedFeature::from_lengths] lengths must be >= 0, but the smallest is {}. Pass the number of ids in each bag.",
      lengths.min().item<int64_t>());
  const at::Tensor ends = lengths.to(at::kLong).cumsum(0);
  return {
      .values = std::move(values),
      .row_splits = at::cat({at::zeros({1}, at::kLong), ends})};
}

RaggedFeature RaggedFeature::from_offsets(
    at::Tensor values,
    const at::Tensor& offsets) {
  check_vector(offsets, "RaggedFeature::from_offsets", "offsets");
  TESSERA_CHECK_TYPE(
      values.defined(),
      "[RaggedFeature::from_offsets] values must be a tensor, but got no tensor. Pass an empty tensor if there are no ids.");
  const at::Tensor end = at::full({1}, values.numel(), at::kLong);
  TESSERA_CHECK_VALUE(
      offsets.numel() > 0 || values.numel() == 0,
      "[RaggedFeature::from_offsets] offsets must have the start of each bag, but is empty, and there are {} values. Pass [0] for one bag.",
      values.numel());
  return {
      .values = std::move(values),
      .row_splits = at::cat({offsets.to(at::kLong), end})};
}

}  // namespace tessera
