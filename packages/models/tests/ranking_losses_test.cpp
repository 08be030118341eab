// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/ranking_losses.h>

#include "tests/golden_util.h"
#include "tests/layers/gradient_check.h"

namespace tessera::test::ranking_losses_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Loss = at::Tensor (*)(const RankingLists&, const RankingLossOptions&);

const std::map<std::string, Loss> kLosses{
    {"pairwise_hinge", pairwise_hinge_loss},
    {"pairwise_logistic", pairwise_logistic_loss},
    {"pairwise_soft_zero_one", pairwise_soft_zero_one_loss},
    {"pairwise_mean_squared", pairwise_mean_squared_loss},
    {"list_softmax", list_softmax_loss},
    {"list_mle", list_mle_loss}};

bool has_one_value_per_list(const std::string& name) {
  return name.starts_with("list_");
}

TEST(RankingLossesTest, MatchKerasRsWithGradients) {
  const Json golden = read_golden("ranking.json")["losses"];
  ASSERT_EQ(golden.size(), 10U);
  int compared = 0;
  for (const Json& json : golden) {
    const auto shape = json["shape"].get<std::vector<int64_t>>();
    const auto doubles = [&](const Json& values) {
      return at::tensor(values.get<std::vector<double>>(), at::kDouble);
    };
    for (const Json& result : json["results"]) {
      SCOPED_TRACE(
          json["name"].get<std::string>() + " " +
          result["loss"].get<std::string>());
      RankingLists lists{
          .scores = doubles(json["scores"]).view(shape).requires_grad_(),
          .labels = doubles(json["labels"]).view(shape)};
      if (!json["mask"].is_null()) {
        lists.mask = doubles(json["mask"]).view(shape).to(at::kBool);
      }
      if (!json["weights"].is_null()) {
        lists.weights = doubles(json["weights"]);
        if (lists.weights.numel() > shape[0]) {
          lists.weights = lists.weights.view(shape);
        }
      }
      const at::Tensor loss = kLosses.at(result["loss"])(
          lists,
          {.temperature = result["temperature"],
           .reduction = loss_reduction_from_string(result["reduction"])});
      // Keras-RS adds 1e-10 to the sum of exponentials of list MLE.
      const double tolerance = result["loss"] == "list_mle" ? 1e-6 : 1e-12;
      const double expected = result["result"];
      EXPECT_NEAR(loss.item<double>(), expected, tolerance * (1.0 + expected));
      loss.backward();
      expect_close(
          lists.scores.grad(),
          doubles(result["gradient"]).view(shape),
          tolerance,
          tolerance);
      ++compared;
    }
  }
  // Ten cases with two reductions, and two temperatures for all but one loss.
  EXPECT_EQ(compared, 10 * 2 * (3 * 2 + 1) + 7 * 2 * 2);
}

TEST(RankingLossesTest, ListSoftmaxMatchesItsFormula) {
  const at::Tensor scores = at::randn({3, 4}, at::kDouble);
  const at::Tensor labels = at::randint(0, 3, {3, 4}).to(at::kDouble);
  const at::Tensor mask =
      floats({1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1}).view({3, 4}).to(at::kBool);
  const at::Tensor weights = floats({1, 2, 0.5F});
  double expected = 0.0;
  for (int64_t i = 0; i < 3; ++i) {
    double sum = 0.0, loss = 0.0;
    const auto score = [&](int64_t j) {
      return scores[i][j].item<double>() / 0.5;
    };
    for (int64_t j = 0; j < 4; ++j) {
      sum += mask[i][j].item<bool>() ? std::exp(score(j)) : 0.0;
    }
    for (int64_t j = 0; j < 4; ++j) {
      if (mask[i][j].item<bool>()) {
        loss -= labels[i][j].item<double>() * (score(j) - std::log(sum));
      }
    }
    expected += weights[i].item<double>() * loss / 3.0;
  }
  EXPECT_NEAR(
      list_softmax_loss(
          {.scores = scores,
           .labels = labels,
           .mask = mask,
           .weights = weights},
          {.temperature = 0.5})
          .item<double>(),
      expected,
      1e-12);
  // With one relevant item, it is the cross entropy.
  const at::Tensor clicks = int64s({2, 0, 3});
  EXPECT_NEAR(
      list_softmax_loss(
          {.scores = scores,
           .labels = at::zeros({3, 4}).scatter(1, clicks.unsqueeze(1), 1.0)})
          .item<double>(),
      at::cross_entropy_loss(scores, clicks).item<double>(),
      1e-12);
}

