// SPDX-License-Identifier: Apache-2.0
#include <tessera/models/sampled_losses.h>

#include "tests/golden_util.h"
#include "tests/layers/gradient_check.h"

namespace tessera::test::sampled_losses_test {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

using Loss = std::function<at::Tensor(const SampledScores&, LossReduction)>;

const std::map<std::string, Loss> kLosses{
    {"bpr_loss",
     [](const SampledScores& scores, LossReduction reduction) {
       return bpr_loss(scores, {.reduction = reduction});
     }},
    {"warp_loss",
     [](const SampledScores& scores, LossReduction reduction) {
       return warp_loss(scores, {.num_items = 100, .reduction = reduction});
     }},
    {"sampled_softmax_loss",
     [](const SampledScores& scores, LossReduction reduction) {
       return sampled_softmax_loss(scores, {.reduction = reduction});
     }}};

TEST(SampledLossesTest, SampledSoftmaxMatchesTensorFlow) {
  const Json golden = read_golden("ranking.json")["sampled_softmax"];
  ASSERT_EQ(golden.size(), 2U);
  for (const Json& json : golden) {
    const auto doubles = [&](const char* key) {
      return at::tensor(json[key].get<std::vector<double>>(), at::kDouble);
    };
    const auto ids = [&](const char* key) {
      return at::tensor(json[key].get<std::vector<int64_t>>(), at::kLong);
    };
    const int64_t dim = json["dim"];
    const at::Tensor vectors = doubles("vectors").view({-1, dim});
    const at::Tensor queries =
        doubles("queries").view({-1, dim}).requires_grad_();
    const at::Tensor labels = ids("labels");
    const at::Tensor negatives = ids("negatives");
    SampledScores scores{
        .positive = (queries * vectors.index_select(0, labels)).sum(1),
        .negative = at::matmul(queries, vectors.index_select(0, negatives).t()),
        .positive_probability = doubles("label_probability"),
        .negative_probability = doubles("negative_probability")};
    if (json["remove_accidental_hits"]) {
      scores.positive_ids = labels;
      scores.negative_ids = negatives;
    }
    const at::Tensor loss =
        sampled_softmax_loss(scores, {.reduction = LossReduction::kSum});
    EXPECT_NEAR(loss.item<double>(), json["loss"].get<double>(), 1e-11);
    loss.backward();
    expect_close(
        queries.grad(), doubles("gradient").view({-1, dim}), 1e-10, 1e-12);
  }
}

// If all other items are sampled, it is the softmax over all items.
TEST(SampledLossesTest, SampledSoftmaxOfAllItemsIsTheSoftmax) {
  const at::Tensor scores = at::randn({3, 6}, at::kDouble);
  const at::Tensor clicks = int64s({2, 0, 5});
  const at::Tensor all = int64s({0, 1, 2, 3, 4, 5});
  const double loss =
      sampled_softmax_loss(
          {.positive = scores.gather(1, clicks.unsqueeze(1)).squeeze(1) * 0.3,
           .negative = scores * 0.3,
           .positive_ids = clicks,
           .negative_ids = all.expand({3, 6})},
          {.temperature = 0.3})
          .item<double>();
  EXPECT_NEAR(
      loss, at::cross_entropy_loss(scores, clicks).item<double>(), 1e-12);
}

// Compares the weighted sum over examples with and without accidental hits. `of` gives the loss
// of an example from the scores of its positive item and its negatives.
void expect_formula(
    SampledScores scores,
    const std::function<at::Tensor(const SampledScores&)>& loss,
    const std::function<double(double, const std::vector<double>&)>& of) {
  const int64_t batch = scores.negative.size(0);
  const int64_t negatives = scores.negative.size(1);
  scores.weights = at::rand({batch});  // may have another dtype than the scores
  for (const at::Tensor& negative_ids :
       {at::Tensor(),
        at::randint(5, {negatives}, at::kLong),
        at::randint(5, {batch, negatives}, at::kLong)}) {
    at::Tensor is_hit = at::zeros({batch, negatives}, at::kBool);
    if (negative_ids.defined()) {
      scores.positive_ids = at::randint(5, {batch}, at::kLong);
      scores.positive_ids[0] = negative_ids.view({-1})[0];  // one hit or more
      scores.negative_ids = negative_ids;
      is_hit = scores.positive_ids.unsqueeze(1).eq(negative_ids);
    }
    double expected = 0.0;
    for (int64_t i = 0; i < batch; ++i) {
      std::vector<double> left;
      for (int64_t j = 0; j < negatives; ++j) {
        if (!is_hit[i][j].item<bool>()) {
          left.push_back(scores.negative[i][j].item<double>());
        }
      }
      expected += scores.weights[i].item<double>() *
          of(scores.positive[i].item<double>(), left);
    }
    EXPECT_NEAR(loss(scores).item<double>() / expected, 1.0, 1e-12);
  }
}

double mean_of(const std::vector<double>& values, auto&& function) {
  double sum = 0.0;
  for (const double value : values) {
    sum += function(value);
  }
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

TEST(SampledLossesTest, BprMatchesItsFormula) {
  expect_formula(
      {.positive = at::randn({4}, at::kDouble),
       .negative = at::randn({4, 3}, at::kDouble)},
      [](const auto& scores) {
        return 4.0 * bpr_loss(scores, {.temperature = 0.5});
      },
      [](double positive, const auto& negative) {
        return mean_of(negative, [&](double score) {
          return std::log1p(std::exp((score - positive) / 0.5));
        });
      });
}

TEST(SampledLossesTest, WarpMatchesItsAlgorithm) {
  for (const int64_t num_items : {2, 7, 1682}) {
    for (const double margin : {0.0, 0.2, 1.0}) {
      expect_formula(
          {.positive = at::randn({50}, at::kDouble) + 1.0,
           .negative = at::randn({50, 6}, at::kDouble)},
          [&](const auto& scores) {
            return warp_loss(
                scores,
                {.num_items = num_items,
                 .margin = margin,
                 .reduction = LossReduction::kSum});
          },
          // Algorithm 1 of the paper, with the negatives as the samples.
          [&](double positive, const auto& negative) {
            int64_t tries = 0;
            for (const double score : negative) {
              ++tries;
              const double distance = margin + score - positive;
              if (distance > 0.0) {
                double sum = 0.0;
                for (int64_t rank =
                         std::max<int64_t>(1, (num_items - 1) / tries);
                     rank > 0;
                     --rank) {
                  sum += 1.0 / static_cast<double>(rank);
                }
                return sum * distance;
              }
            }
            return 0.0;
          });
    }
  }
}

TEST(SampledLossesTest, CosineContrastiveMatchesItsFormula) {
  SampledScores scores{
      .positive = at::rand({4}, at::kDouble) * 2.0 - 1.0,
      .negative = at::rand({4, 3}, at::kDouble) * 2.0 - 1.0};
  const auto loss = [](const SampledScores& some) {
    return cosine_contrastive_loss(
        some,
        {.margin = -0.3,
         .negative_weight = 7.0,
         .reduction = LossReduction::kSum});
  };
  expect_formula(scores, loss, [](double positive, const auto& negative) {
    return 1.0 - positive + 7.0 * mean_of(negative, [](double score) {
                              return std::max(0.0, score - (-0.3));
                            });
  });
  scores.positive.requires_grad_();
  scores.negative.requires_grad_();
  expect_gradients(
      [&] { return loss(scores); }, {scores.positive, scores.negative});
}

TEST(SampledLossesTest, CosineContrastiveWithoutNegatives) {
  const auto loss_of = [](SampledScores scores) {
    scores.negative.requires_grad_();
    const at::Tensor loss = cosine_contrastive_loss(scores);
    loss.backward();
    expect_close(
        scores.negative.grad(), at::zeros_like(scores.negative), 0.0, 0.0);
    return loss.item<double>();
  };
  EXPECT_EQ(
      loss_of({.positive = at::zeros({0}), .negative = at::zeros({0, 3})}),
      0.0);
  EXPECT_EQ(
      loss_of({.positive = floats({0.5F}), .negative = at::zeros({1, 0})}),
      0.5);
  // All negatives are accidental hits. Their scores may be anything.
  EXPECT_EQ(
      loss_of(
          {.positive = floats({0.5F}),
           .negative = floats({9.0F, kNan}).view({1, 2}),
           .positive_ids = int64s({4}),
           .negative_ids = int64s({4, 4})}),
      0.5);
}

TEST(SampledLossesTest, CosineContrastiveRefusesBadInput) {
  const SampledScores good{
      .positive = at::ones({2}), .negative = at::ones({2, 3})};
  cosine_contrastive_loss(good);
  EXPECT_TRUE(std::isnan(cosine_contrastive_loss({.positive = floats({kNan}),
                                                  .negative = at::ones({1, 1})})
                             .item<double>()));
  EXPECT_VALUE_ERROR(
      cosine_contrastive_loss({}),
      "[cosine_contrastive_loss] positive must be a dense tensor");
  EXPECT_VALUE_ERROR(
      cosine_contrastive_loss(
          {.positive = at::ones({2}), .negative = at::full({2, 3}, -1.5)}),
      "expected cosines, which are in [-1, 1], but a score has the absolute value 1.5");
  EXPECT_VALUE_ERROR(
      cosine_contrastive_loss(good, {.margin = kNan}), "margin must be in");
  EXPECT_VALUE_ERROR(
      cosine_contrastive_loss(good, {.negative_weight = -1.0}),
      "negative_weight must be finite and >= 0, but got -1");
  SampledScores shares = good;
  shares.positive_probability = floats({.5F, .5F});
  EXPECT_VALUE_ERROR(cosine_contrastive_loss(shares), "takes no probabilities");
}

TEST(SampledLossesTest, GradientsMatchFiniteDifferences) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const at::Tensor positive = at::randn({5}, at::kDouble).requires_grad_();
    const at::Tensor negative = at::randn({5, 4}, at::kDouble).requires_grad_();
    SampledScores scores{
        .positive = positive,
        .negative = negative,
        .positive_ids = int64s({0, 1, 2, 3, 4}),
        .negative_ids = int64s({1, 7, 1, 4}),
        .weights = at::rand({5}, at::kDouble)};
    if (name == "sampled_softmax_loss") {
      scores.positive_probability = at::rand({5}) + 0.1;
      scores.negative_probability = at::rand({5, 4}) + 0.1;
    }
    expect_gradients(
        [&, &loss = loss] { return loss(scores, LossReduction::kMean); },
        {positive, negative});
  }
}

