// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/din_attention.h>

#include <tessera/layers/layer_json.h>  // defines get_config()

#include <tessera/layers/input_checks.h>
#include "layers/initial_parameter.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/names.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/functional.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>
#include <torch/csrc/jit/frontend/tracer.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <variant>

namespace tessera {

namespace {

// The names are in the order of the enum.
constexpr const char* kDINActivations[] = {"dice", "prelu", "relu", "sigmoid"};

void check_inputs(
    const at::Tensor& query,
    const at::Tensor& keys,
    const at::Tensor& lengths) {
  check_floating(query, "query", DINAttentionImpl::kClassName);
  check_floating(keys, "keys", DINAttentionImpl::kClassName);
  TESSERA_CHECK_VALUE(
      query.dim() == 2 && query.size(1) >= 1 && keys.dim() == 3 &&
          (keys.size(0) == query.size(0) || keys.size(0) == 1) &&
          keys.size(2) == query.size(1),
      "[DINAttention] expected a query [batch, dim] and keys [batch, seq, dim] or [1, seq, dim], but got {} and {}. Give the candidate and the history the same table, and the history a max_sequence_length.",
      query.sizes(),
      keys.sizes());
  TESSERA_CHECK_TYPE(
      query.scalar_type() == keys.scalar_type(),
      "[DINAttention] query and keys must have the same dtype, but got {} and {}. Convert one of them with .to().",
      query.scalar_type(),
      keys.scalar_type());
  if (!lengths.defined()) {
    return;
  }
  check_integers(lengths, "lengths", DINAttentionImpl::kClassName);
  TESSERA_CHECK_VALUE(
      lengths.dim() == 1 && lengths.size(0) == keys.size(0),
      "[DINAttention] lengths must have the shape [batch], which is [{}] for these keys, but got {}. Pass one length per history.",
      keys.size(0),
      lengths.sizes());
  // A trace must not read values, and reading them from another device would wait for it.
  if (lengths.is_cpu() && lengths.numel() > 0 &&
      !torch::jit::tracer::isTracing()) {
    const auto smallest = lengths.min().item<int64_t>();
    TESSERA_CHECK_VALUE(
        smallest >= 0,
        "[DINAttention] lengths must be >= 0, but the smallest one is {}. Correct the batch.",
        smallest);
  }
}

// The first weight has the columns W_q, W_k, W_d, W_p for q, k, q - k and q * k. Because
// W_q q + W_d (q - k) = (W_q + W_d) q - W_d k, the product with q is the same for all
// positions of an example, and the product with k for all candidates of a history.
at::Tensor product_of_queries(
    const torch::nn::Linear& first,
    const at::Tensor& queries) {
  const int64_t dim = queries.size(1);
  const at::Tensor& weight = first->weight;
  return at::linear(
      queries,
      weight.narrow(1, 0, dim) + weight.narrow(1, 2 * dim, dim),
      first->bias);
}

at::Tensor weight_of_keys(const at::Tensor& weight, int64_t dim) {
  return weight.narrow(1, dim, dim) - weight.narrow(1, 2 * dim, dim);
}

// With softmax, this score gets the weight 0. Minus infinity would give NaN for a history
// of length 0.
double weight_of_padding(bool use_softmax, at::ScalarType dtype) {
  constexpr double kLowestHalf = -65504.0;
  return !use_softmax      ? 0.0
      : dtype == at::kHalf ? kLowestHalf
                           : double{std::numeric_limits<float>::lowest()};
}

at::Tensor without_padding(
    const at::Tensor& weights,
    const at::Tensor& is_key,
    bool use_softmax) {
  return is_key.defined()
      ? weights.masked_fill(
            is_key.logical_not(),
            weight_of_padding(use_softmax, weights.scalar_type()))
      : weights;
}

at::Tensor normalized(
    const at::Tensor& weights,
    const at::Tensor& is_key,
    bool use_softmax) {
  if (!use_softmax) {
    return weights;
  }
  const at::Tensor shares = at::softmax(weights, 1);
  // In a history of length 0, softmax gives weights to the padding.
  return is_key.defined() ? shares.masked_fill(is_key.logical_not(), 0.0)
                          : shares;
}

}  // namespace

std::string to_string(DINActivation activation) {
  return kDINActivations[static_cast<size_t>(activation)];
}

DINActivation din_activation_from_string(std::string_view name) {
  return value_named<DINActivation::kSigmoid>(
      name, kDINActivations, "an activation of DINAttention");
}

at::Tensor history_lengths(const Feature& feature) {
  const auto* ragged = std::get_if<RaggedFeature>(&feature);
  TESSERA_CHECK_TYPE(
      ragged != nullptr && ragged->row_splits.defined(),
      "[history_lengths] expected a ragged feature with row_splits, but got {}. Make one with RaggedFeature::from_lengths().",
      ragged != nullptr ? "one without row_splits"
                        : (std::holds_alternative<SparseFeature>(feature)
                               ? "a sparse feature"
                               : "a dense tensor"));
  return ragged->row_splits.diff();
}

DINAttentionImpl::DINAttentionImpl(DINAttentionOptions options)
    : LayerImpl(std::move(options)) {
  check_hidden_units(this->options().hidden_units, kClassName);
  declare();
}

Nest<PartialShape> DINAttentionImpl::compute_output_shape(
    const Nest<PartialShape>& input_shapes) const {
  const PartialShape& shape = check_rows(input_shapes, kClassName);
  TESSERA_CHECK_VALUE(
      shape.size() == 2,
      "[DINAttention] query must have the shape [batch, dim], but got {}. Pass one query per example.",
      to_string(shape));
  return shape;
}

void DINAttentionImpl::declare_parameters() {
  std::vector<torch::nn::Linear> layers;
  std::vector<Dice> dices;
  std::vector<torch::nn::PReLU> prelus;
  const size_t hidden = options().hidden_units.size();
  for (size_t i = 0; i <= hidden; ++i) {
    layers.push_back(
        register_module("linear_" + std::to_string(i), unsized_linear()));
    const std::string activation = "activation_" + std::to_string(i);
    if (i < hidden && options().activation == DINActivation::kDice) {
      dices.push_back(register_module(activation, Dice()));
    } else if (i < hidden && options().activation == DINActivation::kPRelu) {
      prelus.push_back(register_module(
          activation,
          torch::nn::PReLU(torch::nn::PReLUOptions().num_parameters(
              options().hidden_units[i]))));
    }
  }
  // In a copy of this layer, the members still hold the layers of the original.
  layers_ = std::move(layers);
  dices_ = std::move(dices);
  prelus_ = std::move(prelus);
}

void DINAttentionImpl::make_parameters(const Nest<PartialShape>& input_shapes) {
  const int64_t dim = known_dim(input_shapes.leaf(), kClassName);
  const std::vector<int64_t>& hidden = options().hidden_units;
  int64_t inputs = 4 * dim;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t outputs = i < hidden.size() ? hidden[i] : 1;
    detail::adopt_parameters(*layers_[i], *torch::nn::Linear(inputs, outputs));
    if (i < dices_.size()) {
      dices_[i]->build(PartialShape{std::nullopt, outputs});
    }
    inputs = outputs;
  }
}

