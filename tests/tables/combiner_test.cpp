// SPDX-License-Identifier: Apache-2.0
#include <tessera/tables/combiner.h>

#include "src/tables/combiner_operators.h"
#include "src/tables/combiner_rule.h"
#include "tests/test_util.h"

namespace tessera {
namespace {

// The formula of a combiner in combiner.h.
struct Formula {
  Combiner combiner;
  const char* name;
  std::function<double(const std::vector<double>&)> denominator;
};

double sum(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) {
    sum += value;
  }
  return sum;
}

double sum_of_squares(const std::vector<double>& values) {
  double sum = 0.0;
  for (const double value : values) {
    sum += value * value;
  }
  return sum;
}

const std::vector<Formula>& formulas() {
  static const std::vector<Formula> formulas = {
      {Combiner::kSum, "sum", [](const auto&) { return 1.0; }},
      {Combiner::kMean, "mean", sum},
      {Combiner::kSqrtn, "sqrtn", [](const auto& weights) {
         return std::sqrt(sum_of_squares(weights));
       }}};
  return formulas;
}

double denominator(Combiner combiner, const std::vector<double>& weights) {
  double total = 0.0;
  for (const double weight : weights) {
    total += combiner_term(combiner, weight);
  }
  return combiner_denominator(combiner, total);
}

const std::vector<double> kWeights = {0.5, 2.0, 1.25};

TEST(CombinerTest, EveryCombinerHasAFormulaInThisTest) {
  size_t count = 1;
  for (auto combiner = Combiner::kSum; next_combiner(combiner); ++count) {
    combiner = *next_combiner(combiner);
  }
  EXPECT_EQ(count, formulas().size());
}

TEST(CombinerTest, DenominatorsFollowTheFormulas) {
  for (const Formula& formula : formulas()) {
    EXPECT_DOUBLE_EQ(
        denominator(formula.combiner, kWeights), formula.denominator(kWeights))
        << formula.name;
    EXPECT_EQ(is_divided(formula.combiner), formula.combiner != Combiner::kSum);
  }
}

TEST(CombinerTest, TensorsAgreeWithNumbers) {
  const at::Tensor weights = at::tensor(kWeights, at::kDouble);
  for (const Formula& formula : formulas()) {
    const at::Tensor total =
        combiner_term(formula.combiner, weights).sum(0, /*keepdim=*/true);
    EXPECT_DOUBLE_EQ(
        combiner_denominator(formula.combiner, total).item<double>(),
        formula.denominator(kWeights))
        << formula.name;
  }
}

TEST(CombinerTest, WeightFactorsAreDerivativesOfTheDenominator) {
  constexpr double kStep = 1e-6;
  for (const Formula& formula : formulas()) {
    const double scale = 1.0 / formula.denominator(kWeights);
    for (size_t i = 0; i < kWeights.size(); ++i) {
      std::vector<double> more = kWeights;
      std::vector<double> less = kWeights;
      more[i] += kStep;
      less[i] -= kStep;
      const double slope =
          (formula.denominator(more) - formula.denominator(less)) /
          (2.0 * kStep);
      EXPECT_NEAR(
          combiner_weight_factor(formula.combiner, kWeights[i], scale),
          slope * scale * scale,
          1e-9)
          << formula.name;
    }
  }
}

TEST(CombinerTest, NamesRoundTrip) {
  for (const Formula& formula : formulas()) {
    EXPECT_EQ(to_string(formula.combiner), formula.name);
    EXPECT_EQ(combiner_from_string(formula.name), formula.combiner);
  }
  EXPECT_VALUE_ERROR(
      combiner_from_string("max"),
      "[Combiner] combiner must be one of sum, mean, sqrtn, but got 'max'.");
  EXPECT_VALUE_ERROR(combiner_from_string(""), "but got ''");
}

}  // namespace
}  // namespace tessera