TEST(RankingLossesTest, GradientsMatchFiniteDifferences) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const at::Tensor scores = at::randn({4, 5}, at::kDouble).requires_grad_();
    const at::Tensor labels = at::randint(-1, 4, {4, 5});
    const at::Tensor mask = at::rand({4, 5}) > 0.2;
    const at::Tensor weights = has_one_value_per_list(name)
        ? at::rand({4}, at::kDouble)
        : at::rand({4, 5}, at::kDouble);
    expect_gradients(
        [&, &loss = loss, &name = name] {
          return loss(
              {.scores = scores,
               .labels = labels,
               .mask = mask,
               .weights = weights},
              {.temperature = name == "pairwise_mean_squared" ? 1.0 : 0.7});
        },
        {scores});
  }
}

TEST(RankingLossesTest, EmptyAndUniformListsHaveLossZero) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const auto expect_zero = [&loss = loss](RankingLists lists) {
      for (const auto reduction : {LossReduction::kSum, LossReduction::kMean}) {
        lists.scores = lists.scores.detach().clone().requires_grad_();
        const at::Tensor value = loss(lists, {.reduction = reduction});
        EXPECT_EQ(value.dim(), 0);
        EXPECT_EQ(value.item<double>(), 0.0);
        value.backward();
        // The gradient of a list of one item is a difference of two ones.
        expect_close(
            lists.scores.grad(), at::zeros_like(lists.scores), 0.0, 1e-7);
      }
    };
    const at::Tensor scores = at::randn({3, 4});
    expect_zero({.scores = at::zeros({0, 4}), .labels = at::zeros({0, 4})});
    expect_zero({.scores = at::zeros({3, 0}), .labels = at::zeros({3, 0})});
    // All items are left out, by labels or by the mask.
    expect_zero({.scores = scores, .labels = at::full({3, 4}, -1)});
    expect_zero(
        {.scores = scores,
         .labels = at::ones({3, 4}),
         .mask = at::zeros({3, 4}, at::kBool)});
    expect_zero(
        {.scores = scores,
         .labels = at::randint(0, 3, {3, 4}),
         .weights = at::zeros({3})});
    // One class only has no pairs, and no relevant item.
    if (name != "list_mle" && name != "pairwise_mean_squared") {
      expect_zero({.scores = scores, .labels = at::zeros({3, 4})});
    }
    // One item has no other order.
    expect_zero({.scores = at::randn({3, 1}), .labels = at::ones({3, 1})});
  }
}

TEST(RankingLossesTest, ItemsThatAreLeftOutMayHaveAnyScore) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const at::Tensor labels = floats({2, -1, 0, 1, 0, 1}).view({2, 3});
    const at::Tensor mask =
        floats({1, 1, 1, 1, 0, 1}).view({2, 3}).to(at::kBool);
    const auto run = [&, &loss = loss](float a, float b) {
      const at::Tensor scores =
          floats({.1F, a, .7F, .4F, b, .2F}).view({2, 3}).requires_grad_();
      const at::Tensor value =
          loss({.scores = scores, .labels = labels, .mask = mask}, {});
      value.backward();
      return std::pair{value.item<double>(), scores.grad()};
    };
    const auto [expected, gradient] = run(0, 0);
    EXPECT_GT(expected, 0.0);
    EXPECT_EQ(gradient[0][1].item<float>(), 0.0F);
    EXPECT_EQ(gradient[1][1].item<float>(), 0.0F);
    const auto [actual, other] = run(kNan, kInfinity);
    EXPECT_EQ(actual, expected);
    expect_close(other, gradient, 0.0, 0.0);
    // fit() sees a NaN of the model as a loss that is not finite.
    const at::Tensor broken = floats({kNan, 0, 1}).view({1, 3});
    EXPECT_TRUE(
        std::isnan(loss({.scores = broken, .labels = labels.slice(0, 0, 1)}, {})
                       .item<double>()));
  }
}

