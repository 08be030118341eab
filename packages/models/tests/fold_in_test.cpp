// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/fold_in.h>

#include "tests/features/feature_builders.h"

namespace tessera::test::fold_in_test {

constexpr int64_t kItems = 9;
constexpr int64_t kDim = 4;

at::Tensor ids_of(const std::vector<int64_t>& ids) {
  return at::tensor(ids, at::kLong);
}

// A repeated item, one item, no item, and all items.
const Rows kHistories{{7, 8, 7, 1}, {3}, {}, {0, 1, 2, 3, 4, 5, 6, 7, 8}};
constexpr int64_t kNnz = 14;

struct Problem {
  at::Tensor vectors = {};
  at::Tensor biases = {};
  FoldInBatch batch = {};
  FoldInOptions options = {};
};

Problem whole_problem() {
  return {
      .vectors = at::randn({kItems, kDim}),
      .biases = at::randn({kItems}),
      .batch =
          {.targets = at::randn({kNnz}),
           .confidences = at::rand({kNnz}) + 0.5,
           .priors = at::randn({4, kDim})},
      .options = {
          .regularization = 0.3,
          .regularization_per_item = 0.05,
          .catalogue_confidence = 0.2}};
}

// The normal equations of the docstring's formula, term by term.
at::Tensor plain_solve(const Problem& problem, const Rows& histories) {
  const at::Tensor vectors = problem.vectors.to(at::kDouble);
  const auto value = [](const at::Tensor& tensor, int64_t i, double otherwise) {
    return tensor.defined() ? tensor[i].item<double>() : otherwise;
  };
  std::vector<at::Tensor> solutions;
  int64_t position = 0;
  for (const std::vector<int64_t>& history : histories) {
    at::Tensor matrix = at::zeros({kDim, kDim}, at::kDouble);
    at::Tensor right = at::zeros({kDim}, at::kDouble);
    // Adds the equations of weight * (target - u . vector)^2.
    const auto add = [&](int64_t item, double weight, double target) {
      matrix += weight * at::outer(vectors[item], vectors[item]);
      right += weight * target * vectors[item];
    };
    for (const int64_t item : history) {
      add(item,
          value(problem.batch.confidences, position, 1.0),
          value(problem.batch.targets, position, 1.0) -
              value(problem.biases, item, 0.0));
      ++position;
    }
    for (int64_t item = 0; item < kItems; ++item) {
      if (std::find(history.begin(), history.end(), item) == history.end()) {
        add(item,
            problem.options.catalogue_confidence,
            -value(problem.biases, item, 0.0));
      }
    }
    const double regularization = problem.options.regularization +
        static_cast<double>(history.size()) *
            problem.options.regularization_per_item;
    matrix += regularization * at::eye(kDim, at::kDouble);
    if (problem.batch.priors.defined()) {
      const at::Tensor priors = problem.batch.priors.to(at::kDouble);
      const auto user = static_cast<int64_t>(solutions.size());
      right += regularization * (priors.dim() == 1 ? priors : priors[user]);
    }
    solutions.push_back(at::linalg_solve(matrix, right));
  }
  return at::stack(solutions);
}

at::Tensor solve(const Problem& problem, const Rows& histories) {
  return FoldIn(problem.vectors, problem.options, problem.biases)
      .solve(ragged(histories), problem.batch);
}

TEST(FoldInTest, MatchesNormalEquationsOfEachUser) {
  const auto expect_same = [](auto&& change) {
    Problem problem = whole_problem();
    change(problem);
    expect_close(
        solve(problem, kHistories),
        plain_solve(problem, kHistories),
        1e-5,
        1e-5);
  };
  expect_same([](Problem& /*problem*/) {});
  expect_same([](Problem& problem) { problem.biases.reset(); });
  expect_same([](Problem& problem) { problem.batch = FoldInBatch{}; });
  expect_same([](Problem& problem) { problem.batch.targets.reset(); });
  expect_same([](Problem& problem) { problem.batch.confidences.reset(); });
  expect_same(
      [](Problem& problem) { problem.batch.priors = at::randn({kDim}); });
  expect_same(
      [](Problem& problem) { problem.options.regularization_per_item = 0.0; });
  expect_same(
      [](Problem& problem) { problem.options.catalogue_confidence = 0.0; });
  // A confidence below that of the catalogue.
  expect_same(
      [](Problem& problem) { problem.options.catalogue_confidence = 2.0; });
}

// The equations are solved in float64, and float32 only rounds the vectors.
TEST(FoldInTest, SolvesBadlyScaledEquationsExactly) {
  Problem problem = whole_problem();
  problem.vectors = at::randn({kItems, kDim}, at::kDouble);
  problem.vectors.select(1, 0).mul_(1e4);
  problem.options.regularization = 1e-3;
  const at::Tensor solved = solve(problem, kHistories);
  EXPECT_EQ(solved.scalar_type(), at::kDouble);
  expect_close(solved, plain_solve(problem, kHistories), 1e-8, 1e-12);
}

TEST(FoldInTest, EmptyHistoryGivesThePrior) {
  const RaggedFeature histories = ragged({{}, {3}, {}});
  const at::Tensor vectors = at::randn({kItems, kDim});
  for (const double catalogue : {0.0, 0.5}) {
    const FoldIn fold_in(
        vectors, {.regularization = 0.3, .catalogue_confidence = catalogue});
    const at::Tensor solved = fold_in.solve(histories);
    EXPECT_TRUE(at::equal(solved[0], at::zeros({kDim})));
    EXPECT_FALSE(at::equal(solved[1], at::zeros({kDim})));
    EXPECT_TRUE(at::equal(solved[2], at::zeros({kDim})));
  }
  const at::Tensor prior = at::randn({kDim});
  const at::Tensor solved = FoldIn(vectors, {.regularization = 0.3})
                                .solve(histories, {.priors = prior});
  expect_close(solved[0], prior);
  expect_close(solved[2], prior);
}

TEST(FoldInTest, TakesEmptyBatchesAndInt32) {
  const at::Tensor vectors = at::randn({kItems, kDim});
  const FoldIn fold_in(vectors, {.regularization = 0.3});
  EXPECT_EQ(fold_in.solve(ragged({})).sizes(), at::IntArrayRef({0, kDim}));
  EXPECT_TRUE(at::equal(
      fold_in.solve({.values = int32s({7, 1}), .row_splits = int32s({0, 2})}),
      fold_in.solve(ragged({{7, 1}}))));
}

// More users than one block of matrices holds.
TEST(FoldInTest, EachUserIsIndependentOfTheOthers) {
  constexpr int64_t kWide = 600;
  constexpr size_t kUsers = 13;
  const FoldIn fold_in(
      at::randn({kItems, kWide}),
      {.regularization = 0.3, .catalogue_confidence = 0.2});
  Rows histories;
  for (size_t user = 0; user < kUsers; ++user) {
    histories.push_back({static_cast<int64_t>(user) % kItems, 4});
  }
  const at::Tensor all = fold_in.solve(ragged(histories));
  for (size_t user = 0; user < kUsers; ++user) {
    expect_close(
        all[static_cast<int64_t>(user)],
        fold_in.solve(ragged({histories[user]}))[0]);
  }
}

// Items and users may change sides: exact vectors are found again.
TEST(FoldInTest, FindsTheVectorsOfExactScores) {
  const at::Tensor users = at::randn({20, kDim}, at::kDouble);
  const at::Tensor items = at::randn({kItems, kDim}, at::kDouble);
  const at::Tensor scores = users.matmul(items.t());
  Rows all_users(kItems);
  for (auto& list : all_users) {
    for (int64_t user = 0; user < 20; ++user) {
      list.push_back(user);
    }
  }
  expect_close(
      FoldIn(users, {.regularization = 1e-9})
          .solve(
              ragged(all_users),
              {.targets = scores.t().contiguous().view({-1})}),
      items,
      1e-6,
      1e-6);
}

TEST(FoldInTest, KeepsItsVectorsAndGivesNoGradient) {
  at::Tensor vectors = at::randn({kItems, kDim}).requires_grad_();
  const FoldIn fold_in(
      vectors, {.regularization = 0.3, .catalogue_confidence = 0.2});
  const RaggedFeature histories = ragged(kHistories);
  const at::Tensor before = fold_in.solve(histories);
  EXPECT_FALSE(before.requires_grad());
  vectors.detach().zero_();
  EXPECT_TRUE(at::equal(fold_in.solve(histories), before));
}

TEST(FoldInTest, RefusesWrongOptions) {
  const at::Tensor vectors = at::randn({kItems, kDim});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {0.0, -1.0, nan, infinity}) {
    EXPECT_VALUE_ERROR(
        FoldIn(vectors, {.regularization = value}),
        "[FoldIn] regularization must be > 0 and finite, but got ");
  }
  for (const double value : {-0.1, nan, infinity}) {
    EXPECT_VALUE_ERROR(
        FoldIn(
            vectors, {.regularization = 1.0, .regularization_per_item = value}),
        "regularization_per_item must be >= 0 and finite, but got ");
    EXPECT_VALUE_ERROR(
        FoldIn(vectors, {.regularization = 1.0, .catalogue_confidence = value}),
        "catalogue_confidence must be >= 0 and finite, but got ");
  }
}

