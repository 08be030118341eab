// SPDX-License-Identifier: Apache-2.0
#include "src/features/tensor_checks.h"

#include "src/common/check.h"

#include <c10/util/overloaded.h>

#include <variant>

namespace tessera {

const at::Tensor& values_of(const Feature& feature) {
  return std::visit(
      c10::overloaded(
          [](const at::Tensor& dense) -> const at::Tensor& { return dense; },
          [](const auto& parts) -> const at::Tensor& { return parts.values; }),
      feature);
}

void check_tensor(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part) {
  TESSERA_CHECK_TYPE(
      tensor.defined(),
      "{}{} must be a tensor, but is an undefined tensor. Pass an empty tensor if there are no values.",
      where_of(feature),
      part);
  TESSERA_CHECK_TYPE(
      tensor.device().is_cpu() && tensor.layout() == at::kStrided,
      "{}{} must be a dense tensor on the cpu, but got {} on {}. Convert it with .to_dense() or .cpu().",
      where_of(feature),
      part,
      tensor.layout(),
      tensor.device());
}

void check_integers(
    const FeatureState& feature,
    const at::Tensor& tensor,
    const char* part,
    std::optional<int64_t> rank) {
  check_tensor(feature, tensor, part);
  TESSERA_CHECK_TYPE(
      tensor.scalar_type() == at::kLong || tensor.scalar_type() == at::kInt,
      "{}{} must be int32 or int64, but got {}. Convert with .to(torch::kLong).",
      where_of(feature),
      part,
      c10::toString(tensor.scalar_type()));
  TESSERA_CHECK_VALUE(
      !rank || tensor.dim() == *rank,
      "{}{} must have rank {}, but got shape {}. Reshape it.",
      where_of(feature),
      part,
      *rank,
      tensor.sizes());
}

at::Tensor as_contiguous(const at::Tensor& tensor) {
  if (tensor.is_contiguous() && !tensor.is_neg()) {
    return tensor;  // Operators take 100 ns even if they do nothing.
  }
  return tensor.resolve_neg().contiguous();
}

at::Tensor as_int64(const at::Tensor& tensor) {
  return as_contiguous(
      tensor.scalar_type() == at::kLong ? tensor : tensor.to(at::kLong));
}

}  // namespace tessera
