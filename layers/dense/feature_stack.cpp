// SPDX-License-Identifier: Apache-2.0
#include "layers/dense/feature_stack.h"

#include "layers/dense/joined_inputs.h"
#include "src/common/check.h"

#include <ATen/ops/cat.h>

#include <cstdint>
#include <optional>

namespace tessera {

namespace {

// Sets `known` to `size` if it is not known yet, and checks that both agree.
void merge_dims(
    std::optional<int64_t>& known,
    const std::optional<int64_t>& size,
    const std::string& path,
    const std::string& class_name) {
  TESSERA_CHECK_VALUE(
      !known || !size || *known == *size,
      "[{}] all features must have the same dim, but this one has {} and an earlier one {}. Project them to the same size.",
      input_name(path, class_name),
      size.value_or(0),
      known.value_or(0));
  known = known ? known : size;
}

}  // namespace

PartialShape shape_of_features(
    const Nest<PartialShape>& input_shapes,
    const std::string& class_name) {
  bool is_first = true;
  std::optional<int64_t> batch;
  std::optional<int64_t> dim;
  std::optional<int64_t> count = 0;
  input_shapes.for_each([&](const std::string& path,
                            const PartialShape& shape) {
    TESSERA_CHECK_VALUE(
        shape.size() == 2 || shape.size() == 3,
        "[{}] expected a feature [batch, dim] or features [batch, n, dim], but got {}. Reshape it.",
        input_name(path, class_name),
        to_string(shape));
    batch = is_first ? shape.front() : batch;
    is_first = false;
    merge_batch(batch, shape.front(), path, class_name);
    merge_dims(dim, shape.back(), path, class_name);
    const std::optional<int64_t> own =
        shape.size() == 2 ? std::optional<int64_t>(1) : shape[1];
    count = count && own ? std::optional(*count + *own) : std::nullopt;
  });
  TESSERA_CHECK_VALUE(
      count != 0,
      "[{}] expected one feature or more, but got none. Pass at least one.",
      class_name);
  return {batch, count, dim};
}

std::vector<at::Tensor> checked_features(
    const Nest<at::Tensor>& features,
    const std::string& class_name) {
  return checked_inputs(
      features, class_name, shape_of_features, MixedDtypes::kRefused);
}

at::Tensor joined_features(at::TensorList leaves) {
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& leaf : with_equal_batches(leaves.vec())) {
    blocks.push_back(leaf.dim() == 2 ? leaf.unsqueeze(1) : leaf);
  }
  return blocks.size() == 1 ? blocks[0] : at::cat(blocks, 1);
}

}  // namespace tessera