TEST(RankingLossesTest, LargeScoresDoNotOverflow) {
  for (const auto& [name, loss] : kLosses) {
    const at::Tensor scores = floats({-1000, 1000}).view({1, 2});
    const double value =
        loss(
            {.scores = scores, .labels = floats({1, 0}).view({1, 2})},
            {.reduction = LossReduction::kSum})
            .item<double>();
    EXPECT_TRUE(std::isfinite(value)) << name;
    EXPECT_GT(value, 0.9) << name;
  }
  EXPECT_EQ(
      list_mle_loss({.scores = floats({-1000, 1000}).view({1, 2}),
                     .labels = floats({1, 0}).view({1, 2})})
          .item<double>(),
      2000.0);
}

TEST(RankingLossesTest, TakeEveryFloat) {
  for (const auto& [name, loss] : kLosses) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      EXPECT_EQ(
          loss(
              {.scores = at::randn({2, 3}).to(dtype),
               .labels = at::randint(0, 2, {2, 3})},
              {})
              .scalar_type(),
          dtype)
          << name;
    }
  }
}

TEST(RankingLossesTest, RefuseBadInput) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const at::Tensor good = at::ones({2, 3});
    const auto run = [&loss = loss](
                         RankingLists lists, RankingLossOptions options = {}) {
      loss(lists, options);
    };
    expect_refusals<RankingLists>(
        {{{}, "[" + name + "_loss] scores must be a dense tensor of shape"},
         {{.scores = good[0], .labels = good[0]}, "shape [queries, list]"},
         {{.scores = good}, "labels must be a dense tensor"},
         {{.scores = good, .labels = at::ones({2, 4})},
          "shape [2, 3], but got Float of shape [2, 4]"},
         {{.scores = good, .labels = at::full({2, 3}, kNan)},
          "labels must be finite"},
         {{.scores = good, .labels = at::full({2, 3}, kInfinity)},
          "labels must be finite"},
         {{.scores = good, .labels = good, .mask = at::ones({2}, at::kBool)},
          "mask must be a dense tensor of shape [2, 3]"},
         {{.scores = good, .labels = good, .weights = floats({1, -1})},
          "weights must be finite and >= 0"},
         {{.scores = good, .labels = good, .weights = floats({1, kNan})},
          "weights must be finite and >= 0"},
         {{.scores = good, .labels = good, .weights = floats({1})},
          "weights must be a dense tensor of shape [2]"}},
        run);
    EXPECT_TYPE_ERROR(
        run({.scores = good.to(at::kLong), .labels = good}), "must be floats");
    EXPECT_TYPE_ERROR(
        run({.scores = good, .labels = good, .mask = good}),
        "mask must be bool");
    EXPECT_TYPE_ERROR(
        run({.scores = good, .labels = good, .weights = int64s({1, 1})}),
        "weights must be floats");
    if (has_one_value_per_list(name)) {
      EXPECT_VALUE_ERROR(
          run({.scores = good, .labels = good, .weights = good}),
          "weights must be a dense tensor of shape [2]");
    }
    for (const double temperature : {0.0, -1.0, double{kNan}}) {
      EXPECT_VALUE_ERROR(
          run({.scores = good, .labels = good}, {.temperature = temperature}),
          "temperature must be ");
    }
  }
  EXPECT_VALUE_ERROR(
      pairwise_mean_squared_loss({}, {.temperature = 2.0}),
      "temperature must be 1, but got 2");
}

}  // namespace tessera::test::ranking_losses_test