at::Tensor DINAttentionImpl::activated(size_t layer, const at::Tensor& x) {
  switch (options().activation) {
    case DINActivation::kDice:
      return dices_[layer]->forward(x);
    case DINActivation::kPRelu:
      return prelus_[layer]->forward(x);
    case DINActivation::kRelu:
      return at::relu(x);
    case DINActivation::kSigmoid:
      return at::sigmoid(x);
  }
  return x;
}

at::Tensor DINAttentionImpl::scores(
    const at::Tensor& products,
    const at::Tensor& first) {
  const int64_t dim = products.size(1);
  at::Tensor x = at::addmm(
      first, products, layers_[0]->weight.narrow(1, 3 * dim, dim).t());
  for (size_t i = 1; i < layers_.size(); ++i) {
    x = layers_[i]->forward(activated(i - 1, x));
  }
  return x.squeeze(1);
}

at::Tensor DINAttentionImpl::forward(
    const at::Tensor& query,
    const at::Tensor& keys,
    const at::Tensor& lengths) {
  check_inputs(query, keys, lengths);
  build_on_first_call(query);
  const int64_t dim = query.size(1);
  const int64_t seq = keys.size(1);
  const at::Tensor& weight = layers_[0]->weight;
  check_fits(query, weight.t().narrow(0, 0, weight.size(1) / 4), kClassName);

  if (keys.size(0) == 1 && query.size(0) != 1) {
    return attend_to_one_history(query, keys[0], lengths);
  }
  const at::Tensor projected = product_of_queries(layers_[0], query);
  const at::Tensor is_key = lengths.defined()
      ? at::arange(seq, lengths.options()) < lengths.unsqueeze(1)
      : at::Tensor();  // [batch, seq]
  at::Tensor weights;  // [batch, seq]
  if (is_key.defined() && !torch::jit::tracer::isTracing()) {
    const at::Tensor position = is_key.flatten().nonzero().squeeze(1);
    const at::Tensor example =
        position.div(seq > 0 ? seq : 1, /*rounding_mode=*/"floor");
    const at::Tensor own_keys = keys.flatten(0, 1).index_select(0, position);
    const at::Tensor own = scores(
        query.index_select(0, example) * own_keys,
        at::addmm(
            projected.index_select(0, example),
            own_keys,
            weight_of_keys(weight, dim).t()));
    weights = at::full(
                  {is_key.numel()},
                  weight_of_padding(options().use_softmax, keys.scalar_type()),
                  own.options())
                  .index_copy(0, position, own)
                  .view_as(is_key);
  } else {
    weights =
        scores(
            (query.unsqueeze(1) * keys).flatten(0, 1),
            at::addmm(
                projected.unsqueeze(1).expand({-1, seq, -1}).flatten(0, 1),
                keys.flatten(0, 1),
                weight_of_keys(weight, dim).t()))
            .view_as(keys.select(2, 0));
    weights = without_padding(weights, is_key, options().use_softmax);
  }
  return at::bmm(
             normalized(weights, is_key, options().use_softmax).unsqueeze(1),
             keys)
      .squeeze(1);
}

