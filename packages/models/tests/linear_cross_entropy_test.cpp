// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/linear_cross_entropy.h>

#include "tests/layers/gradient_check.h"

namespace tessera::test::linear_cross_entropy_test {

// A loss over all classes.
struct Whole {
  at::Tensor states, rows, targets;

  Whole(int64_t count, int64_t classes, int64_t dim)
      : states(at::randn({count, dim}).requires_grad_()),
        rows(at::randn({classes, dim}).requires_grad_()),
        targets(at::randint(classes, {count}, at::kLong)) {}

  std::vector<at::Tensor*> variables() {
    return {&states, &rows};
  }
  at::Tensor loss() const {
    return linear_cross_entropy(states, rows, targets);
  }
  at::Tensor formula() const {
    return at::cross_entropy_loss(at::matmul(states, rows.t()), targets);
  }
};

// A loss over sampled negatives.
struct Sample {
  at::Tensor states, positives, negatives, positive_ids, negative_ids;

  Sample(int64_t count, int64_t num_negatives, int64_t dim)
      : states(at::randn({count, dim}).requires_grad_()),
        positives(at::randn({count, dim}).requires_grad_()),
        negatives(at::randn({num_negatives, dim}).requires_grad_()),
        // So few that there are accidental hits.
        positive_ids(at::randint(7, {count}, at::kLong)),
        negative_ids(at::randint(7, {num_negatives}, at::kLong)) {}

  std::vector<at::Tensor*> variables() {
    return {&states, &positives, &negatives};
  }
  at::Tensor loss() const {
    return sampled_linear_cross_entropy(
        states, positives, negatives, positive_ids, negative_ids);
  }
  at::Tensor formula() const {
    const at::Tensor own = (states * positives).sum(1, true);
    const at::Tensor others =
        at::matmul(states, negatives.t())
            .masked_fill(positive_ids.unsqueeze(1).eq(negative_ids), -INFINITY);
    return (at::cat({own, others}, 1).logsumexp(1, true) - own).mean();
  }
};

// Returns a copy whose variables are new leaves.
template <class Loss>
Loss copy_in(at::ScalarType dtype, Loss loss) {
  for (at::Tensor* variable : loss.variables()) {
    *variable = variable->detach().to(dtype, false, true).requires_grad_();
  }
  return loss;
}

template <class Loss>
std::vector<at::Tensor> gradients_of(
    const at::Tensor& loss,
    Loss& of,
    bool create_graph = false) {
  std::vector<at::Tensor> variables;
  for (const at::Tensor* variable : of.variables()) {
    variables.push_back(*variable);
  }
  return torch::autograd::grad({loss}, variables, {}, {}, create_graph);
}

void expect_close(
    const std::vector<at::Tensor>& actual,
    const std::vector<at::Tensor>& expected,
    double atol) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    tessera::test::expect_close(actual[i], expected[i], 1e-4, atol);
  }
}

template <class Loss>
class CrossEntropyTest : public testing::Test {};
using Losses = testing::Types<Whole, Sample>;
TYPED_TEST_SUITE(CrossEntropyTest, Losses);

TYPED_TEST(CrossEntropyTest, MatchesItsFormulaAndTorchsGradients) {
  struct Sizes {
    int64_t states, others, dim;
  };
  for (const auto& [count, others, dim] :
       {Sizes{1, 1, 1},
        Sizes{3, 5, 7},
        Sizes{65, 37, 16},
        Sizes{65, 32, 16},
        Sizes{130, 33, 8},
        Sizes{1100, 15, 24},
        Sizes{1100, 130, 24}}) {
    TypeParam some(count, others, dim);
    TypeParam exact = copy_in(at::kDouble, some);
    const at::Tensor loss = some.loss();
    const at::Tensor formula = exact.formula();
    const double expected = formula.template item<double>();
    EXPECT_NEAR(
        loss.template item<double>(), expected, 1e-5 * (1.0 + expected));
    EXPECT_NEAR(exact.loss().template item<double>(), expected, 1e-9);
    // A factor in front of the loss reaches the gradients.
    expect_close(
        gradients_of(3.0 * loss, some),
        gradients_of(3.0 * formula, exact),
        1e-6);
    const at::NoGradGuard no_gradients;
    const at::Tensor frozen = some.loss();
    EXPECT_FALSE(frozen.requires_grad());
    EXPECT_EQ(frozen.template item<double>(), loss.template item<double>());
  }
}

