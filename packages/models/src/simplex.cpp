// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/simplex.h>

#include <tessera/layers/layer_json.h>  // defines get_config()
#include <tessera/models/linear_cross_entropy.h>
#include "packages/models/src/jagged_attention.h"
#include "packages/models/src/loss_inputs.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/zeros_like.h>

#include <utility>

namespace tessera {

namespace {

void check_options(const SimpleXOptions& options) {
  check_positive_option("SimpleX", "num_users", options.num_users);
  check_positive_option("SimpleX", "num_items", options.num_items);
  check_positive_option("SimpleX", "dim", options.dim);
  // These comparisons are also false for NaN.
  TESSERA_CHECK_VALUE(
      options.user_share >= 0.0 && options.user_share <= 1.0,
      "[SimpleX] user_share must be in [0, 1], but got {}. Set it to 1 to use no items of the user.",
      options.user_share);
}

void check_ids(const at::Tensor& ids, const char* name) {
  TESSERA_CHECK_VALUE(
      ids.defined() && ids.dim() == 1,
      "[SimpleX] {} must have one dimension, but got {}. Pass a list of ids.",
      name,
      describe(ids));
  check_integers(ids, name, "SimpleX");
}

// Returns as many bags, without items.
RaggedFeature empty_bags(const RaggedFeature& bags) {
  return {
      .values = bags.values.narrow(0, 0, 0),
      .row_splits = at::zeros_like(bags.row_splits)};
}

}  // namespace

SimpleXImpl::SimpleXImpl(SimpleXOptions options)
    : LayerImpl(std::move(options)) {
  check_options(this->options());
  reset();
}

void SimpleXImpl::reset() {
  const SimpleXOptions& options = this->options();
  const auto table = [&](const char* name, int64_t rows) {
    return make_table(
        {.name = name,
         .vocabulary_size = rows,
         .dim = options.dim,
         .combiner = Combiner::kMean,
         .initializer = initializers::Normal{.stddev = 0.01},
         .optimizer = options.optimizer,
         .dtype = options.dtype,
         .slot_dtype = options.slot_dtype});
  };
  const FeatureConfig item{.table = table("items", options.num_items)};
  tables = register_module(
      "tables",
      TPUEmbedding(TPUEmbeddingOptions{
          .features =
              {{"user",
                FeatureConfig{.table = table("users", options.num_users)}},
               {"history", item},
               {"positive", item},
               {"negative", item}},
          .strategy = options.strategy,
          .seed = options.seed}));
  projection_ = register_module(
      "projection",
      torch::nn::Linear(
          torch::nn::LinearOptions(options.dim, options.dim).bias(false)));
}

at::Tensor SimpleXImpl::checked_splits(
    const RaggedFeature& bags,
    const char* name,
    int64_t batch) const {
  check_ids(bags.values, name);
  const at::Tensor splits =
      checked_row_splits(bags.row_splits, bags.values.size(0), kClassName);
  TESSERA_CHECK_VALUE(
      splits.size(0) == batch + 1,
      "[SimpleX] {} must have one bag for each of the {} users, but got {} bags. Pass an empty bag for a user without items.",
      name,
      batch,
      splits.size(0) - 1);
  return splits;
}

SimpleXImpl::Vectors SimpleXImpl::vectors_of(
    const at::Tensor& users,
    const RaggedFeature& histories,
    const at::Tensor& positives,
    const at::Tensor& negatives) {
  check_ids(users, "users");
  checked_splits(histories, "histories", users.size(0));
  const double share = options().user_share;
  const auto found = tables->forward(
      {{"user", users},
       {"history", share < 1.0 ? histories : empty_bags(histories)},
       {"positive", positives},
       {"negative", negatives}});
  return {
      .users = unit_rows(
          share * found["user"] +
          (1.0 - share) * projection_->forward(found["history"])),
      .positives = unit_rows(found["positive"]),
      .negatives = unit_rows(found["negative"])};
}

SimpleXImpl::Vectors SimpleXImpl::vectors_of_examples(
    const at::Tensor& users,
    const RaggedFeature& histories,
    const RaggedFeature& positives,
    const at::Tensor& negatives) {
  check_ids(users, "users");
  check_ids(negatives, "negatives");
  const at::Tensor splits =
      checked_splits(positives, "positives", users.size(0));
  Vectors vectors = vectors_of(users, histories, positives.values, negatives);
  vectors.users = at::repeat_interleave(vectors.users, splits.diff(), 0);
  return vectors;
}

at::Tensor SimpleXImpl::forward(
    const at::Tensor& users,
    const RaggedFeature& histories) {
  const at::Tensor none = at::empty({0}, at::kLong);
  return vectors_of(users, histories, none, none).users;
}

SampledScores SimpleXImpl::scores(
    const at::Tensor& users,
    const RaggedFeature& histories,
    const RaggedFeature& positives,
    const at::Tensor& negatives) {
  const Vectors vectors =
      vectors_of_examples(users, histories, positives, negatives);
  return {
      .positive = (vectors.users * vectors.positives).sum(1),
      .negative = at::matmul(vectors.users, vectors.negatives.t()),
      .positive_ids = positives.values,
      .negative_ids = negatives};
}

at::Tensor SimpleXImpl::sampled_softmax_loss(
    const at::Tensor& users,
    const RaggedFeature& histories,
    const RaggedFeature& positives,
    const at::Tensor& negatives,
    double temperature) {
  check_temperature(temperature, "[SimpleX]");
  for (const auto& [name, ids] :
       {std::pair("positives", positives.values),
        std::pair("negatives", negatives)}) {
    TESSERA_CHECK_VALUE(
        !ids.defined() || ids.dim() != 1 || ids.size(0) >= 1,
        "[SimpleX] {} must have one item or more in all, but got none. Skip this batch.",
        name);
  }
  const Vectors vectors =
      vectors_of_examples(users, histories, positives, negatives);
  return sampled_linear_cross_entropy(
      vectors.users / temperature,
      vectors.positives,
      vectors.negatives,
      positives.values,
      negatives);
}

at::Tensor SimpleXImpl::queries(
    const at::Tensor& users,
    const RaggedFeature& histories) {
  const at::NoGradGuard no_grad;
  return forward(users, histories);
}

at::Tensor SimpleXImpl::item_vectors() const {
  return unit_rows(tables->read_rows("items", 0, options().num_items));
}

}  // namespace tessera