TEST(SampledLossesTest, ExamplesWithoutNegativesHaveLossZero) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const auto expect_zero = [&loss = loss](SampledScores scores) {
      for (const auto reduction : {LossReduction::kSum, LossReduction::kMean}) {
        scores.positive = scores.positive.detach().clone().requires_grad_();
        scores.negative = scores.negative.detach().clone().requires_grad_();
        const at::Tensor value = loss(scores, reduction);
        EXPECT_EQ(value.dim(), 0);
        EXPECT_EQ(value.item<double>(), 0.0);
        value.backward();
        for (const at::Tensor& source : {scores.positive, scores.negative}) {
          expect_close(source.grad(), at::zeros_like(source), 0.0, 0.0);
        }
      }
    };
    expect_zero({.positive = at::zeros({0}), .negative = at::zeros({0, 3})});
    expect_zero({.positive = at::ones({2}), .negative = at::zeros({2, 0})});
    // All negatives are accidental hits. Their scores may be anything.
    expect_zero(
        {.positive = at::ones({2}),
         .negative = at::full({2, 3}, kNan),
         .positive_ids = int64s({4, 4}),
         .negative_ids = int64s({4, 4, 4})});
    expect_zero(
        {.positive = at::randn({2}),
         .negative = at::randn({2, 3}),
         .weights = at::zeros({2})});
  }
}

