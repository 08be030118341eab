// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/item_scorers.h>

#include "tests/features/feature_builders.h"

#include <cmath>
#include <limits>
#include <random>

namespace tessera::test::item_scorers_test {

constexpr int64_t kItems = 9;

// With a repeated item, a user with one item and one without. Nobody has item 8.
const Rows kUsers{
    {0, 1, 2},
    {1, 2, 1, 3},
    {4, 0},
    {4},
    {},
    {2, 3, 0, 5, 1},
    {6, 7, 4},
    {5, 6},
    {7, 3},
    {2, 6}};
const Rows kHistories{{3, 3, 6, 0, 3}, {}, {5}, {8}, {8, 1}, {1, 2, 4}};

using Matrix = std::vector<std::vector<double>>;

Matrix zeros(size_t rows, size_t columns) {
  return Matrix(rows, std::vector<double>(columns, 0.0));
}

// How often each history has each item, where older items count less.
Matrix counts_of(const Rows& histories, int64_t num_items, double recency) {
  Matrix counts = zeros(histories.size(), static_cast<size_t>(num_items));
  for (size_t user = 0; user < histories.size(); ++user) {
    double weight = 1.0;
    for (size_t i = histories[user].size(); i > 0; --i) {
      counts[user][histories[user][i - 1]] += weight;
      weight *= recency;
    }
  }
  return counts;
}

// Gauss-Jordan elimination without pivots, which positive definite matrices do not need.
Matrix inverse_of(Matrix matrix) {
  const size_t size = matrix.size();
  Matrix inverse = zeros(size, size);
  for (size_t i = 0; i < size; ++i) {
    inverse[i][i] = 1.0;
  }
  for (size_t pivot = 0; pivot < size; ++pivot) {
    const double scale = 1.0 / matrix[pivot][pivot];
    for (size_t column = 0; column < size; ++column) {
      matrix[pivot][column] *= scale;
      inverse[pivot][column] *= scale;
    }
    for (size_t row = 0; row < size; ++row) {
      const double factor = row == pivot ? 0.0 : matrix[row][pivot];
      for (size_t column = 0; column < size; ++column) {
        matrix[row][column] -= factor * matrix[pivot][column];
        inverse[row][column] -= factor * inverse[pivot][column];
      }
    }
  }
  return inverse;
}

at::Tensor tensor_of(const Matrix& matrix) {
  at::Tensor result =
      at::empty({std::ssize(matrix), std::ssize(matrix[0])}, at::kDouble);
  for (size_t row = 0; row < matrix.size(); ++row) {
    result[static_cast<int64_t>(row)].copy_(
        at::tensor(matrix[row], at::kDouble));
  }
  return result;
}

// The formula of make_ease() in plain loops.
at::Tensor plain_ease(
    const EaseOptions& options,
    const Rows& histories,
    double recency) {
  Matrix gram = zeros(kItems, kItems);
  const Matrix x = counts_of(kUsers, kItems, 1.0);
  for (size_t user = 0; user < x.size(); ++user) {
    const double weight = std::pow(
        static_cast<double>(kUsers[user].size()), -options.user_exponent);
    for (size_t i = 0; i < kItems; ++i) {
      for (size_t j = 0; j < kItems && !kUsers[user].empty(); ++j) {
        gram[i][j] += weight * x[user][i] * x[user][j];
      }
    }
  }
  for (size_t i = 0; i < kItems; ++i) {
    gram[i][i] += options.regularization;
  }
  const Matrix p = inverse_of(gram);
  const Matrix weights = counts_of(histories, kItems, recency);
  Matrix scores = zeros(histories.size(), kItems);
  for (size_t user = 0; user < histories.size(); ++user) {
    for (size_t i = 0; i < kItems; ++i) {
      for (size_t j = 0; j < kItems; ++j) {
        scores[user][j] += i == j ? 0.0 : -weights[user][i] * p[i][j] / p[j][j];
      }
    }
  }
  return tensor_of(scores);
}

// The matrix R of make_graph_filter().
Matrix plain_r(const Rows& users, int64_t num_items) {
  const Matrix x = counts_of(users, num_items, 1.0);
  Matrix r = x;
  for (size_t user = 0; user < x.size(); ++user) {
    for (size_t item = 0; item < x[user].size(); ++item) {
      double item_degree = 0.0;
      for (const std::vector<double>& row : x) {
        item_degree += row[item];
      }
      if (x[user][item] > 0.0) {
        r[user][item] /=
            std::sqrt(static_cast<double>(users[user].size()) * item_degree);
      }
    }
  }
  return r;
}

double power_of_degree(size_t item, double exponent) {
  double degree = 0.0;
  for (const std::vector<double>& row : counts_of(kUsers, kItems, 1.0)) {
    degree += row[item];
  }
  return degree == 0.0 ? 0.0 : std::pow(degree, exponent);
}

// The formula of make_graph_filter(), with whole matrices of doubles.
at::Tensor plain_filter(
    const GraphFilterOptions& options,
    const Rows& histories,
    double recency) {
  const at::Tensor r = tensor_of(plain_r(kUsers, kItems));
  const at::Tensor s = at::matmul(r.t(), r);
  const at::Tensor one = at::eye(kItems, at::kDouble);
  const at::Tensor l = one - 2.0 * s;
  std::vector<at::Tensor> t{one, l};
  while (t.size() < options.coefficients.size()) {
    t.push_back(2.0 * at::matmul(l, t.back()) - t[t.size() - 2]);
  }
  at::Tensor polynomial = at::zeros_like(one);
  for (size_t k = 0; k < options.coefficients.size(); ++k) {
    polynomial += options.coefficients[k] * t[k];
  }
  const at::Tensor v =
      std::get<1>(at::linalg_eigh(s))
          .narrow(1, kItems - options.num_vectors, options.num_vectors);
  const at::Tensor projection = at::matmul(v, v.t());
  const Matrix x = counts_of(histories, kItems, recency);
  Matrix scores = zeros(histories.size(), kItems);
  for (size_t user = 0; user < histories.size(); ++user) {
    for (size_t i = 0; i < kItems; ++i) {
      for (size_t j = 0; j < kItems; ++j) {
        const auto scaled = [&](const at::Tensor& matrix, double exponent) {
          return power_of_degree(j, exponent) *
              matrix[static_cast<int64_t>(j)][static_cast<int64_t>(i)]
                  .item<double>() *
              power_of_degree(i, -exponent);
        };
        scores[user][j] += x[user][i] *
            (scaled(polynomial, options.beta) +
             options.alpha * scaled(projection, options.gamma));
      }
    }
  }
  return tensor_of(scores);
}

TEST(EaseTest, MatchesPlainLoops) {
  for (const EaseOptions& options :
       {EaseOptions{.num_items = kItems, .regularization = 0.5},
        EaseOptions{.num_items = kItems},
        EaseOptions{
            .num_items = kItems, .regularization = 2.0, .user_exponent = 0.5},
        EaseOptions{
            .num_items = kItems,
            .regularization = 1.0,
            .user_exponent = 1.5}}) {
    const auto ease = make_ease(ragged(kUsers), options);
    for (const Rows& histories : {kUsers, kHistories}) {
      for (const double recency : {1.0, 0.7}) {
        const at::Tensor scores = ease->scores(ragged(histories), recency);
        EXPECT_EQ(scores.scalar_type(), at::kFloat);
        expect_close(
            scores, plain_ease(options, histories, recency), 1e-5, 1e-6);
      }
    }
  }
}

TEST(EaseTest, NoItemScoresItselfAndUnseenItemsScoreNothing) {
  const auto ease = make_ease(ragged(kUsers), {.num_items = kItems});
  Rows one_item(kItems);
  for (int64_t i = 0; i < kItems; ++i) {
    one_item[static_cast<size_t>(i)] = {i};
  }
  const at::Tensor scores = ease->scores(ragged(one_item), 1.0);
  EXPECT_TENSOR_EQ(scores.diagonal(), at::zeros({kItems}));
  EXPECT_TENSOR_EQ(scores.select(1, 8), at::zeros({kItems}));
  EXPECT_TENSOR_EQ(scores[8], at::zeros({kItems}));
}

TEST(EaseTest, NamesTheMemoryThatItLacks) {
  EXPECT_TORCH_ERROR(
      make_ease(ragged({{1, 2}}), {.num_items = 4'000'000}),
      "[Ease] 4000000 items need 1.28e+14 bytes of memory, but only ");
}

TEST(EaseTest, RefusesWhatItCannotSolve) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {0.0, -1.0, nan, infinity}) {
    EXPECT_VALUE_ERROR(
        make_ease(
            ragged(kUsers), {.num_items = kItems, .regularization = value}),
        "[Ease] expected regularization > 0 and user_exponent >= 0, but got ");
  }
  for (const double value : {-0.5, nan, infinity}) {
    EXPECT_VALUE_ERROR(
        make_ease(
            ragged(kUsers), {.num_items = kItems, .user_exponent = value}),
        "[Ease] expected regularization > 0 and user_exponent >= 0, but got ");
  }
  // In float32, both items are the same.
  EXPECT_VALUE_ERROR(
      make_ease(
          ragged(Rows(4096, {0, 1})),
          {.num_items = 2, .regularization = 1e-12}),
      "[Ease] float32 can't invert the matrix of items. Raise regularization, which is 1e-12");
}