TEST(FoldInTest, RefusesWrongInputs) {
  const at::Tensor vectors = at::randn({kItems, kDim});
  const FoldInOptions options{.regularization = 0.3};
  const auto with_nan = [](at::Tensor tensor) {
    tensor.view({-1})[1] = std::numeric_limits<float>::quiet_NaN();
    return tensor;
  };
  expect_refusals<std::pair<at::Tensor, at::Tensor>>(
      {{{}, "vectors must have shape [items, dim]"},
       {{vectors[0], {}}, "but got Float of shape [4]"},
       {{at::zeros({3, 0}), {}}, "with one column or more"},
       {{with_nan(vectors.clone()), {}},
        "vectors must be finite, but got 1 numbers that are not"},
       {{vectors, at::zeros({8})},
        "biases must have shape [items], [9], but got Float of shape [8]"}},
      [&](const auto& row) { FoldIn fold_in(row.first, options, row.second); });
  EXPECT_TYPE_ERROR(
      FoldIn(vectors.to(at::kLong), options),
      "vectors must be floats, but got Long");

  const FoldIn fold_in(vectors, options);
  EXPECT_TYPE_ERROR(
      fold_in.solve({at::zeros({2}), ids_of({0, 2})}),
      "values of histories must be int32 or int64, but got Float");
  EXPECT_INDEX_ERROR(
      fold_in.solve(ragged({{kItems}})),
      "ids of histories must be in [0, 9), but got 9");
  EXPECT_INDEX_ERROR(fold_in.solve(ragged({{-1}})), "but got -1");
  const RaggedFeature histories = ragged({{7, 8}, {3}});
  EXPECT_TYPE_ERROR(
      fold_in.solve(histories, {.targets = ids_of({1, 2, 3})}),
      "targets must be floats");
  expect_refusals<std::pair<RaggedFeature, FoldInBatch>>(
      {{{}, "histories must have values of shape [nnz]"},
       {{{ids_of({1, 2}), ids_of({0, 3})}, {}},
        "[FoldIn] row_splits must begin with 0 and end with"},
       {{histories, {.targets = at::zeros({2})}},
        "targets must have shape [nnz], [3], but got Float of shape [2]"},
       {{histories, {.targets = with_nan(at::zeros({3}))}},
        "targets must be finite"},
       {{histories, {.confidences = at::zeros({3, 1})}},
        "confidences must have shape [nnz]"},
       {{histories, {.confidences = floats({1.0F, -0.5F, 1.0F})}},
        "confidences must be >= 0, but got -0.5"},
       {{histories, {.priors = at::zeros({3})}},
        "priors must have shape [dim] or [batch, dim], [4] or [2, 4], but got "
        "Float of shape [3]"},
       {{histories, {.priors = at::zeros({3, kDim})}},
        "but got Float of shape [3, 4]"}},
      [&](const auto& row) { fold_in.solve(row.first, row.second); });
}

