// SPDX-License-Identifier: Apache-2.0
#include <tessera/search/corpus_evaluation.h>
#include <tessera/search/faiss_index.h>
#include <tessera/training/classification_metrics.h>
#include <tessera/training/early_stopping.h>
#include <tessera/training/ranking_metrics.h>
#include <tessera/training/retrieval_metrics.h>
#include <torch/nn/modules/dropout.h>

#include "tests/test_util.h"

namespace tessera::training::corpus_evaluation_test {

Metrics recall_at(int64_t k) {
  return {std::make_shared<RecallAtK>(RankingMetricOptions{.k = k})};
}

BatchLoop<CandidateVectors> one_batch_of(CandidateVectors batch) {
  return make_batch_loop<CandidateVectors>(
      std::vector{std::move(batch)},
      [](const CandidateVectors& given) { return given; });
}

BatchLoop<CorpusQueries> one_batch_of(CorpusQueries batch) {
  return make_batch_loop<CorpusQueries>(
      std::vector{std::move(batch)},
      [](const CorpusQueries& given) { return given; });
}

// A million items would take long with sanitizers. The blocks of the search are as many.
struct Corpus {
  static constexpr int64_t kItems = 20'000;
  static constexpr int64_t kQueries = 60;

  Corpus() {
    for (int64_t i = 0; i < kQueries; ++i) {
      for (int64_t j = 0; j < i % 4; ++j) {
        relevant.push_back(ids[(i * 31 + j * 7) % 500].item<int64_t>());
      }
      for (int64_t j = 0; j < i % 3; ++j) {
        seen.push_back(ids[(i * 31 + j * 7 * 2) % 500].item<int64_t>());
      }
      relevant_splits.push_back(static_cast<int64_t>(relevant.size()));
      seen_splits.push_back(static_cast<int64_t>(seen.size()));
    }
    // Some relevant items are among the best ones.
    items.slice(0, 0, 500).mul_(2.0);
  }

  BatchLoop<CandidateVectors> candidates() const {
    return make_batch_loop<CandidateVectors>(
        [] {
          return std::vector<int64_t>{0, 7000, 14000};
        },
        [this](int64_t begin) {
          const int64_t end = std::min(begin + 7000, kItems);
          return CandidateVectors{
              .vectors = items.slice(0, begin, end).to(at::kDouble),
              .ids = ids.slice(0, begin, end).to(at::kInt)};
        });
  }
  BatchLoop<CorpusQueries> query_batches() const {
    return make_batch_loop<CorpusQueries>(
        std::vector<int64_t>{0, 25, 50}, [this](int64_t begin) {
          const int64_t end = std::min<int64_t>(begin + 25, kQueries);
          const auto bags = [&](const std::vector<int64_t>& values,
                                const std::vector<int64_t>& splits) {
            std::vector<int64_t> own(
                values.begin() + splits[begin], values.begin() + splits[end]);
            std::vector<int64_t> ends;
            for (int64_t i = begin; i <= end; ++i) {
              ends.push_back(splits[i] - splits[begin]);
            }
            return RaggedFeature{
                .values = at::tensor(own, at::kLong),
                .row_splits = at::tensor(ends, at::kLong)};
          };
          const RaggedFeature labels = bags(relevant, relevant_splits);
          return CorpusQueries{
              .vectors = queries.slice(0, begin, end),
              .labels = labels.values,
              .label_splits = labels.row_splits,
              .seen = bags(seen, seen_splits)};
        });
  }