// Such as those of ChebyCF.
GraphFilterOptions small_options() {
  return {.num_items = kItems, .num_vectors = 3};
}

TEST(GraphFilterTest, MatchesThePlainFormula) {
  GraphFilterOptions different = small_options();
  different.coefficients = {0.3, -0.2, 0.5};
  different.gamma = 0.9;
  GraphFilterOptions without_vectors = small_options();
  without_vectors.num_vectors = 0;
  const GraphFilterOptions gf_cf{
      .num_items = kItems,
      .coefficients = {0.5, -0.5},
      .num_vectors = 2,
      .alpha = 0.3,
      .beta = 0.0,
      .gamma = 0.5};
  for (const GraphFilterOptions& options :
       {small_options(), different, without_vectors, gf_cf}) {
    const auto filter = make_graph_filter(ragged(kUsers), options);
    for (const Rows& histories : {kUsers, kHistories}) {
      for (const double recency : {1.0, 0.7}) {
        const at::Tensor scores = filter->scores(ragged(histories), recency);
        EXPECT_EQ(scores.scalar_type(), at::kFloat);
        expect_close(
            scores, plain_filter(options, histories, recency), 1e-5, 1e-6);
      }
    }
  }
}

// The polynomial of GF-CF is R^T R itself.
TEST(GraphFilterTest, TwoCoefficientsGiveTheLinearFilter) {
  const auto filter = make_graph_filter(
      ragged(kUsers),
      {.num_items = kItems,
       .coefficients = {0.5, -0.5},
       .num_vectors = 0,
       .beta = 0.0});
  const at::Tensor r = tensor_of(plain_r(kUsers, kItems));
  expect_close(
      filter->scores(
          ragged({{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}}), 1.0),
      at::matmul(r.t(), r));
}

