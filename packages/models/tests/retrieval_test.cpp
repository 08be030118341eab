// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/layer_json.h>
#include <tessera/models/retrieval.h>

#include "tests/golden_util.h"
#include "tests/layers/gradient_check.h"

namespace tessera::test::retrieval_test {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(RetrievalTest, MatchesTfrsGolden) {
  const auto golden = read_golden("retrieval.json");
  ASSERT_EQ(golden.at("cases").size(), 13);
  for (const auto& [name, json] : golden.at("cases").items()) {
    SCOPED_TRACE(name);
    Retrieval retrieval(JsonValue<RetrievalOptions>::read(
        json.at("options"), "RetrievalOptions"));
    const at::Tensor query = golden_tensor(json.at("query")).requires_grad_();
    const at::Tensor candidate =
        golden_tensor(json.at("candidate")).requires_grad_();
    const auto optional = [&](const char* key) {
      return json.contains(key) ? golden_tensor(json.at(key)) : at::Tensor();
    };
    const at::Tensor loss = retrieval->forward(
        query,
        candidate,
        {.candidate_ids = at::tensor(
             json.at("candidate_ids").template get<std::vector<int64_t>>(),
             at::kLong),
         .candidate_sampling_probability =
             optional("candidate_sampling_probability"),
         .sample_weights = optional("sample_weight")});
    EXPECT_NEAR(
        loss.item<double>(), json.at("loss").template get<double>(), 1e-4);
    loss.backward();
    expect_close(query.grad(), golden_tensor(json.at("query_gradient")), 1e-4);
    expect_close(
        candidate.grad(), golden_tensor(json.at("candidate_gradient")), 1e-4);
  }
}

TEST(RetrievalTest, GradientsMatchFiniteDifferences) {
  for (const auto& options :
       {RetrievalOptions{},
        RetrievalOptions{
            .temperature = 0.3,
           .num_hard_negatives = 3,
           .remove_accidental_hits = true,
           .reduction = LossReduction::kMean}}) {
    Retrieval retrieval(options);
    const at::Tensor query = at::randn({5, 3}, at::kDouble).requires_grad_();
    const at::Tensor candidate =
        at::randn({7, 3}, at::kDouble).requires_grad_();
    const RetrievalBatch batch{
        .candidate_ids = int64s({0, 1, 0, 2, 3, 1, 4}),
        .candidate_sampling_probability = at::rand({7}) * 0.9 + 0.05,
        .sample_weights = at::rand({5})};
    expect_gradients(
        [&] { return retrieval->forward(query, candidate, batch); },
        {query, candidate});
  }
}

TEST(RetrievalTest, AccidentalHitsGetNoGradient) {
  Retrieval retrieval(RetrievalOptions{.remove_accidental_hits = true});
  // Candidate 1 has the id of the positive candidate of the only query.
  const at::Tensor query = floats({1.0F, 2.0F}).view({1, 2});
  const at::Tensor candidate = at::randn({3, 2}).requires_grad_();
  retrieval->forward(query, candidate, {.candidate_ids = int32s({7, 7, 8})})
      .backward();
  expect_close(candidate.grad()[1], at::zeros({2}), 0.0, 0.0);
  EXPECT_NE(candidate.grad()[2][0].item<float>(), 0.0F);
}

TEST(RetrievalTest, OnlyHitsGiveALossOfZero) {
  Retrieval retrieval(RetrievalOptions{
      .num_hard_negatives = 1, .remove_accidental_hits = true});
  const at::Tensor query = at::randn({3, 2}).requires_grad_();
  const at::Tensor loss = retrieval->forward(
      query, at::randn({3, 2}), {.candidate_ids = int64s({4, 4, 4})});
  EXPECT_EQ(loss.item<float>(), 0.0F);
  loss.backward();
  expect_close(query.grad(), at::zeros({3, 2}), 0.0, 0.0);
}

TEST(RetrievalTest, LargeScoresAreStable) {
  Retrieval retrieval;
  const at::Tensor query = floats({1e4F, -1e4F}).view({2, 1});
  const at::Tensor candidate = floats({1e4F, -1e4F}).view({2, 1});
  EXPECT_EQ(retrieval->forward(query, candidate).item<float>(), 0.0F);
  EXPECT_EQ(retrieval->forward(query, -candidate).item<float>(), 4e8F);
}

TEST(RetrievalTest, TakesProbabilitiesBelowTheRangeOfFloat32) {
  Retrieval retrieval;
  const at::Tensor zeros = at::zeros({2, 1}, at::kDouble);
  const at::Tensor probability =
      at::tensor(at::ArrayRef<double>({1e-300, 1.0}), at::kDouble);
  // The scores of both queries are -log(1e-300) and 0.
  EXPECT_NEAR(
      retrieval
          ->forward(
              zeros, zeros, {.candidate_sampling_probability = probability})
          .item<double>(),
      300.0 * std::log(10.0),
      1e-9);
}

TEST(RetrievalTest, OneQueryWithoutNegativesHasALossOfZero) {
  Retrieval retrieval(RetrievalOptions{.num_hard_negatives = 2});
  const at::Tensor one = at::ones({1, 3});
  EXPECT_EQ(retrieval->forward(one, one).item<float>(), 0.0F);
}

TEST(RetrievalTest, RefusesWrongVectors) {
  Retrieval retrieval;
  const at::Tensor good = at::ones({2, 3});
  const auto run = [&](const at::Tensor& query, const at::Tensor& candidate) {
    retrieval->forward(query, candidate);
  };
  EXPECT_VALUE_ERROR(
      run({}, good),
      "query must be a matrix of one vector or more, but got no tensor");
  EXPECT_VALUE_ERROR(run(good, at::ones({3})), "candidate must be a matrix");
  EXPECT_VALUE_ERROR(run(at::ones({2, 2, 3}), good), "query must be a matrix");
  EXPECT_VALUE_ERROR(run(at::ones({0, 3}), good), "got Float of shape [0, 3]");
  EXPECT_VALUE_ERROR(
      run(good, at::ones({2, 4})), "the same dim, but got 3 and 4");
  EXPECT_VALUE_ERROR(
      run(good, at::ones({1, 3})),
      "at least one candidate for each of the 2 queries, but got 1.");
  EXPECT_TYPE_ERROR(
      run(good, at::ones({2, 3}, at::kLong)), "must be float32 or float64");
  EXPECT_TYPE_ERROR(
      run(good, at::ones({2, 3}, at::kDouble)), "must have the same dtype");
  EXPECT_VALUE_ERROR(run(good * kNaN, good), "query must be finite");
  EXPECT_VALUE_ERROR(run(good, good * kInfinity), "candidate must be finite");
  EXPECT_VALUE_ERROR(
      run(good * 1e30, good * 1e30), "the range of Float: the loss is");
}

TEST(RetrievalTest, AcceptsAFiniteVectorWhoseSumOverflows) {
  Retrieval retrieval;
  const at::Tensor query = at::full({2, 2}, 3e38, at::kFloat);
  const at::Tensor candidate = at::full({2, 2}, 1e-38, at::kFloat);
  EXPECT_NEAR(
      retrieval->forward(query, candidate).item<float>(),
      2.0 * std::log(2.0),
      1e-5);
}

TEST(RetrievalTest, RefusesALossThatOverflows) {
  Retrieval retrieval;
  const at::Tensor query = floats({1.0F, 2.0F}).view({2, 1});
  EXPECT_VALUE_ERROR(
      retrieval->forward(
          query, query, {.sample_weights = floats({3e38F, 3e38F})}),
      "[Retrieval] the loss must be finite, but the scores, the losses or their "
      "weights exceed the range of Float: the loss is inf");
  // Scores that overflow are an error even if all weights are 0.
  EXPECT_VALUE_ERROR(
      retrieval->forward(
          query * 1e30, query * 1e30, {.sample_weights = floats({0.0F, 0.0F})}),
      "or their weights exceed the range of Float");
}

TEST(RetrievalTest, AScoreOfMinusInfinityAddsNothing) {
  Retrieval retrieval;
  const at::Tensor query = floats({1.0F, 1e30F}).view({1, 2}).requires_grad_();
  const at::Tensor candidate =
      floats({1.0F, 0.0F, 0.0F, -1e30F}).view({2, 2}).requires_grad_();
  const at::Tensor loss = retrieval->forward(query, candidate);
  EXPECT_EQ(loss.item<float>(), 0.0F);
  loss.backward();
  expect_close(query.grad(), at::zeros({1, 2}), 0.0, 0.0);
  expect_close(candidate.grad(), at::zeros({2, 2}), 0.0, 0.0);
}

TEST(RetrievalTest, RefusesWrongBatches) {
  Retrieval retrieval;
  const at::Tensor good = at::ones({2, 3});
  const auto run = [&](const RetrievalBatch& batch) {
    retrieval->forward(good, good, batch);
  };
  EXPECT_VALUE_ERROR(
      run({.candidate_ids = int64s({1})}),
      "candidate_ids must be a dense tensor of shape [2], but got Long of shape [1]");
  EXPECT_TYPE_ERROR(
      run({.candidate_ids = floats({1, 2})}), "must be int32 or int64");
  const auto probability = [&](at::Tensor values) {
    run({.candidate_sampling_probability = std::move(values)});
  };
  EXPECT_VALUE_ERROR(
      probability(floats({0.5F, 0.0F})), "must be in (0, 1], but got 0.");
  EXPECT_VALUE_ERROR(probability(floats({0.5F, -1.0F})), "but got -1");
  EXPECT_VALUE_ERROR(probability(floats({1.5F, 1.0F})), "but got 1.5");
  EXPECT_VALUE_ERROR(probability(floats({1.0F, 1.0F}) * kNaN), "but got nan");
  EXPECT_VALUE_ERROR(probability(at::ones({2, 1})), "of shape [2]");
  EXPECT_VALUE_ERROR(
      probability(floats({1.0F, 1.0F}).requires_grad_()), "Detach it");
  EXPECT_TYPE_ERROR(probability(int64s({1, 1})), "must be floats");
  const auto weights = [&](at::Tensor values) {
    run({.sample_weights = std::move(values)});
  };
  EXPECT_VALUE_ERROR(weights(floats({1.0F})), "sample_weights must be a");
  EXPECT_VALUE_ERROR(weights(floats({1.0F, -1.0F})), "finite and >= 0");
  EXPECT_VALUE_ERROR(weights(floats({1.0F, 1.0F}) * kNaN), "finite and >= 0");
  EXPECT_TYPE_ERROR(weights(int64s({1, 1})), "must be floats");
}

TEST(RetrievalTest, AccidentalHitsNeedIds) {
  Retrieval retrieval(RetrievalOptions{.remove_accidental_hits = true});
  EXPECT_VALUE_ERROR(
      retrieval->forward(at::ones({2, 3}), at::ones({2, 3})),
      "needs candidate_ids, but got none");
}

TEST(RetrievalTest, RefusesWrongOptions) {
  const auto make = [](RetrievalOptions options) {
    Retrieval retrieval(options);
  };
  for (const double temperature : {0.0, -1.0, kNaN, kInfinity}) {
    EXPECT_VALUE_ERROR(
        make({.temperature = temperature}), "temperature must be > 0");
  }
  EXPECT_VALUE_ERROR(
      make({.num_hard_negatives = 0}), "num_hard_negatives must be >= 1");
}

TEST(RetrievalTest, RoundTripsThroughJson) {
  const RetrievalOptions options{
      .temperature = 0.1,
      .num_hard_negatives = 5,
      .remove_accidental_hits = true,
      .reduction = LossReduction::kMean};
  const auto read = [](const Json& json) {
    return JsonValue<RetrievalOptions>::read(json, "retrieval");
  };
  EXPECT_EQ(read(JsonValue<RetrievalOptions>::write(options)), options);
  EXPECT_EQ(read(Json::object()), RetrievalOptions{});
  EXPECT_VALUE_ERROR(
      read({{"reduction", "none"}}),
      "[retrieval.reduction] reduction must be one of sum, mean, but got"
      " 'none'");
}

}  // namespace tessera::test::retrieval_test
