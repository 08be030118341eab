// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of the metrics and losses of ranking, and of
// corpus_evaluation.h, which check_docs.cmake compares with them.
#include <tessera/tessera.h>
#include <torch/nn/modules/embedding.h>

#include "tests/test_util.h"

namespace tessera::training::reference_metrics_test {

// Metrics of click models.

const at::Tensor kClicks = torch::tensor({0, 1, 0, 1});

TEST(MetricsReferenceTest, AveragePrecision) {
  const auto scores = torch::tensor({0.1F, 0.9F, 0.3F, 0.4F});
  const auto& clicks = kClicks;
  // snippet: AveragePrecision
  AveragePrecision average_precision;
  average_precision.update(scores, clicks);
  const double area = average_precision.result();
  // end snippet
  EXPECT_EQ(area, 1.0);
}

TEST(MetricsReferenceTest, GroupedAUC) {
  const auto scores = torch::tensor({0.1F, 0.9F, 0.5F, 0.6F});
  const auto users = torch::tensor({7, 7, 8, 8});
  const auto& clicks = kClicks;
  // snippet: GroupedAUC
  GroupedAUC gauc;
  gauc.update_batch({.predictions = scores, .labels = clicks, .groups = users});
  const double area = gauc.result();
  // end snippet
  EXPECT_EQ(area, 1.0);
}

TEST(MetricsReferenceTest, NormalizedEntropy) {
  const auto logits = torch::tensor({-1.0F, 1.0F, -2.0F, 2.0F});
  const auto& clicks = kClicks;
  // snippet: NormalizedEntropy
  NormalizedEntropy entropy({.scores = ScoreKind::kLogits});
  entropy.update(logits, clicks);
  const double share = entropy.result();
  // end snippet
  EXPECT_LT(share, 1.0);
}

TEST(MetricsReferenceTest, Calibration) {
  const auto logits = torch::tensor({-1.0F, 1.0F, -2.0F, 2.0F});
  const auto& clicks = kClicks;
  // snippet: Calibration
  Calibration calibration({.scores = ScoreKind::kLogits});
  calibration.update(logits, clicks);
  const double ratio = calibration.result();
  // end snippet
  EXPECT_NEAR(ratio, 1.0, 1e-6);
}

TEST(MetricsReferenceTest, CalibrationError) {
  const auto probabilities = torch::tensor({0.0F, 1.0F, 0.0F, 1.0F});
  const auto& clicks = kClicks;
  // snippet: CalibrationError
  CalibrationError error({.bins = 20});
  error.update(probabilities, clicks);
  const double distance = error.result();  // 0: perfectly calibrated
  for (const CalibrationError::Bin& bin : error.bins()) {
    std::cout << bin.mean_prediction << " " << bin.mean_label << "\n";
  }
  // end snippet
  EXPECT_EQ(distance, 0.0);
}

// Metrics of lists and of retrieved ids.

class ListsReferenceTest : public testing::Test {
 protected:
  const std::unique_ptr<TopKIndex> index = make_exact_index(torch::eye(20));
  const at::Tensor queries = torch::eye(20).narrow(0, 0, 2);
  const at::Tensor scores = torch::tensor({{0.9F, 0.1F, 0.5F, 0.2F}});
  const at::Tensor labels = torch::tensor({{1, 0, 0, 1}});
};

TEST_F(ListsReferenceTest, RecallAtK) {
  const auto next_movies = torch::tensor({0, 19});
  // snippet: RecallAtK
  RecallAtK recall({.k = 10});
  recall.update(index->search(queries, 10).ids, next_movies);
  const double share = recall.result();
  // end snippet
  EXPECT_EQ(share, 0.5);
}

TEST_F(ListsReferenceTest, PrecisionAtK) {
  // snippet: PrecisionAtK
  PrecisionAtK precision({.k = 3});
  precision.update(scores, labels);  // both [queries, list]
  const double share = precision.result();
  // end snippet
  EXPECT_DOUBLE_EQ(share, 2.0 / 3.0);
}

TEST_F(ListsReferenceTest, HitRateAtK) {
  const TopK found = index->search(queries, 10);
  const RaggedFeature next_movies{
      .values = torch::tensor({0, 5, 19}),
      .row_splits = torch::tensor({0, 2, 3})};
  // snippet: HitRateAtK
  HitRateAtK hit_rate({.k = 10});
  hit_rate.update_ragged(found.ids, next_movies);  // bags of movies
  const double share = hit_rate.result();
  // end snippet
  EXPECT_EQ(share, 0.5);
}

TEST_F(ListsReferenceTest, MeanReciprocalRank) {
  // snippet: MeanReciprocalRank
  MeanReciprocalRank mrr({.k = std::nullopt});
  mrr.update(scores, labels);
  const double mean = mrr.result();
  // end snippet
  EXPECT_EQ(mean, 1.0);
}

TEST_F(ListsReferenceTest, MeanAveragePrecision) {
  // snippet: MeanAveragePrecision
  MeanAveragePrecision map({.k = 10});
  map.update(scores, labels);
  const double mean = map.result();
  // end snippet
  EXPECT_EQ(mean, (1.0 + 2.0 / 3.0) / 2.0);
}

TEST_F(ListsReferenceTest, NDCG) {
  const auto grades = torch::tensor({{3, 0, 2, 1}});
  // snippet: NDCG
  NDCG ndcg({.k = 10});
  ndcg.update(scores, grades);  // both [queries, list]
  const double gain = ndcg.result();
  // end snippet
  EXPECT_EQ(gain, 1.0);
}

TEST_F(ListsReferenceTest, CatalogueCoverage) {
  // snippet: CatalogueCoverage
  CatalogueCoverage coverage({.catalogue_size = index->size(), .k = 5});
  coverage.update(index->search(queries, 5).ids);
  const double share = coverage.result();
  // end snippet
  EXPECT_EQ(share, 5.0 / 20.0);
}

// Losses.

TEST(LossesReferenceTest, PairwiseHingeLoss) {
  const auto scores = torch::tensor({{0.1F, 0.9F}}).requires_grad_();
  const auto grades = torch::tensor({{2, 0}});
  // snippet: pairwise_hinge_loss
  const auto loss = pairwise_hinge_loss({.scores = scores, .labels = grades});
  loss.backward();
  // end snippet
  EXPECT_FLOAT_EQ(loss.item<float>(), 1.8F / 2.0F);
}

TEST(LossesReferenceTest, ListSoftmaxLoss) {
  const auto scores = torch::tensor({{0.1F, 0.1F, 9.0F}});
  const auto clicks = torch::tensor({{1, 0, 0}});
  const auto is_item = torch::tensor({{true, true, false}});
  // snippet: list_softmax_loss
  const auto loss = list_softmax_loss(
      {.scores = scores, .labels = clicks, .mask = is_item},
      {.temperature = 0.1});
  // end snippet
  EXPECT_FLOAT_EQ(loss.item<float>(), std::log(2.0F));
}

TEST(LossesReferenceTest, BprLoss) {
  const auto users = torch::eye(2).requires_grad_();
  const auto movies = torch::eye(2);
  const auto sampled = torch::zeros({3, 2});
  // snippet: bpr_loss
  const auto loss = bpr_loss(
      {.positive = (users * movies).sum(1),
       .negative = torch::matmul(users, sampled.t())});
  loss.backward();
  // end snippet
  EXPECT_FLOAT_EQ(loss.item<float>(), std::log1p(std::exp(-1.0F)));
}

TEST(LossesReferenceTest, WarpLoss) {
  const auto positive_scores = torch::tensor({1.0F});
  const auto negative_scores = torch::tensor({{0.0F, 0.5F}});
  // snippet: warp_loss
  const auto loss = warp_loss(
      {.positive = positive_scores, .negative = negative_scores},
      {.num_items = 1682});
  // end snippet
  EXPECT_GT(loss.item<float>(), 1.0F);
}

TEST(LossesReferenceTest, CosineContrastiveLoss) {
  const auto positive_scores = torch::tensor({1.0F});
  const auto negative_scores = torch::tensor({{0.0F, 0.5F}});
  // snippet: cosine_contrastive_loss
  const auto loss = cosine_contrastive_loss(
      {.positive = positive_scores, .negative = negative_scores},
      {.margin = 0.4, .negative_weight = 150.0});
  // end snippet
  EXPECT_NEAR(loss.item<float>(), 150.0F * 0.05F, 1e-4F);
}

TEST(LossesReferenceTest, SampledSoftmaxLoss) {
  const auto positive_scores = torch::tensor({1.0F});
  const auto negative_scores = torch::tensor({{1.0F, 0.5F}});
  const auto movies = torch::tensor({2});
  const auto sampled = torch::tensor({1, 2});
  const auto share = torch::tensor({0.25F, 0.25F, 0.5F});
  // snippet: sampled_softmax_loss
  const auto loss = sampled_softmax_loss(
      {.positive = positive_scores,
       .negative = negative_scores,
       .positive_ids = movies,
       .negative_ids = sampled,
       .positive_probability = share.index_select(0, movies),
       .negative_probability = share.index_select(0, sampled)});
  // end snippet
  EXPECT_FLOAT_EQ(loss.item<float>(), std::log(3.0F));
}

// Evaluation with all items.

struct Visit {
  at::Tensor user, next_item;
  RaggedFeature seen;
};

TEST(CorpusReferenceTest, CorpusEvaluation) {
  torch::manual_seed(1);
  torch::nn::Embedding user_tower(8, 4), item_tower(20, 4);
  torch::optim::Adam optimizer({user_tower->weight, item_tower->weight}, 0.1);
  const std::vector<at::Tensor> item_batches{
      torch::arange(12), torch::arange(12, 20)};
  const std::vector<Visit> batches{
      {.user = torch::arange(8),
       .next_item = torch::arange(8),
       .seen = {
           .values = torch::arange(8, 16), .row_splits = torch::arange(9)}}};
  const auto& test_batches = batches;
  const auto step = make_train_step(optimizer, [&](const Visit& visit) {
    return at::cross_entropy_loss(
        torch::matmul(user_tower->forward(visit.user), item_tower->weight.t()),
        visit.next_item);
  });
  // snippet: CorpusEvaluation
  const auto corpus = std::make_shared<CorpusEvaluation>(
      make_batch_loop<CandidateVectors>(
          item_batches,
          [&](const at::Tensor& ids) {
            return CandidateVectors{
                .vectors = item_tower->forward(ids), .ids = ids};
          }),
      make_batch_loop<CorpusQueries>(
          test_batches,
          [&](const Visit& visit) {
            return CorpusQueries{
                .vectors = user_tower->forward(visit.user),
                .labels = visit.next_item,
                .seen = visit.seen};
          }),
      CorpusEvaluationOptions{
          .metrics = {
              std::make_shared<RecallAtK>(),
              std::make_shared<NDCG>(RankingMetricOptions{.k = 5})}});
  const auto stopping = std::make_shared<EarlyStopping>(
      EarlyStoppingOptions{.monitor = "val_ndcg_at_5", .patience = 2});
  const History history =
      fit(batches, step, {.epochs = 5, .callbacks = {corpus, stopping}});
  const double recall = history["val_recall_at_10"].back();
  // end snippet
  EXPECT_GT(recall, 0.5);  // that of chance
}

}  // namespace tessera::training::reference_metrics_test