// Takes query [batch, dim], history [seq, dim], and lengths [1] or undefined. The product
// of the first layer with the history is the same for all queries.
at::Tensor DINAttentionImpl::attend_to_one_history(
    const at::Tensor& query,
    const at::Tensor& history,
    const at::Tensor& lengths) {
  at::Tensor keys = history;
  at::Tensor is_key;  // [1, seq]
  if (lengths.defined() && torch::jit::tracer::isTracing()) {
    is_key = at::arange(keys.size(0), lengths.options()) < lengths.unsqueeze(1);
  } else if (lengths.defined()) {
    keys = keys.narrow(0, 0, std::min(lengths.item().toLong(), keys.size(0)));
  }
  const at::Tensor of_keys =
      at::linear(keys, weight_of_keys(layers_[0]->weight, keys.size(1)));
  const auto attend = [&](const at::Tensor& queries) {
    const at::Tensor products = queries.unsqueeze(1) * keys;
    const at::Tensor first =
        product_of_queries(layers_[0], queries).unsqueeze(1) + of_keys;
    const at::Tensor weights = without_padding(
        scores(products.flatten(0, 1), first.flatten(0, 1))
            .view_as(products.select(2, 0)),
        is_key,
        options().use_softmax);
    return at::matmul(normalized(weights, is_key, options().use_softmax), keys);
  };
  if (torch::jit::tracer::isTracing() || at::GradMode::is_enabled() ||
      is_training()) {
    return attend(query);
  }
  // The activations of a block of queries stay in the second-level cache.
  constexpr int64_t kNumbers = int64_t{1} << 16;
  const int64_t of_query = std::max<int64_t>(1, keys.size(0) * of_keys.size(1));
  const auto blocks = query.split(std::max<int64_t>(1, kNumbers / of_query));
  return at::cat(c10::fmap(blocks, attend));
}

}  // namespace tessera
