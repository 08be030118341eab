// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace tessera {

// snippet: tests/docs/reference_models_test.cpp ItemScorer
/// Scores all items for users, each of whom is given by a list of items.
///
///   // From the items of all users.
///   const auto scorer = make_ease(histories, {.num_items = 500});
///   const auto scores = scorer->scores(histories, 0.9);  // [batch, 500]
///   const Recommender recommender(
///       nullptr,
///       {.items = [&] { return RecommenderItems{.popularity = clicks}; },
///        .scores =
///            [&](const RaggedFeature& rows) {
///              return scorer->scores(rows, 0.9);
///            }});
///
/// Histories have ids of items in [0, num_items), oldest first.
/// Errors:  of all functions of this header, c10::ValueError, c10::TypeError or
///          c10::IndexError for wrong options, histories and ids.
class ItemScorer {
 public:
  virtual ~ItemScorer() = default;

  /// The scores of all items, [batch, num_items] float32. The last item of a history counts
  /// 1, and the one that stands k places before it recency^k. The recency is in (0, 1].
  virtual at::Tensor scores(const RaggedFeature& histories, double recency)
      const = 0;
};

/// The options of make_ease().
struct EaseOptions {
  int64_t num_items = 0;
  double regularization =
      100.0;  // > 0; choose it on held-out items, from 10 on
  double user_exponent = 0.0;  // >= 0; with 0, users with many items count most

  bool operator==(const EaseOptions&) const = default;
};

/// EASE, a linear model of all pairs of items, which has a closed form:
///
///   P      = (sum over users u of n_u^-user_exponent x_u x_u^T + regularization I)^-1
///   B_ij   = -P_ij / P_jj, and B_jj = 0
///   scores = x^T B
///
/// x says how much each item of a history counts. x_u says how often user u has each item,
/// and n_u is the number of u's items.
///
/// Memory:  8 num_items^2 bytes, and then half of it: 3.2 and 1.6 GB for 20,000 items.
/// Errors:  also c10::Error without this memory, and c10::ValueError for a matrix that
///          float32 can't invert.
/// Source:  Steck 2019, arXiv:1905.03375.
/// Differs: user_exponent is not in the paper. Numbers of users above 2^24 are not exact, and
///          the time grows with the square of the length of a history.
std::unique_ptr<ItemScorer> make_ease(
    const RaggedFeature& histories,
    const EaseOptions& options);

/// The options of make_graph_filter(). The defaults are those of ChebyCF for Gowalla. GF-CF
/// has the coefficients {0.5, -0.5}, 256 vectors, alpha 0.3, beta 0 and gamma 0.5.
struct GraphFilterOptions {
  int64_t num_items = 0;
  /// c_0, c_1, ...: two or more. The default is the plateau filter of degree 8 and flatness
  /// 1.5, as the program of ChebyCF computes it.
  std::vector<double> coefficients =
      {0.5, -0.492679, 0.0, -0.032332, 0.0, 0.021115, 0.0, -0.001107};
  int64_t num_vectors = 512;  // in [0, number of users and of items]
  double alpha = 0.2;
  double beta = 0.4;
  double gamma = 0.4;

  bool operator==(const GraphFilterOptions&) const = default;
};

/// A filter on the graph of users and items:
///
///   R      = D_u^-1/2 X D^-1/2, where X [users, items] says how often users have items
///   L      = I - 2 R^T R
///   T_0    = I, T_1 = L, T_k = 2 L T_(k-1) - T_(k-2)
///   scores = D^beta [sum over k of c_k T_k] D^-beta x + alpha D^gamma V V^T D^-gamma x
///
/// D_u and D are the sums of the rows and columns of X, and x says how much each item of a
/// history counts. V has the right singular vectors of R with the largest singular values,
/// by subspace iteration from a fixed seed. An item that no user has scores 0.
///
/// Memory:  of scores(), several times that of its result.
/// Source:  Shen et al. 2021, arXiv:2108.07567; Kim et al. 2025, arXiv:2505.00552.
std::unique_ptr<ItemScorer> make_graph_filter(
    const RaggedFeature& histories,
    const GraphFilterOptions& options);

}  // namespace tessera
