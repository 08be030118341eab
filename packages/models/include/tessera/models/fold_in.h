// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>

#include <ATen/core/Tensor.h>

namespace tessera {

/// The options of a FoldIn.
struct FoldInOptions {
  /// The weight of the squared distance between a new vector and its prior. It must be > 0.
  /// Choose it on held-out examples.
  double regularization = 0.0;
  /// A number >= 0 that is added to `regularization` for each item of a history. A model
  /// whose weight decay acts on the rows of each batch is regularized like this.
  double regularization_per_item = 0.0;
  /// The confidence that the score of an item outside of the history is 0, >= 0. If 0, only
  /// the items of a history count, as with ratings. For clicks and other implicit feedback,
  /// choose a value below the confidence of a history's items.
  double catalogue_confidence = 0.0;

  bool operator==(const FoldInOptions&) const = default;
};

// snippet: tests/docs/reference_models_test.cpp FoldInOfRatings
/// Optional data of a batch for FoldIn::solve(). Tensors that are not given stay undefined.
///
///   // The rows [500, 1 + 16] of movies in MatrixFactorization begin with their biases.
///   const auto biases = movie_rows.select(1, 0) + mean;
///   auto factors = movie_rows.clone();
///   factors.select(1, 0).fill_(1.0);  // stands for the bias of the user
///   const FoldIn fold_in(
///       factors,
///       {.regularization = 0.1, .regularization_per_item = 0.05},
///       biases);
///   // The row of a new user, who gave 5, 3 and 4 stars.
///   const auto rows = fold_in.solve(
///       {.values = torch::tensor({7, 8, 9}), .row_splits = torch::tensor({0, 3})},
///       {.targets = torch::tensor({5.0, 3.0, 4.0})});
///   const auto stars = rows.matmul(factors.t()) + biases;  // [1, 500]
struct FoldInBatch {
  /// The score that each item of the histories should have, such as a rating. Undefined: 1.
  at::Tensor targets = {};  // [nnz] floats
  /// How much each item of the histories counts. Undefined: 1.
  at::Tensor confidences = {};  // [nnz] floats >= 0
  /// The vectors to which the regularization pulls, such as the mean of all vectors, or of
  /// those with the same content. Undefined: zeros. Without a catalogue_confidence, an empty
  /// history has its prior as the result.
  at::Tensor priors = {};  // [dim] or [batch, dim] floats
};

// snippet: tests/docs/reference_models_test.cpp FoldIn
/// Computes the vectors of users that a trained model has not seen, from their items. It
/// solves one least-squares problem for each user against the vectors of all items.
///
///   // The vectors of 500 trained items, and two new users: 7, 8, 9, and 3.
///   const FoldIn fold_in(
///       item_vectors, {.regularization = 1.0, .catalogue_confidence = 0.1});
///   const RaggedFeature histories{
///       .values = torch::tensor({7, 8, 9, 3}),
///       .row_splits = torch::tensor({0, 3, 4})};
///   const auto users = fold_in.solve(histories);  // [2, dim]
///
///   const auto index = make_exact_index(item_vectors);
///   const TopK found = index->search(users, 10, histories);
///
/// The vector u of a user with a history of n items minimizes
///
///     sum over i in history of  confidence_i (target_i - bias_i - u . v_i)²
///   + sum over all other items of  catalogue_confidence (bias_i + u . v_i)²
///   + (regularization + n regularization_per_item) |u - prior|²
///
/// An item that is in a history several times has as many terms in the first sum. The
/// products of all pairs of columns, V^T V, are computed once, so the cost of a user does
/// not grow with the number of items.
///
/// For a new item, exchange the sides: pass the vectors of the users, and its users as the
/// history. To solve for a bias, too, as in the rows of MatrixFactorization, put a column of
/// ones in place of the bias of each row, and pass these biases plus the mean as `biases`.
///
/// The sums and the Cholesky decomposition are computed in float64. There are no gradients.
///
/// Shapes:  vectors [items, dim], biases [items], histories ragged [batch]. The result is
///          [batch, dim] in the dtype of the vectors.
/// Errors:  c10::ValueError for options out of range, shapes, values that are not finite,
///          negative confidences, and equations that can't be solved because
///          `regularization` is too small; c10::TypeError for wrong dtypes; c10::IndexError
///          for ids out of range.
/// Source:  Hu, Koren, Volinsky 2008, equation 4, doi:10.1109/ICDM.2008.22.
class FoldIn {
 public:
  FoldIn(
      const at::Tensor& vectors,
      const FoldInOptions& options,
      const at::Tensor& biases = {});

  /// The vectors of users with these items, [batch, dim].
  at::Tensor solve(
      const RaggedFeature& histories,
      const FoldInBatch& batch = {}) const;

 private:
  struct Terms;  // what histories add to the equations

  Terms terms_of(const RaggedFeature& histories, const FoldInBatch& batch)
      const;
  void add_history(
      const Terms& terms,
      int64_t user,
      at::Tensor matrix,
      at::Tensor side) const;
  at::Tensor solve_block(const Terms& terms, int64_t begin, int64_t count)
      const;

  FoldInOptions options_;
  at::Tensor vectors_;  // [items, dim]
  at::Tensor biases_;  // [items] float64
  // The terms of the whole catalogue on both sides of the equations of each user.
  at::Tensor catalogue_matrix_;  // [dim, dim] float64
  at::Tensor catalogue_vector_;  // [dim] float64
};

}  // namespace tessera
