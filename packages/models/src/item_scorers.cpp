// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/item_scorers.h>

#include "packages/models/src/jagged_attention.h"
#include "packages/models/src/model_checks.h"
#include "src/common/available_memory.h"
#include "src/common/check.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

namespace tessera {

namespace {

// Checked histories.
struct Bags {
  at::Tensor ids;  // [nnz] int64
  at::Tensor splits;  // [batch + 1] int64
  at::Tensor lengths;  // [batch] int64
};

Bags bags_of(
    const RaggedFeature& histories,
    int64_t num_items,
    bool may_be_empty) {
  constexpr const char* kWhere = "ItemScorer";
  check_positive_option(kWhere, "num_items", num_items);
  at::Tensor ids = checked_history_ids(histories.values, num_items, kWhere);
  at::Tensor splits =
      checked_row_splits(histories.row_splits, ids.size(0), kWhere);
  TESSERA_CHECK_VALUE(
      may_be_empty || ids.size(0) > 0,
      "[ItemScorer] expected the items of users, but all {} histories are empty.",
      splits.size(0) - 1);
  return {.ids = ids, .splits = splits, .lengths = splits.diff()};
}

// How much each item of the histories counts, [nnz] float32.
at::Tensor weights_of(const Bags& bags, double recency) {
  TESSERA_CHECK_VALUE(
      recency > 0.0 && recency <= 1.0,
      "[ItemScorer] recency must be in (0, 1], but got {}. Set it to 1 if all items count the same.",
      recency);
  const at::Tensor ends =
      bags.splits.slice(0, 1).repeat_interleave(bags.lengths);
  const at::Tensor places = ends - 1 - at::arange(ends.size(0));
  return at::pow(recency, places.to(at::kFloat));
}

// The weighted sum of the rows of each bag.
at::Tensor sum_rows(
    const at::Tensor& rows,
    const Bags& bags,
    const std::optional<at::Tensor>& weights = {}) {
  const int64_t size = bags.lengths.size(0);
  if (size == 0 || rows.size(1) == 0) {  // LibTorch may refuse these
    return at::zeros({size, rows.size(1)}, rows.options());
  }
  return std::get<0>(at::_embedding_bag_forward_only(
      rows, bags.ids, bags.splits, false, /*mode=*/0, false, weights, true));
}

class Ease : public ItemScorer {
 public:
  Ease(const RaggedFeature& histories, const EaseOptions& options) {
    const Bags bags = bags_of(histories, options.num_items, false);
    TESSERA_CHECK_VALUE(
        options.regularization > 0.0 && options.user_exponent >= 0.0 &&
            std::isfinite(options.regularization + options.user_exponent),
        "[Ease] expected regularization > 0 and user_exponent >= 0, but got {} and {}. Choose them on held-out items.",
        options.regularization,
        options.user_exponent);
    const int64_t size = options.num_items;
    const double bytes = 8.0 * std::pow(static_cast<double>(size), 2);
    const std::optional<size_t> available = available_memory();
    TESSERA_CHECK(
        !available || bytes <= static_cast<double>(*available),
        "[Ease] {} items need {} bytes of memory, but only {} are available. Leave out rare items.",
        size,
        bytes,
        *available);
    at::Tensor matrix = at::zeros({size, size}, at::kFloat);
    auto* out = matrix.mutable_data_ptr<float>();
    const int64_t* id = bags.ids.const_data_ptr<int64_t>();
    const int64_t* split = bags.splits.const_data_ptr<int64_t>();
    for (int64_t user = 0; user < bags.lengths.size(0); ++user) {
      const auto length = static_cast<double>(split[user + 1] - split[user]);
      const double weight = std::pow(length, -options.user_exponent);
      for (int64_t i = split[user]; i < split[user + 1]; ++i) {
        for (int64_t j = split[user]; j < split[user + 1]; ++j) {
          out[id[i] * size + id[j]] += static_cast<float>(weight);
        }
      }
    }
    matrix.diagonal().add_(options.regularization);
    // Each matrix is released as soon as the next one is there.
    at::Tensor failed;
    std::tie(matrix, failed) = at::linalg_cholesky_ex(matrix);
    TESSERA_CHECK_VALUE(
        failed.item<int64_t>() == 0,
        "[Ease] float32 can't invert the matrix of items. Raise regularization, which is {}.",
        options.regularization);
    matrix = at::cholesky_inverse(matrix);
    matrix = matrix.is_contiguous() ? matrix : matrix.t();  // it is symmetric
    matrix.div_(matrix.diagonal().neg());
    matrix.diagonal().zero_();
    weights_ = matrix.contiguous();
  }

  at::Tensor scores(const RaggedFeature& histories, double recency)
      const override {
    const at::NoGradGuard no_grad;
    const Bags bags = bags_of(histories, weights_.size(0), true);
    return sum_rows(weights_, bags, weights_of(bags, recency));
  }

