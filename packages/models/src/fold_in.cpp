// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/fold_in.h>

#include "packages/models/src/jagged_attention.h"
#include "packages/models/src/loss_inputs.h"
#include "packages/models/src/model_checks.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cholesky_solve.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_cholesky_ex.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>

namespace tessera {

namespace {

// The most float64 numbers in a block of rows [items, dim] or matrices [users, dim, dim].
constexpr int64_t kBlock = 1 << 22;

void check_option(const char* name, double value, bool may_be_zero) {
  TESSERA_CHECK_VALUE(
      std::isfinite(value) && (may_be_zero ? value >= 0.0 : value > 0.0),
      "[FoldIn] {} must be {} 0 and finite, but got {}. {}",
      name,
      may_be_zero ? ">=" : ">",
      value,
      may_be_zero ? "Leave it out to get 0."
                  : "Choose it on held-out examples, such as 1.");
}

void check_dense_floats(const at::Tensor& tensor, const char* name) {
  check_loss_floats(tensor, name, "[FoldIn]");
  TESSERA_CHECK_VALUE(
      tensor.device().is_cpu() && tensor.layout() == at::kStrided,
      "[FoldIn] {} must be dense and on the CPU, but got {}. Convert them with to_dense() and to(torch::kCPU).",
      name,
      describe(tensor));
}

// Returns the tensor as contiguous float64.
at::Tensor finite_doubles(const at::Tensor& tensor, const char* name) {
  at::Tensor result = tensor.detach().to(at::kDouble).contiguous();
  TESSERA_CHECK_VALUE(
      at::isfinite(result).all().item<bool>(),
      "[FoldIn] {} must be finite, but got {} numbers that are not. Check how they were computed.",
      name,
      at::isfinite(result).logical_not().sum().item<int64_t>());
  return result;
}

at::Tensor checked_floats(const at::Tensor& tensor, const char* name) {
  check_dense_floats(tensor, name);
  return finite_doubles(tensor, name);
}

// Returns one number for each of `size` entries; `value` stands for an undefined tensor.
at::Tensor checked_list(
    const at::Tensor& tensor,
    const char* name,
    const char* shape,
    int64_t size,
    double value) {
  if (!tensor.defined()) {
    return at::full({size}, value, at::kDouble);
  }
  TESSERA_CHECK_VALUE(
      tensor.dim() == 1 && tensor.size(0) == size,
      "[FoldIn] {} must have shape [{}], [{}], but got {}. Pass one number for each.",
      name,
      shape,
      size,
      describe(tensor));
  return checked_floats(tensor, name);
}

at::Tensor checked_priors(
    const at::Tensor& priors,
    int64_t batch,
    int64_t dim) {
  if (!priors.defined()) {
    return at::zeros({batch, dim}, at::kDouble);
  }
  const bool is_one = priors.dim() == 1 && priors.size(0) == dim;
  TESSERA_CHECK_VALUE(
      is_one ||
          (priors.dim() == 2 && priors.size(0) == batch &&
           priors.size(1) == dim),
      "[FoldIn] priors must have shape [dim] or [batch, dim], [{}] or [{}, {}], but got {}. Pass one vector for all, or one for each history.",
      dim,
      batch,
      dim,
      describe(priors));
  return checked_floats(priors, "priors").expand({batch, dim}).contiguous();
}

// Solves `matrix x = side` for each user: matrices [users, dim, dim], sides [users, dim].
at::Tensor solution_of(
    const at::Tensor& matrices,
    const at::Tensor& sides,
    at::ScalarType dtype,
    double regularization) {
  const auto [factors, failed] = at::linalg_cholesky_ex(matrices);
  at::Tensor solution =
      at::cholesky_solve(sides.unsqueeze(2), factors).squeeze(2).to(dtype);
  // The numbers may be too large for the dtype.
  const at::Tensor is_solved =
      failed.eq(0).logical_and(at::isfinite(solution).all(1));
  TESSERA_CHECK_VALUE(
      is_solved.all().item<bool>(),
      "[FoldIn] the equations of {} histories can't be solved in {}. Raise regularization, which is {}, or scale the vectors down.",
      is_solved.logical_not().sum().item<int64_t>(),
      dtype,
      regularization);
  return solution;
}

}  // namespace

FoldIn::FoldIn(
    const at::Tensor& vectors,
    const FoldInOptions& options,
    const at::Tensor& biases)
    : options_(options) {
  const at::NoGradGuard no_grad;
  check_option("regularization", options.regularization, false);
  check_option(
      "regularization_per_item", options.regularization_per_item, true);
  check_option("catalogue_confidence", options.catalogue_confidence, true);
  TESSERA_CHECK_VALUE(
      vectors.defined() && vectors.dim() == 2 && vectors.size(1) >= 1,
      "[FoldIn] vectors must have shape [items, dim] with one column or more, but got {}. Pass one row for each item.",
      describe(vectors));
  check_dense_floats(vectors, "vectors");
  const int64_t items = vectors.size(0);
  const int64_t dim = vectors.size(1);
  biases_ = checked_list(biases, "biases", "items", items, 0.0);
  // A copy, because the products below are of these rows, and the caller may change them.
  vectors_ = vectors.detach().clone(at::MemoryFormat::Contiguous);
  catalogue_matrix_ = at::zeros({dim, dim}, at::kDouble);
  catalogue_vector_ = at::zeros({dim}, at::kDouble);
  const double confidence = options.catalogue_confidence;
  const int64_t step = std::max<int64_t>(1, kBlock / dim);
  for (int64_t begin = 0; begin < items; begin += step) {
    const int64_t count = std::min(step, items - begin);
    const at::Tensor rows =
        finite_doubles(vectors_.narrow(0, begin, count), "vectors");
    if (confidence > 0.0) {
      catalogue_matrix_.addmm_(rows.t(), rows, 1.0, confidence);
      catalogue_vector_.addmv_(
          rows.t(), biases_.narrow(0, begin, count), 1.0, -confidence);
    }
  }
}

struct FoldIn::Terms {
  at::Tensor ids = {};  // [nnz] int64
  at::Tensor row_splits = {};  // [users + 1] int64
  // The weights of an item's products on both sides of the equations.
  at::Tensor left = {};  // [nnz] float64
  at::Tensor right = {};  // [nnz] float64
  at::Tensor priors = {};  // [users, dim] float64

