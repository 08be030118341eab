// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/concatenate.h>

#include <ATen/ops/cat.h>
#include <c10/util/Exception.h>

#include <ostream>
#include <vector>

namespace tessera {

at::Tensor ConcatenateImpl::forward(const Nest<at::Tensor>& activations) {
  std::vector<at::Tensor> columns;
  activations.for_each([&](const std::string& path, const at::Tensor& leaf) {
    TORCH_CHECK_VALUE(
        leaf.defined() && leaf.dim() >= 1,
        "[Concatenate '",
        path,
        "'] expected an activation with a batch dimension, but got ",
        leaf.defined() ? "a scalar" : "an undefined tensor",
        ".");
    columns.push_back(leaf.dim() == 1 ? leaf.unsqueeze(1) : leaf.flatten(1));
    TORCH_CHECK_VALUE(
        columns.back().size(0) == columns.front().size(0),
        "[Concatenate '",
        path,
        "'] all activations must have one batch size, but this one has ",
        columns.back().size(0),
        " and the first ",
        columns.front().size(0),
        ".");
  });
  TORCH_CHECK_VALUE(
      !columns.empty(), "[Concatenate] got no activations: an empty nest.");
  return at::cat(columns, 1);
}

void ConcatenateImpl::pretty_print(std::ostream& stream) const {
  stream << "tessera::Concatenate()";
}

}  // namespace tessera