  at::Tensor items = at::randn({kItems, 8});
  at::Tensor ids = at::randperm(3 * kItems, at::kLong).slice(0, 0, kItems);
  at::Tensor queries = at::randn({kQueries, 8});
  std::vector<int64_t> relevant, relevant_splits{0};
  std::vector<int64_t> seen, seen_splits{0};
};

TEST(CorpusEvaluationTest, MatchesAPlainLoop) {
  const Corpus corpus;
  constexpr int64_t kDepth = 50;
  const CorpusEvaluation evaluation(
      corpus.candidates(),
      corpus.query_batches(),
      {.metrics = {
           std::make_shared<RecallAtK>(RankingMetricOptions{.k = kDepth}),
           std::make_shared<NDCG>(RankingMetricOptions{.k = 10}),
           std::make_shared<CatalogueCoverage>(CatalogueCoverageOptions{
               .catalogue_size = Corpus::kItems, .k = 5})}});
  const Logs logs = evaluation.evaluate();

  double recall = 0.0, ndcg = 0.0;
  std::set<int64_t> covered;
  const at::Tensor scores = at::matmul(
      corpus.queries.to(at::kDouble), corpus.items.t().to(at::kDouble));
  for (int64_t i = 0; i < Corpus::kQueries; ++i) {
    const at::Tensor order = scores[i].argsort(/*dim=*/0, /*descending=*/true);
    const auto bag = [&](const std::vector<int64_t>& values,
                         const std::vector<int64_t>& splits) {
      return std::set<int64_t>(
          values.begin() + splits[i], values.begin() + splits[i + 1]);
    };
    const auto relevant = bag(corpus.relevant, corpus.relevant_splits);
    const auto seen = bag(corpus.seen, corpus.seen_splits);
    double found = 0.0, gain = 0.0, best = 0.0;
    int64_t rank = 0;
    for (int64_t j = 0; rank < kDepth; ++j) {
      const auto id = corpus.ids[order[j].item<int64_t>()].item<int64_t>();
      if (seen.contains(id)) {
        continue;
      }
      ++rank;
      if (rank <= 5) {
        covered.insert(id);
      }
      if (relevant.contains(id)) {
        found += 1.0;
        gain += rank <= 10 ? 1.0 / std::log2(rank + 1.0) : 0.0;
      }
    }
    for (size_t j = 1; j <= std::min<size_t>(10, relevant.size()); ++j) {
      best += 1.0 / std::log2(static_cast<double>(j) + 1.0);
    }
    if (!relevant.empty()) {
      recall += found / static_cast<double>(relevant.size());
      ndcg += gain / best;
    }
  }
  EXPECT_GT(recall, 0.0);
  EXPECT_NEAR(logs["val_recall_at_50"], recall / Corpus::kQueries, 1e-12);
  EXPECT_NEAR(logs["val_ndcg_at_10"], ndcg / Corpus::kQueries, 1e-12);
  EXPECT_EQ(
      logs["val_coverage_at_5"],
      static_cast<double>(covered.size()) / Corpus::kItems);
  EXPECT_EQ(logs.entries().size(), 3U);
  // It starts again with each call.
  EXPECT_EQ(
      evaluation.evaluate()["val_recall_at_50"], logs["val_recall_at_50"]);
}

TEST(CorpusEvaluationTest, FitLogsItAndEarlyStoppingMonitorsIt) {
  // The one item of query i is i. The vectors of epoch 1 find all, those of others only
  // the first one, because equal scores are in the order of the items.
  int64_t epoch = -1;
  torch::nn::Dropout model;
  std::vector<bool> modes;
  const auto corpus = std::make_shared<CorpusEvaluation>(
      make_batch_loop<CandidateVectors>(
          [] {
            return std::vector<int64_t>{0, 2};
          },
          [&](int64_t begin) {
            modes.push_back(model->is_training());
            EXPECT_FALSE(at::GradMode::is_enabled());
            at::Tensor vectors = at::eye(4);
            if (epoch != 1) {
              vectors[0] = vectors[1];
              vectors[2] = vectors[3];
            }
            return CandidateVectors{
                .vectors = vectors.slice(0, begin, begin + 2),
                .ids = at::arange(begin, begin + 2)};
          }),
      one_batch_of(
          CorpusQueries{.vectors = at::eye(4), .labels = at::arange(4)}),
      CorpusEvaluationOptions{.metrics = recall_at(1), .model = model.ptr()});
  const auto stopping = std::make_shared<EarlyStopping>(
      EarlyStoppingOptions{.monitor = "val_recall_at_1", .patience = 2});
  const History history = fit(
      [&] {
        ++epoch;
        return std::vector<int>{1};
      },
      [](int) { return at::ones({}); },
      {.epochs = 9, .model = model.ptr(), .callbacks = {stopping, corpus}});
  EXPECT_EQ(history.epochs.size(), 4U);
  EXPECT_EQ(history["val_recall_at_1"], (std::vector{0.25, 1.0, 0.25, 0.25}));
  EXPECT_EQ(stopping->best_epoch(), 1);
  EXPECT_EQ(modes, std::vector<bool>(8, false));
  EXPECT_TRUE(model->is_training());
  EXPECT_EQ(corpus->better("val_recall_at_1"), Better::kHigher);
  EXPECT_EQ(corpus->better("loss"), Better::kUnknown);
}

TEST(CorpusEvaluationTest, EveryFewEpochsAndAfterTheLast) {
  const auto corpus = std::make_shared<CorpusEvaluation>(
      one_batch_of(
          CandidateVectors{.vectors = at::eye(3), .ids = at::arange(3)}),
      one_batch_of(
          CorpusQueries{.vectors = at::eye(3), .labels = at::arange(3)}),
      CorpusEvaluationOptions{
          .metrics = recall_at(1), .prefix = "all_", .every_epochs = 2});
  const History history =
      fit(std::vector<int>{1},
          [](int) { return at::ones({}); },
          {.epochs = 5, .callbacks = {corpus}});
  std::vector<bool> is_evaluated;
  for (const double value : history["all_recall_at_1"]) {
    is_evaluated.push_back(value == 1.0);
  }
  EXPECT_EQ(is_evaluated, (std::vector<bool>{false, true, false, true, true}));
}

TEST(CorpusEvaluationTest, TakesAnyIndexAndSmallCorpora) {
  int made = 0;
  CorpusEvaluationOptions options{
      .metrics = recall_at(10),  // more than there are items
      .make_index = [&](const at::Tensor& vectors, const at::Tensor& ids) {
        ++made;
        EXPECT_EQ(vectors.scalar_type(), at::kFloat);
        return has_faiss() ? make_faiss_index(vectors, ids, {.factory = "Flat"})
                           : make_exact_index(vectors, ids);
      }};
  const CorpusEvaluation evaluation(
      one_batch_of(
          CandidateVectors{.vectors = at::eye(3), .ids = int64s({5, 8, 2})}),
      one_batch_of(CorpusQueries{
          .vectors = at::eye(3),
          .labels = int64s({5, 8, 9}),
          .seen = {.values = int64s({8}), .row_splits = int64s({0, 0, 1, 1})},
          .weights = floats({1, 2, 1})}),
      std::move(options));
  // Query 1 has seen its item, and 9 is not an item.
  EXPECT_EQ(evaluation.evaluate()["val_recall_at_10"], 0.25);
  EXPECT_EQ(made, 1);
}

TEST(CorpusEvaluationTest, RefusesBadInput) {
  const CandidateVectors items{.vectors = at::eye(3), .ids = at::arange(3)};
  const CorpusQueries queries{.vectors = at::eye(3), .labels = at::arange(3)};
  expect_refusals<CorpusEvaluationOptions>(
      {{{}, "[CorpusEvaluation] expected metrics"},
       {{.metrics = {nullptr}}, "metric 0 is null"},
       {{.metrics = {recall_at(1)[0], recall_at(1)[0]}},
        "two metrics are named 'recall_at_1'"},
       {{.metrics = {AveragePrecision()}},
        "'average_precision' does not say how many retrieved ids it uses"},
       {{.metrics = {NDCG({.k = std::nullopt})}}, "'ndcg' does not say"},
       {{.metrics = recall_at(1), .every_epochs = 0},
        "every_epochs must be >= 1, but got 0"}},
      [&](const CorpusEvaluationOptions& options) {
        CorpusEvaluation(one_batch_of(items), one_batch_of(queries), options);
      });
  EXPECT_VALUE_ERROR(
      CorpusEvaluation({}, one_batch_of(queries), {.metrics = recall_at(1)}),
      "got an empty function");

  using Items = std::vector<CandidateVectors>;
  using Queries = std::vector<CorpusQueries>;
  const auto run = [&](const Items& batches, const Queries& asked) {
    CorpusEvaluation(
        make_batch_loop<CandidateVectors>(
            batches, [](const CandidateVectors& batch) { return batch; }),
        make_batch_loop<CorpusQueries>(
            asked, [](const CorpusQueries& batch) { return batch; }),
        {.metrics = recall_at(2)})
        .evaluate();
  };
  const at::Tensor unknown = int64s({11, 11, 11});
  run({items}, {queries});
  // One label is known, and then none.
  run({items}, {{.vectors = at::eye(3), .labels = int64s({7, 2, 9})}});
  expect_refusals<std::pair<Items, Queries>>(
      {{{{}, {queries}}, "expected items, but their source"},
       {{{items}, {}}, "expected queries, but their source"},
       {{{{.vectors = items.vectors}}, {queries}}, "and no tensor"},
       {{{{.vectors = items.vectors, .ids = int64s({1})}}, {queries}},
        "batch 0 of the items must have vectors [n, dim]"},
       {{{items, {.vectors = at::eye(2), .ids = int64s({7, 8})}}, {queries}},
        "the same dim, but batch 1 has 2 and batch 0 has 3"},
       {{{items, items}, {queries}}, "ids must be unique"},
       {{{items}, {{.vectors = at::eye(2), .labels = int64s({1, 2})}}},
        "queries must have the vectors' dim, 3, but got 2"},
       {{{items}, {{.labels = int64s({1})}}}, "queries must be a matrix"},
       {{{items}, {{.vectors = at::eye(3), .labels = int64s({1})}}},
        "got 3 predictions and 1 labels"},
       {{{items},
         {{.vectors = at::eye(3), .labels = int64s({7, 8, 9})},
          {.vectors = at::eye(3), .labels = unknown}}},
        "expected labels that are ids of items, but none of 6 labels is"}},
      [&](const auto& row) { run(row.first, row.second); });
}

}  // namespace tessera::training::corpus_evaluation_test