  int64_t users() const {
    return row_splits.size(0) - 1;
  }

  // FoldInOptions::catalogue_confidence gives every item of the catalogue a term. This
  // function subtracts the terms of the items of a history again, each once, even if the
  // item occurs several times.
  void take_back_catalogue(double confidence, const at::Tensor& item_biases) {
    const int64_t* id = ids.const_data_ptr<int64_t>();
    const int64_t* split = row_splits.const_data_ptr<int64_t>();
    const double* bias = item_biases.const_data_ptr<double>();
    auto* left_weight = left.mutable_data_ptr<double>();
    auto* right_weight = right.mutable_data_ptr<double>();
    std::unordered_set<int64_t> seen;
    for (int64_t user = 0; user < users(); ++user) {
      seen.clear();
      for (int64_t i = split[user]; i < split[user + 1]; ++i) {
        if (seen.insert(id[i]).second) {
          left_weight[i] -= confidence;
          right_weight[i] += confidence * bias[i];
        }
      }
    }
  }
};

FoldIn::Terms FoldIn::terms_of(
    const RaggedFeature& histories,
    const FoldInBatch& batch) const {
  Terms terms{
      .ids = checked_history_ids(histories.values, vectors_.size(0), "FoldIn")};
  const int64_t nnz = terms.ids.size(0);
  terms.row_splits = checked_row_splits(histories.row_splits, nnz, "FoldIn");
  const at::Tensor targets =
      checked_list(batch.targets, "targets", "nnz", nnz, 1.0);
  const at::Tensor confidences =
      checked_list(batch.confidences, "confidences", "nnz", nnz, 1.0);
  TESSERA_CHECK_VALUE(
      nnz == 0 || confidences.min().item<double>() >= 0.0,
      "[FoldIn] confidences must be >= 0, but got {}. Leave an item out that should not count.",
      confidences.min().item<double>());
  terms.priors = checked_priors(batch.priors, terms.users(), vectors_.size(1));

  const at::Tensor item_biases = biases_.index_select(0, terms.ids);
  terms.left = confidences.clone();
  terms.right = confidences * (targets - item_biases);
  if (options_.catalogue_confidence > 0.0) {
    terms.take_back_catalogue(options_.catalogue_confidence, item_biases);
  }
  return terms;
}

// Adds the terms of a user's history, prior and regularization to the equations
// `matrix` [dim, dim] x = `side` [dim].
void FoldIn::add_history(
    const Terms& terms,
    int64_t user,
    at::Tensor matrix,
    at::Tensor side) const {
  const int64_t* split = terms.row_splits.const_data_ptr<int64_t>() + user;
  const int64_t first = split[0];
  const int64_t items = split[1] - first;
  const double regularization = options_.regularization +
      static_cast<double>(items) * options_.regularization_per_item;
  matrix.diagonal().add_(regularization);
  side.add_(terms.priors[user], regularization);
  if (items > 0) {
    const at::Tensor rows =
        vectors_.index_select(0, terms.ids.narrow(0, first, items))
            .to(at::kDouble);
    const at::Tensor weighted =
        rows * terms.left.narrow(0, first, items).unsqueeze(1);
    matrix.addmm_(rows.t(), weighted);
    side.addmv_(rows.t(), terms.right.narrow(0, first, items));
  }
}

// Returns the vectors of `count` users from `begin` on, [count, dim].
at::Tensor FoldIn::solve_block(const Terms& terms, int64_t begin, int64_t count)
    const {
  const at::Tensor matrices = catalogue_matrix_.repeat({count, 1, 1});
  const at::Tensor sides = catalogue_vector_.repeat({count, 1});
  for (int64_t i = 0; i < count; ++i) {
    add_history(terms, begin + i, matrices[i], sides[i]);
  }
  return solution_of(
      matrices, sides, vectors_.scalar_type(), options_.regularization);
}

at::Tensor FoldIn::solve(
    const RaggedFeature& histories,
    const FoldInBatch& batch) const {
  const at::NoGradGuard no_grad;
  const Terms terms = terms_of(histories, batch);
  const int64_t dim = vectors_.size(1);
  const int64_t users = terms.users();
  at::Tensor result = at::empty({users, dim}, vectors_.options());
  const int64_t step = std::max<int64_t>(1, kBlock / (dim * dim));
  for (int64_t begin = 0; begin < users; begin += step) {
    const int64_t count = std::min(step, users - begin);
    result.narrow(0, begin, count).copy_(solve_block(terms, begin, count));
  }
  return result;
}

}  // namespace tessera