TYPED_TEST(CrossEntropyTest, GradientsMatchFiniteDifferences) {
  TypeParam some = copy_in(at::kDouble, TypeParam(4, 5, 3));
  std::vector<at::Tensor> variables;
  for (const at::Tensor* variable : some.variables()) {
    variables.push_back(*variable);
  }
  expect_gradients([&] { return some.loss(); }, variables);
}

// In float32 against those in float64.
TYPED_TEST(CrossEntropyTest, HasSecondDerivatives) {
  const TypeParam some(4, 5, 3);
  const auto second_in = [&](at::ScalarType dtype) {
    TypeParam copy = copy_in(dtype, some);
    at::Tensor squares = at::zeros({}, dtype);
    for (const at::Tensor& gradient :
         gradients_of(copy.loss(), copy, /*create_graph=*/true)) {
      squares = squares + gradient.square().sum();
    }
    return gradients_of(squares, copy);
  };
  expect_close(second_in(at::kFloat), second_in(at::kDouble), 1e-5);
}

TYPED_TEST(CrossEntropyTest, NumberOfThreadsDoesNotChangeTheBits) {
  TypeParam some(700, 150, 32);
  std::vector<std::vector<at::Tensor>> results;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    const at::Tensor loss = some.loss();
    results.push_back(gradients_of(loss, some));
    results.back().push_back(loss.detach());
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
  }
}

TEST(LinearCrossEntropyTest, TakesInt32TargetsAndFrozenInputs) {
  Whole some(65, 37, 16);
  const double loss = some.loss().item<double>();
  some.targets = some.targets.to(at::kInt);
  EXPECT_EQ(some.loss().item<double>(), loss);
  some.states = some.states.detach();
  some.rows = some.rows.detach();
  EXPECT_FALSE(some.loss().requires_grad());
  EXPECT_EQ(some.loss().item<double>(), loss);
}

TEST(LinearCrossEntropyTest, RefusesWrongInputs) {
  const at::Tensor states = at::randn({2, 3});
  const at::Tensor rows = at::randn({4, 3});
  const at::Tensor targets = int64s({0, 3});
  expect_refusals<std::array<at::Tensor, 3>>(
      {{{at::randn({0, 3}), rows, int64s({})},
        "states must be a matrix of one row or more, but got shape [0, 3]"},
       {{states, at::randn({4}), targets}, "rows must be a matrix"},
       {{states, at::randn({4, 2}), targets},
        "must have the same dim, but got 3 and 2"},
       {{states, rows, int64s({0})},
        "targets must have shape [2], one per row of states, but got Long "
        "of shape [1]"},
       {{at::full({2, 3}, std::numeric_limits<double>::quiet_NaN()),
         rows,
         targets},
        "the loss must be finite"},
       {{1e30 * states, 1e30 * rows, targets}, "the loss must be finite"}},
      [&](const auto& x) { linear_cross_entropy(x[0], x[1], x[2]); });
  EXPECT_TYPE_ERROR(
      linear_cross_entropy(states, rows.to(at::kDouble), targets),
      "must have the same dtype");
  EXPECT_TYPE_ERROR(
      linear_cross_entropy(states.to(at::kLong), rows, targets), "states");
  EXPECT_TYPE_ERROR(
      linear_cross_entropy(states, rows, floats({0, 1})),
      "targets must be int32 or int64");
  EXPECT_INDEX_ERROR(
      linear_cross_entropy(states, rows, int64s({0, 4})),
      "targets must be in [0, 4), but got 4");
  EXPECT_INDEX_ERROR(
      linear_cross_entropy(states, rows, int64s({-1, 0})),
      "targets must be in [0, 4), but got -1");
}

