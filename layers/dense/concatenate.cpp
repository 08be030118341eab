// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/concatenate.h>

#include <tessera/common/shorten.h>
#include <tessera/layers/layer_json.h>  // defines get_config()

#include <ATen/ops/cat.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "layers/dense/joined_inputs.h"
#include "src/common/check.h"

namespace tessera {

at::Tensor ConcatenateImpl::forward(const Nest<at::Tensor>& activations) {
  std::vector<at::Tensor> columns;
  std::optional<int64_t> batch = 1;
  for (const auto& [path, leaf] : activations) {
    TESSERA_CHECK_VALUE(
        leaf.defined() && leaf.dim() >= 1,
        "[Concatenate '{}'] expected an activation with a batch dimension, but got {}. Give it the shape [batch, ...].",
        shorten(path),
        leaf.defined() ? "a scalar" : "an undefined tensor");
    columns.push_back(leaf.dim() == 1 ? leaf.unsqueeze(1) : leaf.flatten(1));
    merge_batch(batch, leaf.size(0), path, kClassName);
  }
  TESSERA_CHECK_VALUE(
      !columns.empty(),
      "[Concatenate] expected one activation or more, but got an empty nest. Pass at least one.");
  return at::cat(with_equal_batches(std::move(columns)), 1);
}

Nest<PartialShape> ConcatenateImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  PartialShape output{1, 0};
  bool has_input = false;
  for (const auto& [path, shape] : input_shapes) {
    TESSERA_CHECK_VALUE(
        !shape.empty(),
        "[Concatenate '{}'] expected a shape with a batch dimension, but got []. Pass [batch, ...].",
        shorten(path));
    has_input = true;
    merge_batch(output[0], shape[0], path, kClassName);
    std::optional<int64_t> width = 1;
    for (size_t i = 1; i < shape.size(); ++i) {
      width =
          width && shape[i] ? std::optional(*width * *shape[i]) : std::nullopt;
    }
    output[1] =
        output[1] && width ? std::optional(*output[1] + *width) : std::nullopt;
  }
  TESSERA_CHECK_VALUE(
      has_input,
      "[Concatenate] expected one activation or more, but got an empty nest. Pass at least one.");
  return output;
}

}  // namespace tessera