// The program of ChebyCF rounds the gains at the extremes of T_8 to three decimals, and then
// takes them as those at the roots of T_9.
TEST(GraphFilterTest, TheDefaultCoefficientsAreThoseOfTheProgram) {
  const double pi = std::acos(-1.0);
  const auto rounded = [](double value) {
    return std::round(value * 1000.0) / 1000.0;
  };
  std::vector<double> expected(8, 0.0);
  for (int node = 0; node <= 8; ++node) {
    const double place = rounded(std::cos((8 - node) * pi / 8));
    const double gain = rounded(
        0.5 - std::copysign(0.5 * std::pow(std::abs(place), 1.5), place));
    const double angle = (8.5 - node) * pi / 9;
    for (size_t k = 0; k < expected.size(); ++k) {
      expected[k] += (k == 0 ? 1.0 : 2.0) / 9.0 * gain *
          std::cos(static_cast<double>(k) * angle);
    }
  }
  expect_close(
      at::tensor(GraphFilterOptions().coefficients, at::kDouble),
      at::tensor(expected, at::kDouble),
      0.0,
      1e-6);
}

// Here, the basis is much narrower than the items.
TEST(GraphFilterTest, FindsTheLargestSingularVectors) {
  constexpr int64_t kMany = 400;
  constexpr int64_t kVectors = 8;
  std::mt19937 random(3);
  Rows users(300);
  for (size_t user = 0; user < users.size(); ++user) {
    for (int64_t i = 0; i < 12; ++i) {
      // Each user has items of one of ten groups of different sizes.
      const auto group = static_cast<int64_t>(user % 10);
      users[user].push_back(
          group * 40 + static_cast<int64_t>(random() % (12 + 3 * group)));
    }
  }
  // The coefficients 0 leave V V^T alone.
  const auto filter = make_graph_filter(
      ragged(users),
      {.num_items = kMany,
       .coefficients = {0.0, 0.0},
       .num_vectors = kVectors,
       .alpha = 1.0,
       .gamma = 0.0});
  Rows one_item(kMany);
  for (int64_t i = 0; i < kMany; ++i) {
    one_item[static_cast<size_t>(i)] = {i};
  }
  const at::Tensor projection =
      filter->scores(ragged(one_item), 1.0).to(at::kDouble);
  EXPECT_NEAR(projection.trace().item<double>(), kVectors, 1e-4);
  const at::Tensor r = tensor_of(plain_r(users, kMany));
  const at::Tensor s = at::matmul(r.t(), r);
  const double best = std::get<0>(at::linalg_eigh(s))
                          .narrow(0, kMany - kVectors, kVectors)
                          .sum()
                          .item<double>();
  const double found = at::matmul(projection, s).trace().item<double>();
  EXPECT_NEAR(found, best, 2e-3 * best);
}