// All inputs come from one tensor, as with tied weights.
TEST(SampledLinearCrossEntropyTest, InputsMayDependOnEachOther) {
  const at::Tensor rows = at::randn({4, 3}).requires_grad_();
  const at::Tensor ids = int64s({0, 1, 2, 3});
  const auto gradient = [&](bool create_graph) {
    const at::Tensor states = 2.0 * rows;
    const at::Tensor loss = linear_cross_entropy(states, rows, ids) +
        sampled_linear_cross_entropy(states, states.sin(), rows, ids, ids);
    return torch::autograd::grad({loss}, {rows}, {}, true, create_graph)[0];
  };
  tessera::test::expect_close(
      gradient(true).detach(), gradient(false), 1e-4, 1e-5);
}

TEST(SampledLinearCrossEntropyTest, TakesViewsInt32IdsAndFrozenInputs) {
  Sample sample(5, 6, 4);
  const at::Tensor loss = sample.loss();
  Sample other = sample;
  other.positive_ids = other.positive_ids.to(at::kInt);
  other.negative_ids = other.negative_ids.to(at::kInt);
  other.negatives = sample.negatives.t().contiguous().t();  // not contiguous
  EXPECT_EQ(other.loss().item<double>(), loss.item<double>());
  const auto all = gradients_of(loss, sample);
  for (size_t i = 0; i < 3; ++i) {
    Sample frozen = copy_in(at::kFloat, sample);
    for (at::Tensor* variable : frozen.variables()) {
      variable->requires_grad_(variable == frozen.variables()[i]);
    }
    tessera::test::expect_close(
        torch::autograd::grad({frozen.loss()}, {*frozen.variables()[i]})[0],
        all[i]);
  }
}

TEST(SampledLinearCrossEntropyTest, OnlyHitsGiveNoLoss) {
  Sample sample(3, 20, 4);
  sample.positive_ids.fill_(2);
  sample.negative_ids.fill_(2);
  const at::Tensor loss = sample.loss();
  EXPECT_EQ(loss.item<double>(), 0.0);
  for (const at::Tensor& gradient : gradients_of(loss, sample)) {
    EXPECT_TRUE(at::equal(gradient, at::zeros_like(gradient)));
  }
}

TEST(SampledLinearCrossEntropyTest, RefusesWrongInputs) {
  const auto with = [](at::Tensor Sample::*field, at::Tensor value) {
    Sample sample(2, 4, 3);
    sample.*field = std::move(value);
    return sample;
  };
  const std::string where = "[sampled_linear_cross_entropy] ";
  for (const auto& [sample, text] : std::vector<std::pair<Sample, std::string>>{
           {with(&Sample::states, at::randn({0, 3})),
            "states must be a matrix"},
           {with(&Sample::negatives, at::randn({0, 3})),
            "negatives must be a matrix of one row or more"},
           {with(&Sample::positives, at::randn({3, 3})),
            "positives must have shape [2, dim], one row per state, but got 3 "
            "rows"},
           {with(&Sample::negatives, at::randn({4, 2})),
            "states and negatives must have the same dim, but got 3 and 2"},
           {with(&Sample::positive_ids, int64s({1})),
            "positive_ids must have shape [2]"},
           {with(&Sample::negative_ids, {}),
            "negative_ids must have shape [4], one per row of negatives, but "
            "got no tensor"},
           {with(&Sample::positives, at::full({2, 3}, NAN)),
            "the loss must be finite"},
           {with(&Sample::positives, at::full({2, 3}, INFINITY)),
            "the loss must be finite"}}) {
    EXPECT_VALUE_ERROR(sample.loss(), where + text);
  }
  EXPECT_TYPE_ERROR(
      with(&Sample::negatives, at::randn({4, 3}, at::kDouble)).loss(),
      "must have the same dtype");
  EXPECT_TYPE_ERROR(
      with(&Sample::positive_ids, floats({0, 1})).loss(),
      "positive_ids must be int32 or int64");
}

}  // namespace tessera::test::linear_cross_entropy_test
