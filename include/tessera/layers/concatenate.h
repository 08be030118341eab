// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <tessera/nest.h>
#include <torch/nn/cloneable.h>
#include <torch/nn/pimpl.h>

#include <iosfwd>

namespace tessera {

/// Joins a nest of activations into one matrix, for torch::nn::Sequential:
///
///   torch::nn::Sequential model(
///       TPUEmbedding(options), Concatenate(), torch::nn::Linear(64, 1));
///   model->forward(features);
///
/// Shapes:  leaves [batch, ...], flattened from dimension 1 and concatenated in
///          the order of the nest: [batch, sum of widths].
/// Errors:  c10::ValueError for an empty nest or different batch sizes.
class ConcatenateImpl : public torch::nn::Cloneable<ConcatenateImpl> {
 public:
  void reset() override {}
  at::Tensor forward(const Nest<at::Tensor>& activations);
  void pretty_print(std::ostream& stream) const override;
};

TORCH_MODULE(Concatenate);

}  // namespace tessera
