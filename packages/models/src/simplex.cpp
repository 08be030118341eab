// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/simplex.h>

#include <tessera/layers/input_checks.h>
#include <tessera/layers/layer_json.h>  // defines get_config()
#include "packages/models/src/jagged_attention.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/repeat_interleave.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

namespace tessera {

namespace {

void check_options(const SimpleXOptions& options) {
  const auto check_positive = [](const char* name, int64_t value) {
    TESSERA_CHECK_VALUE(
        value >= 1,
        "[SimpleX] {} must be >= 1, but got {}. Set it to a positive number.",
        name,
        value);
  };
  check_positive("num_users", options.num_users);
  check_positive("num_items", options.num_items);
  check_positive("dim", options.dim);
  // Also false for NaN.
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
      ids.defined() ? describe(ids) : "an undefined tensor");
  TESSERA_CHECK_TYPE(
      ids.scalar_type() == at::kLong || ids.scalar_type() == at::kInt,
      "[SimpleX] {} must be int32 or int64, but got {}. Convert them with to(torch::kLong).",
      name,
      describe(ids));
}

// Rows of length 1. A row of zeros stays, and gets no gradient.
at::Tensor normalized(const at::Tensor& rows) {
  constexpr double kSmallest = 1e-12;
  const at::Tensor norms =
      at::linalg_vector_norm(rows, 2, at::IntArrayRef{1}, /*keepdim=*/true);
  return at::where(
      norms > kSmallest,
      rows / norms.clamp_min(kSmallest),
      at::zeros_like(rows));
}

at::Tensor lengths_of(const at::Tensor& splits) {
  const int64_t batch = splits.size(0) - 1;
  return splits.narrow(0, 1, batch) - splits.narrow(0, 0, batch);
}

// How often each positive item is in its user's history, [positives, 1].
at::Tensor occurrences(
    const at::Tensor& history_splits,
    const at::Tensor& history,
    const at::Tensor& positive_splits,
    const at::Tensor& positives) {
  const auto* history_begin = history_splits.const_data_ptr<int64_t>();
  const auto* positive_begin = positive_splits.const_data_ptr<int64_t>();
  const auto* items = history.const_data_ptr<int64_t>();
  const auto* positive_items = positives.const_data_ptr<int64_t>();
  at::Tensor counts = at::empty({positives.size(0), 1}, at::kFloat);
  auto* out = counts.mutable_data_ptr<float>();
  for (int64_t user = 0; user + 1 < history_splits.size(0); ++user) {
    for (int64_t i = positive_begin[user]; i < positive_begin[user + 1]; ++i) {
      out[i] = static_cast<float>(std::count(
          items + history_begin[user],
          items + history_begin[user + 1],
          positive_items[i]));
    }
  }
  return counts;
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
         .combiner = Combiner::kSum,
         .initializer = initializers::Normal{.stddev = 0.01},
         .optimizer = options.optimizer});
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

at::Tensor SimpleXImpl::user_vectors(
    const at::Tensor& users,
    const at::Tensor& sums,
    const at::Tensor& counts) {
  const double share = options().user_share;
  // Sums of no items may have rounding errors.
  const at::Tensor means = sums * (counts > 0.0) / counts.clamp_min(1.0);
  return normalized(
      share * users + (1.0 - share) * projection_->forward(means));
}

at::Tensor SimpleXImpl::forward(
    const at::Tensor& users,
    const RaggedFeature& histories) {
  check_ids(users, "users");
  const at::Tensor splits =
      checked_splits(histories, "histories", users.size(0));
  const at::Tensor none = at::empty({0}, at::kLong);
  const auto found = tables->forward(
      {{"user", users},
       {"history", histories},
       {"positive", none},
       {"negative", none}});
  return user_vectors(
      found["user"],
      found["history"],
      lengths_of(splits).unsqueeze(1).to(found["history"].scalar_type()));
}

SampledScores SimpleXImpl::scores(
    const at::Tensor& users,
    const RaggedFeature& histories,
    const RaggedFeature& positives,
    const at::Tensor& negatives) {
  check_ids(users, "users");
  check_ids(negatives, "negatives");
  const int64_t batch = users.size(0);
  const at::Tensor splits = checked_splits(histories, "histories", batch);
  const at::Tensor positive_splits =
      checked_splits(positives, "positives", batch);
  const at::Tensor items = positives.values.to(at::kLong).contiguous();
  const auto found = tables->forward(
      {{"user", users},
       {"history", histories},
       {"positive", items},
       {"negative", negatives}});
  const at::Tensor owners = at::repeat_interleave(
      at::arange(batch, at::kLong), lengths_of(positive_splits));
  const at::Tensor rows = found["positive"];
  const at::Tensor own = occurrences(
      splits,
      histories.values.to(at::kLong).contiguous(),
      positive_splits,
      items);
  const at::Tensor counts =
      lengths_of(splits).to(at::kFloat).unsqueeze(1).index_select(0, owners);
  const at::Tensor vectors = user_vectors(
      found["user"].index_select(0, owners),
      found["history"].index_select(0, owners) - own * rows,
      counts - own);
  return {
      .positive = (vectors * normalized(rows)).sum(1),
      .negative = at::matmul(vectors, normalized(found["negative"]).t()),
      .positive_ids = items,
      .negative_ids = negatives};
}

at::Tensor SimpleXImpl::queries(
    const at::Tensor& users,
    const RaggedFeature& histories) {
  const at::NoGradGuard no_grad;
  return forward(users, histories);
}

at::Tensor SimpleXImpl::item_vectors() const {
  return normalized(tables->read_rows("items", 0, options().num_items));
}

}  // namespace tessera