TEST(FoldInTest, RefusesEquationsThatCannotBeSolved) {
  // Two equal columns, which no regularization above the precision tells apart.
  EXPECT_VALUE_ERROR(
      FoldIn(at::full({1, 2}, 1.0), {.regularization = 1e-30})
          .solve(ragged({{0}, {}})),
      "the equations of 1 histories can't be solved in Float. Raise "
      "regularization, which is 1e-30");
  // All items have the confidence 0, so only rounding errors are left of the catalogue. Their
  // matrix is finite, but not positive definite.
  std::vector<int64_t> backwards;
  for (int64_t item = 39; item >= 0; --item) {
    backwards.push_back(item);
  }
  EXPECT_VALUE_ERROR(
      FoldIn(
          at::randn({40, 16}),
          {.regularization = 1e-300, .catalogue_confidence = 1.0})
          .solve(
              ragged({backwards}),
              {.targets = at::zeros({40}), .confidences = at::zeros({40})}),
      "the equations of 1 histories can't be solved in Float");
  // Both sides overflow.
  EXPECT_VALUE_ERROR(
      FoldIn(at::full({1, 1}, 1e200, at::kDouble), {.regularization = 1.0})
          .solve(ragged({{0}}), {.targets = at::full({1}, 1e200, at::kDouble)}),
      "can't be solved in Double");
  // The result is too large for the dtype of the vectors.
  EXPECT_VALUE_ERROR(
      FoldIn(at::ones({1, 1}, at::kHalf), {.regularization = 1.0})
          .solve(ragged({{0}}), {.targets = at::full({1}, 1e9, at::kDouble)}),
      "can't be solved in Half");
}

}  // namespace tessera::test::fold_in_test