 private:
  at::Tensor weights_;  // B [num_items, num_items]
};

class GraphFilter : public ItemScorer {
 public:
  GraphFilter(const RaggedFeature& histories, const GraphFilterOptions& options)
      : options_(options),
        users_(bags_of(histories, options.num_items, false)) {
    const int64_t size = options.num_items;
    const int64_t most = std::min(size, users_.lengths.size(0));
    double numbers = options.alpha + options.beta + options.gamma;
    for (const double coefficient : options.coefficients) {
      numbers += coefficient;
    }
    TESSERA_CHECK_VALUE(
        options.coefficients.size() >= 2 && options.num_vectors >= 0 &&
            options.num_vectors <= most && std::isfinite(numbers),
        "[GraphFilter] expected two or more finite coefficients, num_vectors in [0, {}], the number of users or of items, and finite alpha, beta and gamma, but got {}, {}, {}, {} and {}. Choose them on held-out items.",
        most,
        options.coefficients.size(),
        options.num_vectors,
        options.alpha,
        options.beta,
        options.gamma);
    items_.lengths = users_.ids.bincount({}, size);
    items_.splits =
        at::cat({at::zeros({1}, at::kLong), items_.lengths.cumsum(0)});
    items_.ids = at::repeat_interleave(users_.lengths)
                     .index_select(0, users_.ids.argsort(true, 0, false));
    // On Gowalla, more of both do not change the quality.
    constexpr int64_t kExtraVectors = 64;
    constexpr int64_t kIterations = 8;
    const int64_t width = std::min(size, options.num_vectors + kExtraVectors);
    at::Tensor basis =
        at::randn({size, width}, at::detail::createCPUGenerator(0), at::kFloat);
    for (int64_t i = 0; i < kIterations; ++i) {
      basis = std::get<0>(at::linalg_qr(smooth(basis)));
    }
    // The best vectors within the span of the basis. The eigenvalues ascend.
    const auto [values, rotation] =
        at::linalg_eigh(at::matmul(basis.t(), smooth(basis)));
    vectors_ =
        at::matmul(basis, rotation.slice(1, width - options.num_vectors));
  }

  at::Tensor scores(const RaggedFeature& histories, double recency)
      const override {
    const at::NoGradGuard no_grad;
    const Bags bags = bags_of(histories, options_.num_items, true);
    at::Tensor x =
        at::zeros({options_.num_items, bags.lengths.size(0)}, at::kFloat);
    x.index_put_(
        {bags.ids, at::repeat_interleave(bags.lengths)},
        weights_of(bags, recency),
        /*accumulate=*/true);
    const auto times_l = [&](const at::Tensor& columns) {
      return smooth(columns).mul_(-2.0).add_(columns);
    };
    at::Tensor previous = x * powers(items_, -options_.beta);
    at::Tensor current = times_l(previous);
    const std::vector<double>& c = options_.coefficients;
    at::Tensor sum = previous * c[0] + current * c[1];
    for (size_t k = 2; k < c.size(); ++k) {
      at::Tensor next = times_l(current).mul_(2.0).sub_(previous);
      sum.add_(next, c[k]);
      previous = std::exchange(current, std::move(next));
    }
    x.mul_(powers(items_, -options_.gamma));
    const at::Tensor smoothest =
        at::matmul(vectors_, at::matmul(vectors_.t(), x));
    sum.mul_(powers(items_, options_.beta))
        .addcmul_(smoothest, powers(items_, options_.gamma), options_.alpha);
    return sum.t().contiguous();
  }

 private:
  // The degrees to a power, as a column. A degree of 0 gives 0.
  static at::Tensor powers(const Bags& bags, double exponent) {
    const at::Tensor degrees = bags.lengths.to(at::kFloat).unsqueeze(1);
    return at::where(degrees > 0.0, degrees.pow(exponent), 0.0);
  }

  // R^T R times the columns [num_items, columns].
  at::Tensor smooth(const at::Tensor& columns) const {
    const at::Tensor roots = powers(items_, -0.5);
    const at::Tensor users =
        sum_rows(columns * roots, users_).mul_(powers(users_, -1.0));
    return sum_rows(users, items_).mul_(roots);
  }

  GraphFilterOptions options_;
  Bags users_;  // the items of each user
  Bags items_;  // the users of each item
  at::Tensor vectors_;  // V [num_items, num_vectors]
};

}  // namespace

std::unique_ptr<ItemScorer> make_ease(
    const RaggedFeature& histories,
    const EaseOptions& options) {
  const at::NoGradGuard no_grad;
  return std::make_unique<Ease>(histories, options);
}

std::unique_ptr<ItemScorer> make_graph_filter(
    const RaggedFeature& histories,
    const GraphFilterOptions& options) {
  const at::NoGradGuard no_grad;
  return std::make_unique<GraphFilter>(histories, options);
}

}  // namespace tessera
