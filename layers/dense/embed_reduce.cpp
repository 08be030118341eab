// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/dense/embed_reduce.h>

#include "layers/initial_parameter.h"
#include "src/common/check.h"
#include "src/engine/operator_lookup.h"
#include "src/features/id_bags.h"
#include "src/tables/combiner_operators.h"
#include "src/tables/combiner_rule.h"

#include <tessera/engine/serving_lookup.h>
#include <tessera/layers/layer_json.h>  // defines get_config()

#include <ATen/TensorOperators.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/embedding_bag.h>
#include <ATen/ops/ones_like.h>

#include <utility>

namespace tessera {

namespace {

// The ids are checked here, because LibTorch's lookups give other error messages, or none.
void check_ids(const at::Tensor& ids, int64_t input_dim) {
  TESSERA_CHECK_VALUE(
      ids.defined(),
      "[EmbedReduce] expected a tensor of ids, but got an undefined tensor. Pass the ids of a batch.");
  TESSERA_CHECK_TYPE(
      ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt,
      "[EmbedReduce] ids must be int32 or int64, but got {}. Convert with .to(torch::kInt64).",
      ids.scalar_type());
  TESSERA_CHECK_VALUE(
      ids.dim() == 1 || ids.dim() == 2,
      "[EmbedReduce] ids must have the shape [batch] or [batch, n], but got {}. Flatten further dimensions into n.",
      ids.sizes());
  if (!ids.is_cpu()) {
    return;  // the device checks the ids; reading them here would stall it
  }
  const at::Tensor values = ids.to(at::kLong).contiguous();
  const auto* data = values.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < values.numel(); ++i) {
    TESSERA_CHECK_INDEX(
        data[i] >= 0 && data[i] < input_dim,
        "[EmbedReduce] ids must be in [0, {}), but the one at position {} is {}. Correct the batch, or raise input_dim.",
        input_dim,
        i,
        data[i]);
  }
}

void check_weights(const at::Tensor& ids, const at::Tensor& weights) {
  TESSERA_CHECK_VALUE(
      weights.defined(),
      "[EmbedReduce] weights: expected a tensor, but got an undefined tensor. Leave the weights out if all are 1.");
  TESSERA_CHECK_TYPE(
      weights.is_floating_point() && weights.layout() == at::kStrided,
      "[EmbedReduce] weights must be a dense floating-point tensor, but got {} {}. Convert with .to(torch::kFloat32).",
      weights.layout(),
      weights.scalar_type());
  TESSERA_CHECK_VALUE(
      weights.sizes() == ids.sizes(),
      "[EmbedReduce] weights must have the shape of the ids, {}, but got {}. Pass one weight per id, or leave the weights out if all are 1.",
      ids.sizes(),
      weights.sizes());
}

}  // namespace

EmbedReduceImpl::EmbedReduceImpl(EmbedReduceOptions options)
    : LayerImpl(std::move(options)) {
  const EmbedReduceOptions& checked = this->options();
  TESSERA_CHECK_VALUE(
      checked.input_dim >= 1 && checked.output_dim >= 1,
      "[EmbedReduce] input_dim and output_dim must be >= 1, but got {} and {}. Set them to the number of ids and the width of a row.",
      checked.input_dim,
      checked.output_dim);
  table_ = make_table(
      {.name = kClassName,
       .vocabulary_size = checked.input_dim,
       .dim = checked.output_dim,
       .combiner = checked.combiner,
       .initializer = checked.embeddings_initializer});
  EmbedReduceImpl::reset();
}

void EmbedReduceImpl::reset() {
  embeddings_ = register_parameter(
      "embeddings",
      initial_parameter(
          options().embeddings_initializer,
          kClassName,
          {options().input_dim, options().output_dim}));
}

Nest<PartialShape> EmbedReduceImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  TESSERA_CHECK_VALUE(
      input_shapes.is_leaf() &&
          (input_shapes.leaf().size() == 1 || input_shapes.leaf().size() == 2),
      "[EmbedReduce] expected one shape, [batch] or [batch, n], but got {}. Pass the shape of the ids.",
      input_shapes.is_leaf() ? to_string(input_shapes.leaf())
                             : std::string(input_shapes.kind()));
  return PartialShape{input_shapes.leaf()[0], options().output_dim};
}

at::Tensor EmbedReduceImpl::forward(
    const Feature& ids_given,
    const std::optional<Feature>& weights) {
  const Feature ids = with_sparse_as_feature(ids_given);
  if (const auto* dense = std::get_if<at::Tensor>(&ids)) {
    const auto* dense_weights =
        weights ? std::get_if<at::Tensor>(&*weights) : nullptr;
    TESSERA_CHECK_TYPE(
        !weights || dense_weights != nullptr,
        "[EmbedReduce] weights of dense ids must be a dense tensor, but got a sparse or ragged feature. Pass ids and weights in the same form.");
    check_ids(*dense, options().input_dim);
    if (dense_weights != nullptr) {
      check_weights(*dense, *dense_weights);
    }
    return lookup_dense(
        *dense, dense_weights != nullptr ? *dense_weights : at::Tensor());
  }
  const auto* sparse = std::get_if<SparseFeature>(&ids);
  TESSERA_CHECK_VALUE(
      sparse == nullptr || !sparse->dense_shape.defined() ||
          sparse->dense_shape.numel() == 2,
      "[EmbedReduce] sparse ids must have the shape [batch, n], but their dense_shape has {} entries. Use a TPUEmbedding for more dimensions.",
      sparse == nullptr ? 0 : sparse->dense_shape.numel());
  return serving_embedding_lookup(
             ids,
             weights ? Weights(weights) : Weights(),
             EmbeddingTables({{.config = table_, .parameters = embeddings_}}),
             FeatureConfig{
                 .table = table_,
                 .validate_weights_and_indices = false,
                 .name = kClassName})
      .leaf();
}

at::Tensor EmbedReduceImpl::lookup_dense(
    const at::Tensor& ids,
    const at::Tensor& weights) {
  const Combiner combiner = options().combiner;
  const at::Tensor weight =
      weights.defined() ? weights.to(embeddings_.options()) : at::Tensor();
  if (ids.dim() == 1) {
    const at::Tensor rows = at::embedding(embeddings_, ids);
    // With one id, the other combiners multiply by its weight and divide by it again.
    return weight.defined() && !is_divided(combiner)
        ? rows * weight.unsqueeze(1)
        : rows;
  }
  // Operators compute the lengths, so that an exported model takes any batch size.
  const at::Tensor lengths = at::ones_like(ids, at::kLong).sum(1);
  constexpr int64_t kSum = 0;  // embedding_bag()'s mode
  const at::Tensor sum = std::get<0>(at::embedding_bag(
      embeddings_,
      ids.to(at::kLong).flatten(),
      lengths.cumsum(0) - lengths,
      /*scale_grad_by_freq=*/false,
      kSum,
      /*sparse=*/false,
      weight.defined() ? std::optional(weight.flatten()) : std::nullopt));
  if (!is_divided(combiner)) {
    return sum;
  }
  at::Tensor total = lengths.to(embeddings_.options());
  if (weight.defined()) {
    total = combiner_term(combiner, weight).sum(1);
  }
  return divide_by_total(sum, total, combiner);
}

}  // namespace tessera
