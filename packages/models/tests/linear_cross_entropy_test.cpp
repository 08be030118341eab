// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/linear_cross_entropy.h>

#include "tests/layers/gradient_check.h"

namespace tessera::test::linear_cross_entropy_test {

// The formula of the docstring in plain loops over doubles.
double plain_loss(
    const at::Tensor& states,
    const at::Tensor& rows,
    const at::Tensor& targets) {
  const at::Tensor scores =
      at::matmul(states.to(at::kDouble), rows.to(at::kDouble).t());
  const auto score = scores.accessor<double, 2>();
  const auto target = targets.accessor<int64_t, 1>();
  double total = 0.0;
  for (int64_t i = 0; i < scores.size(0); ++i) {
    double sum = 0.0;
    for (int64_t c = 0; c < scores.size(1); ++c) {
      sum += std::exp(score[i][c]);
    }
    total += std::log(sum) - score[i][target[i]];
  }
  return total / static_cast<double>(scores.size(0));
}

TEST(LinearCrossEntropyTest, MatchesItsFormulaAndTorchsGradients) {
  struct Sizes {
    int64_t states, classes, dim;
  };
  for (const auto& [count, classes, dim] :
       {Sizes{1, 1, 1},
        Sizes{3, 5, 7},
        Sizes{65, 37, 16},
        Sizes{1100, 130, 24}}) {
    const at::Tensor states = at::randn({count, dim}).requires_grad_();
    const at::Tensor rows = at::randn({classes, dim}).requires_grad_();
    const at::Tensor targets = at::randint(classes, {count}, at::kLong);
    const at::Tensor loss = linear_cross_entropy(states, rows, targets);
    EXPECT_NEAR(
        loss.item<double>(),
        plain_loss(states, rows, targets),
        1e-5 * (1.0 + loss.item<double>()));
    // A factor in front of the loss reaches the gradients.
    const auto gradients = torch::autograd::grad({3.0 * loss}, {states, rows});
    const at::Tensor states64 =
        states.detach().to(at::kDouble).requires_grad_();
    const at::Tensor rows64 = rows.detach().to(at::kDouble).requires_grad_();
    const auto expected = torch::autograd::grad(
        {3.0 *
         at::cross_entropy_loss(at::matmul(states64, rows64.t()), targets)},
        {states64, rows64});
    expect_close(gradients[0], expected[0], 1e-4, 1e-6);
    expect_close(gradients[1], expected[1], 1e-4, 1e-6);
    const at::Tensor frozen =
        linear_cross_entropy(states.detach(), rows.detach(), targets);
    EXPECT_FALSE(frozen.requires_grad());
    EXPECT_EQ(frozen.item<double>(), loss.item<double>());
    EXPECT_EQ(
        linear_cross_entropy(states, rows, targets.to(at::kInt)).item<double>(),
        loss.item<double>());
  }
}

// Second derivatives in float32 against those in float64. `loss_in` gives the loss and its
// variables.
template <class LossIn>
void expect_second_derivatives(LossIn loss_in) {
  const auto second_in = [&](at::ScalarType dtype) {
    const auto [loss, variables] = loss_in(dtype);
    const auto gradients = torch::autograd::grad(
        {loss}, variables, {}, true, /*create_graph=*/true);
    at::Tensor squares = at::zeros({}, dtype);
    for (const at::Tensor& gradient : gradients) {
      squares = squares + gradient.square().sum();
    }
    return torch::autograd::grad({squares}, variables);
  };
  const auto second = second_in(at::kFloat);
  const auto expected = second_in(at::kDouble);
  for (size_t i = 0; i < second.size(); ++i) {
    expect_close(second[i], expected[i], 1e-4, 1e-5);
  }
}

void expect_same_bits_for_all_threads(
    const std::function<at::Tensor()>& loss_of,
    const std::vector<at::Tensor>& variables) {
  std::vector<std::vector<at::Tensor>> results;
  for (const int count : {1, 3}) {
    const Threads threads(count);
    const at::Tensor loss = loss_of();
    results.push_back(torch::autograd::grad({loss}, variables));
    results.back().push_back(loss.detach());
  }
  for (size_t i = 0; i < results[0].size(); ++i) {
    EXPECT_TRUE(at::equal(results[0][i], results[1][i])) << i;
  }
}

TEST(LinearCrossEntropyTest, GradientsMatchFiniteDifferences) {
  const at::Tensor states = at::randn({4, 3}, at::kDouble).requires_grad_();
  const at::Tensor rows = at::randn({5, 3}, at::kDouble).requires_grad_();
  const at::Tensor targets = int64s({0, 4, 2, 2});
  expect_gradients(
      [&] { return linear_cross_entropy(states, rows, targets); },
      {states, rows});
}

TEST(LinearCrossEntropyTest, HasSecondDerivatives) {
  const at::Tensor values = at::randn({4, 3});
  const at::Tensor row_values = at::randn({5, 3});
  expect_second_derivatives([&](at::ScalarType dtype) {
    const at::Tensor states = values.to(dtype, false, true).requires_grad_();
    const at::Tensor rows = row_values.to(dtype, false, true).requires_grad_();
    return std::pair(
        linear_cross_entropy(states, rows, int64s({0, 4, 2, 2})),
        std::vector<at::Tensor>{states, rows});
  });
}

TEST(LinearCrossEntropyTest, NumberOfThreadsDoesNotChangeTheBits) {
  const at::Tensor states = at::randn({700, 32}).requires_grad_();
  const at::Tensor rows = at::randn({150, 32}).requires_grad_();
  const at::Tensor targets = at::randint(150, {700}, at::kLong);
  expect_same_bits_for_all_threads(
      [&] { return linear_cross_entropy(states, rows, targets); },
      {states, rows});
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

// --- with sampled negatives ---

struct Sample {
  at::Tensor states, positives, negatives, positive_ids, negative_ids;

  Sample(int64_t count, int64_t num_negatives, int64_t dim)
      : states(at::randn({count, dim}).requires_grad_()),
        positives(at::randn({count, dim}).requires_grad_()),
        negatives(at::randn({num_negatives, dim}).requires_grad_()),
        // So few that there are accidental hits.
        positive_ids(at::randint(7, {count}, at::kLong)),
        negative_ids(at::randint(7, {num_negatives}, at::kLong)) {}

  std::vector<at::Tensor> variables() const {
    return {states, positives, negatives};
  }
  at::Tensor loss() const {
    return sampled_linear_cross_entropy(
        states, positives, negatives, positive_ids, negative_ids);
  }
  Sample in(at::ScalarType dtype) const {
    Sample result = *this;
    for (at::Tensor* tensor :
         {&result.states, &result.positives, &result.negatives}) {
      *tensor = tensor->detach().to(dtype, false, true).requires_grad_();
    }
    return result;
  }
};

// The formula of the docstring in plain loops over doubles.
double plain_loss(const Sample& sample) {
  const auto dot = [](const at::Tensor& a, const at::Tensor& b) {
    return (a.to(at::kDouble) * b.to(at::kDouble)).sum().item<double>();
  };
  double total = 0.0;
  const int64_t count = sample.states.size(0);
  for (int64_t i = 0; i < count; ++i) {
    const double own = dot(sample.states[i], sample.positives[i]);
    double sum = std::exp(own);
    for (int64_t j = 0; j < sample.negatives.size(0); ++j) {
      if (sample.negative_ids[j].item<int64_t>() !=
          sample.positive_ids[i].item<int64_t>()) {
        sum += std::exp(dot(sample.states[i], sample.negatives[j]));
      }
    }
    total += std::log(sum) - own;
  }
  return total / static_cast<double>(count);
}

TEST(SampledLinearCrossEntropyTest, MatchesItsFormulaAndDoubles) {
  struct Sizes {
    int64_t states, negatives, dim;
  };
  for (const auto& [count, negatives, dim] :
       {Sizes{1, 1, 1},
        Sizes{3, 5, 7},
        Sizes{65, 32, 16},
        Sizes{130, 33, 8},
        Sizes{1100, 15, 24}}) {
    const Sample sample(count, negatives, dim);
    const at::Tensor loss = sample.loss();
    const double expected = plain_loss(sample);
    EXPECT_NEAR(loss.item<double>(), expected, 1e-5 * (1.0 + expected));
    // A factor in front of the loss reaches the gradients.
    const auto gradients =
        torch::autograd::grad({3.0 * loss}, sample.variables());
    const Sample exact = sample.in(at::kDouble);
    EXPECT_NEAR(exact.loss().item<double>(), expected, 1e-9);
    const auto expected_gradients =
        torch::autograd::grad({3.0 * exact.loss()}, exact.variables());
    for (size_t i = 0; i < gradients.size(); ++i) {
      expect_close(gradients[i], expected_gradients[i], 1e-4, 1e-6);
    }
    const at::NoGradGuard no_gradients;
    EXPECT_EQ(sample.loss().item<double>(), loss.item<double>());
  }
}

TEST(SampledLinearCrossEntropyTest, GradientsMatchFiniteDifferences) {
  const Sample sample = Sample(4, 5, 3).in(at::kDouble);
  expect_gradients([&] { return sample.loss(); }, sample.variables());
}

TEST(SampledLinearCrossEntropyTest, HasSecondDerivatives) {
  const Sample sample(4, 5, 3);
  expect_second_derivatives([&](at::ScalarType dtype) {
    const Sample copy = sample.in(dtype);
    return std::pair(copy.loss(), copy.variables());
  });
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
  expect_close(gradient(true).detach(), gradient(false), 1e-4, 1e-5);
}

TEST(SampledLinearCrossEntropyTest, TakesViewsInt32IdsAndFrozenInputs) {
  const Sample sample(5, 6, 4);
  const at::Tensor loss = sample.loss();
  Sample other = sample;
  other.positive_ids = other.positive_ids.to(at::kInt);
  other.negative_ids = other.negative_ids.to(at::kInt);
  other.negatives = sample.negatives.t().contiguous().t();  // not contiguous
  EXPECT_EQ(other.loss().item<double>(), loss.item<double>());
  const auto all = torch::autograd::grad({loss}, sample.variables());
  for (size_t i = 0; i < 3; ++i) {
    Sample frozen = sample.in(at::kFloat);
    const std::vector<at::Tensor*> inputs{
        &frozen.states, &frozen.positives, &frozen.negatives};
    for (size_t other_input = 0; other_input < 3; ++other_input) {
      inputs[other_input]->requires_grad_(other_input == i);
    }
    expect_close(
        torch::autograd::grad({frozen.loss()}, {*inputs[i]})[0], all[i]);
  }
}

TEST(SampledLinearCrossEntropyTest, OnlyHitsGiveNoLoss) {
  Sample sample(3, 20, 4);
  sample.positive_ids.fill_(2);
  sample.negative_ids.fill_(2);
  const at::Tensor loss = sample.loss();
  EXPECT_EQ(loss.item<double>(), 0.0);
  for (const at::Tensor& gradient :
       torch::autograd::grad({loss}, sample.variables())) {
    EXPECT_TRUE(at::equal(gradient, at::zeros_like(gradient)));
  }
}

TEST(SampledLinearCrossEntropyTest, NumberOfThreadsDoesNotChangeTheBits) {
  const Sample sample(700, 150, 32);
  expect_same_bits_for_all_threads(
      [&] { return sample.loss(); }, sample.variables());
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
