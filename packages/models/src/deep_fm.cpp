// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/deep_fm.h>

#include <tessera/layers/layer_json.h>  // defines get_config()

#include "layers/dense/joined_inputs.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"

#include <ATen/TensorOperators.h>

#include <utility>

namespace tessera {

namespace {

// The number of columns before the vector of a feature.
int64_t first_order_columns(const DeepFMOptions& options) {
  return options.use_first_order ? 1 : 0;
}

}  // namespace

DeepFMImpl::DeepFMImpl(DeepFMOptions options) : LayerImpl(std::move(options)) {
  check_hidden_units(this->options().hidden_units, kClassName);
  declare();
}

Nest<PartialShape> DeepFMImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const PartialShape shape = shape_of_features(input_shapes, kClassName);
  check_vectors(shape, options().use_first_order, kClassName);
  return PartialShape{shape[0], 1};
}

void DeepFMImpl::declare_parameters() {
  fm_ = register_module(
      "fm",
      FactorizationMachine(FactorizationMachineOptions{
          .use_first_order = options().use_first_order, .use_bias = false}));
  MLPOptions mlp_options{
      .units = options().hidden_units, .activation = options().activation};
  mlp_options.units.push_back(1);
  mlp_ = register_module("mlp", MLP(std::move(mlp_options)));
}

void DeepFMImpl::make_parameters(const Nest<PartialShape>& input_shapes) {
  const PartialShape shape = shape_of_features(input_shapes, kClassName);
  TESSERA_CHECK_VALUE(
      shape[1] && shape[2],
      "[DeepFM] needs the number of features and their dim to make its parameters, but got {}. Build the layer with these sizes, or let the first forward() build it.",
      to_string(shape));
  const int64_t dim = *shape[2] - first_order_columns(options());
  mlp_->build(PartialShape{std::nullopt, *shape[1] * dim});
}

at::Tensor DeepFMImpl::forward(const Nest<at::Tensor>& features) {
  const std::vector<at::Tensor> leaves = checked_features(features, kClassName);
  const at::Tensor rows = joined_features(leaves);
  check_vectors(rows.sizes().vec(), options().use_first_order, kClassName);
  build_on_first_call(features);
  const int64_t begin = first_order_columns(options());
  const int64_t dim = rows.size(2) - begin;
  const PartialShape built =
      shape_of_features(input_shapes().value(), kClassName);
  TESSERA_CHECK_VALUE(
      *built[1] == rows.size(1) && *built[2] == rows.size(2),
      "[DeepFM] was built for {} features in rows of width {}, but got {} in rows of width {}. Make another layer for other features.",
      *built[1],
      *built[2],
      rows.size(1),
      rows.size(2));

  // The MLP joins these views itself, which saves a copy.
  Nest<at::Tensor>::List vectors;
  for (const at::Tensor& leaf : leaves) {
    const at::Tensor own = leaf.narrow(-1, begin, dim);
    vectors.emplace_back(leaf.dim() == 2 ? own : own.flatten(1));
  }
  return fm_->forward(rows) +
      mlp_->forward(Nest<at::Tensor>::list(std::move(vectors)));
}

}  // namespace tessera
