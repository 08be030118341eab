// SPDX-License-Identifier: Apache-2.0
#include "layers/feature_stack.h"

#include <tessera/common/shorten.h>

#include <tessera/layers/input_checks.h>
#include "layers/joined_inputs.h"
#include "src/common/check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <c10/util/StringUtil.h>

#include <cstdint>
#include <optional>
#include <utility>

namespace tessera {

namespace {

std::string begin_of_message(
    const std::string& class_name,
    const std::string& path) {
  return path.empty() ? c10::str("[", class_name, "] ")
                      : c10::str("[", class_name, " '", shorten(path), "'] ");
}

// Sets `known` to `size` if it is not known yet, and checks that both agree.
void merge_dims(
    std::optional<int64_t>& known,
    const std::optional<int64_t>& size,
    const std::string& class_name,
    const std::string& path) {
  TESSERA_CHECK_VALUE(
      !known || !size || *known == *size,
      "{}all features must have the same dim, but this one has {} and an earlier one {}. Project them to the same size.",
      begin_of_message(class_name, path),
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
        "{}expected a feature [batch, dim] or features [batch, n, dim], but got {}. Reshape it.",
        begin_of_message(class_name, path),
        to_string(shape));
    batch = is_first ? shape.front() : batch;
    is_first = false;
    TESSERA_CHECK_VALUE(
        merge_batch(batch, shape.front()),
        "{}all features must have the same batch size or one row, but this one has {} rows and an earlier one {}. Correct the batch.",
        begin_of_message(class_name, path),
        shape.front().value_or(0),
        batch.value_or(0));
    merge_dims(dim, shape.back(), class_name, path);
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
  std::vector<at::Tensor> leaves;
  std::vector<PartialShape> shapes;
  features.for_each([&](const std::string& path, const at::Tensor& leaf) {
    check_floating(leaf, c10::str("feature '", shorten(path), "'"), class_name);
    shapes.emplace_back(leaf.sizes().begin(), leaf.sizes().end());
    const bool is_frozen = leaf.is_inference() && at::GradMode::is_enabled();
    leaves.push_back(is_frozen ? leaf.clone() : leaf);
    TESSERA_CHECK_TYPE(
        leaf.scalar_type() == leaves[0].scalar_type(),
        "{}all features must have the same dtype, but this one has {} and the first one {}. Convert one of them with .to().",
        begin_of_message(class_name, path),
        leaf.scalar_type(),
        leaves[0].scalar_type());
  });
  shape_of_features(features.pack(std::move(shapes)), class_name);
  return leaves;
}

at::Tensor joined_features(at::TensorList leaves) {
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& leaf : with_equal_batches(leaves.vec())) {
    blocks.push_back(leaf.dim() == 2 ? leaf.unsqueeze(1) : leaf);
  }
  return blocks.size() == 1 ? blocks[0] : at::cat(blocks, 1);
}

}  // namespace tessera