TEST(GraphFilterTest, RefusesWrongOptions) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  expect_refusals<GraphFilterOptions>(
      {{{.num_items = 9, .coefficients = {1.0}, .num_vectors = 2},
        "[GraphFilter] expected two or more finite coefficients, num_vectors in [0, 9]"},
       {{.num_items = 9, .coefficients = {nan, 1.0}, .num_vectors = 2},
        "two or more finite coefficients"},
       {{.num_items = 9, .num_vectors = -1}, "but got 8, -1, 0.2, 0.4 and 0.4"},
       {{.num_items = 9}, "but got 8, 512, 0.2"},
       {{.num_items = 20, .num_vectors = 11}, "num_vectors in [0, 10]"},
       {{.num_items = 9, .num_vectors = 2, .alpha = nan}, "and finite alpha"},
       {{.num_items = 9, .num_vectors = 2, .gamma = nan}, "0.4 and nan"}},
      [](const GraphFilterOptions& options) {
        make_graph_filter(ragged(kUsers), options);
      });
}

TEST(ItemScorerTest, RefusesWrongHistories) {
  const auto refuse = [](const auto& make) {
    EXPECT_VALUE_ERROR(
        make(ragged(kUsers), 0),
        "[ItemScorer] num_items must be >= 1, but got 0");
    EXPECT_VALUE_ERROR(
        make(ragged({{}, {}}), kItems),
        "[ItemScorer] expected the items of users, but all 2 histories are empty");
    EXPECT_INDEX_ERROR(
        make(ragged({{kItems}}), kItems),
        "[ItemScorer] ids of histories must be in [0, 9), but got 9");
    EXPECT_VALUE_ERROR(
        make({int64s({1, 2}), int64s({0, 3})}, kItems),
        "[ItemScorer] row_splits must begin with 0 and end with");
    const std::unique_ptr<ItemScorer> scorer = make(ragged(kUsers), kItems);
    EXPECT_INDEX_ERROR(scorer->scores(ragged({{-1}}), 1.0), "but got -1");
    EXPECT_TYPE_ERROR(
        scorer->scores({at::zeros({1}), int64s({0, 1})}, 1.0),
        "[ItemScorer] values of histories must be int32 or int64, but got Float");
    for (const double recency :
         {0.0, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
      EXPECT_VALUE_ERROR(
          scorer->scores(ragged({{1}}), recency),
          "[ItemScorer] recency must be in (0, 1], but got ");
    }
    EXPECT_EQ(
        scorer->scores(ragged({}), 1.0).sizes(), at::IntArrayRef({0, kItems}));
    EXPECT_TENSOR_EQ(
        scorer->scores({int32s({7, 1}), int32s({0, 2})}, 0.5),
        scorer->scores(ragged({{7, 1}}), 0.5));
  };
  refuse([](const RaggedFeature& histories, int64_t num_items) {
    return make_ease(histories, {.num_items = num_items});
  });
  refuse([](const RaggedFeature& histories, int64_t num_items) {
    return make_graph_filter(
        histories, {.num_items = num_items, .num_vectors = 2});
  });
}

}  // namespace tessera::test::item_scorers_test