TEST(SampledLossesTest, NanAndLargeScores) {
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const auto value = [&loss = loss](float positive, float negative) {
      return loss(
                 {.positive = floats({positive}),
                  .negative = floats({negative}).view({1, 1})},
                 LossReduction::kSum)
          .item<double>();
    };
    // fit() sees a NaN of the model as a loss that is not finite.
    EXPECT_TRUE(std::isnan(value(kNan, 0)));
    EXPECT_TRUE(std::isnan(value(0, kNan)));
    EXPECT_EQ(value(1000, -1000), 0.0);
    EXPECT_GE(value(-1000, 1000), 2000.0);
    EXPECT_TRUE(std::isfinite(value(-1000, 1000)));
  }
}

TEST(SampledLossesTest, RefuseBadInput) {
  const at::Tensor positive = at::ones({2});
  const at::Tensor negative = at::ones({2, 3});
  for (const auto& [name, loss] : kLosses) {
    SCOPED_TRACE(name);
    const auto run = [&loss = loss](const SampledScores& scores) {
      loss(scores, LossReduction::kMean);
    };
    const SampledScores good{.positive = positive, .negative = negative};
    const auto with = [&](at::Tensor SampledScores::*field, at::Tensor value) {
      SampledScores scores = good;
      scores.*field = std::move(value);
      return scores;
    };
    run(good);
    EXPECT_VALUE_ERROR(
        run({}), "[" + name + "] positive must be a dense tensor");
    EXPECT_VALUE_ERROR(
        run(with(&SampledScores::negative, positive)), "[batch, negatives]");
    EXPECT_VALUE_ERROR(
        run(with(&SampledScores::negative, at::ones({3, 2}))),
        "the same batch size, dtype and device");
    EXPECT_VALUE_ERROR(
        run(with(&SampledScores::negative, negative.to(at::kDouble))),
        "the same batch size, dtype and device");
    EXPECT_TYPE_ERROR(
        run(with(&SampledScores::positive, int64s({1, 2}))), "must be floats");
    EXPECT_VALUE_ERROR(
        run(with(&SampledScores::weights, floats({1, -1}))),
        "weights must be finite and >= 0");
    EXPECT_VALUE_ERROR(
        run(with(&SampledScores::weights, floats({1}))),
        "weights must be a dense tensor of shape [2]");
    EXPECT_VALUE_ERROR(
        run(with(&SampledScores::positive_ids, int64s({1, 2}))),
        "but got only those of positive items");
    SampledScores ids = with(&SampledScores::positive_ids, int64s({1, 2}));
    ids.negative_ids = floats({1, 2, 3});
    EXPECT_TYPE_ERROR(run(ids), "ids must be int32 or int64");
    ids.negative_ids = int64s({1, 2});
    EXPECT_VALUE_ERROR(run(ids), "negative_ids must be a dense tensor");
    ids.negative_ids = int64s({1, 2, 3});
    ids.positive_ids = int64s({1});
    EXPECT_VALUE_ERROR(run(ids), "positive_ids must be a dense tensor");
    SampledScores shares =
        with(&SampledScores::positive_probability, floats({.5F, .5F}));
    if (name != "sampled_softmax_loss") {
      EXPECT_VALUE_ERROR(run(shares), "takes no probabilities");
      continue;
    }
    EXPECT_VALUE_ERROR(run(shares), "but got only one");
    shares.negative_probability = floats({.5F, .5F, 0});
    EXPECT_VALUE_ERROR(run(shares), "must be > 0 and finite");
    shares.negative_probability = floats({.5F, .5F, kNan});
    EXPECT_VALUE_ERROR(run(shares), "must be > 0 and finite");
    shares.negative_probability = int64s({1, 1, 1});
    EXPECT_TYPE_ERROR(run(shares), "negative_probability must be floats");
    shares.negative_probability = floats({1, 1, 1}).requires_grad_();
    EXPECT_VALUE_ERROR(run(shares), "must not require a gradient");
    shares.negative_probability = floats({1, 1});
    EXPECT_VALUE_ERROR(run(shares), "negative_probability must be a dense");
  }
  const SampledScores good{.positive = positive, .negative = negative};
  EXPECT_VALUE_ERROR(
      bpr_loss(good, {.temperature = 0.0}), "temperature must be > 0");
  EXPECT_VALUE_ERROR(
      sampled_softmax_loss(good, {.temperature = kNan}), "temperature must be");
  EXPECT_VALUE_ERROR(warp_loss(good, {}), "num_items must be >= 2, but got 0");
  EXPECT_VALUE_ERROR(
      warp_loss(good, {.num_items = 9, .margin = -1.0}), "margin must be");
}

}  // namespace tessera::test::sampled_losses_test
