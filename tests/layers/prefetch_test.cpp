// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/prefetch.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::prefetch_test {

// A layer of one row that starts at 0. Each update lowers it by 1.
TPUEmbedding one_row(Strategy strategy = Strategy::fused()) {
  return layer_of(
      FeatureConfig{.table = numbered_table("t", 1, 1)},
      optim::SGD{.learning_rate = 1.0},
      {.strategy = std::move(strategy)});
}

Features to_features(const at::Tensor& ids) {
  return ids;
}

std::vector<float> seen_by(const TPUEmbedding& layer, size_t batches) {
  const std::vector<at::Tensor> source(batches, int64s({0}));
  std::vector<float> seen;
  for (auto& [batch, activations] : prefetch(source, layer, to_features)) {
    EXPECT_EQ(batch.numel(), 1);
    seen.push_back(activations.leaf().item<float>());
    if (activations.leaf().requires_grad()) {
      activations.leaf().sum().backward();
    }
  }
  return seen;
}

TEST(PrefetchTest, TrainingIsOneStepStale) {
  TPUEmbedding layer = one_row();
  EXPECT_EQ(seen_by(layer, 6), (std::vector<float>{0, 0, -1, -2, -3, -4}));
  EXPECT_EQ(layer->iterations(), 6);
  EXPECT_EQ(layer->read_rows("t", 0, 1).item<float>(), -6);
}

TEST(PrefetchTest, EndsWithTheSource) {
  EXPECT_EQ(seen_by(one_row(), 0), std::vector<float>{});
  EXPECT_EQ(seen_by(one_row(), 1), std::vector<float>{0});
}

TEST(PrefetchTest, EvaluationIsNotStale) {
  TPUEmbedding layer = one_row();
  const std::vector<at::Tensor> source(3, int64s({0}));
  const at::NoGradGuard no_grad;
  float expected = 0;
  for (auto& item : prefetch(source, layer, to_features)) {
    EXPECT_EQ(item.activations.leaf().item<float>(), expected);
    layer->update_embedding_table("t", at::full({1, 1}, ++expected));
  }
  EXPECT_EQ(expected, 3);
}

TEST(PrefetchTest, TrainingOnTheHostIsNotStale) {
  TPUEmbedding layer = one_row(Strategy::host());
  torch::optim::SGD sgd(layer->parameters(), 1.0);
  const std::vector<at::Tensor> source(4, int64s({0}));
  float expected = 0;
  for (auto& item : prefetch(source, layer, to_features)) {
    EXPECT_EQ(item.activations.leaf().item<float>(), expected--);
    sgd.zero_grad();
    item.activations.leaf().sum().backward();
    sgd.step();
  }
}

TEST(PrefetchTest, WorksUnderKOnStep) {
  TPUEmbedding layer = layer_of(
      FeatureConfig{.table = numbered_table("t", 1, 1)},
      optim::SGD{.learning_rate = 1.0},
      {.apply = Apply::kOnStep});
  Combined optimizer(
      std::make_unique<torch::optim::SGD>(layer->parameters(), 1.0), {layer});
  const std::vector<at::Tensor> source(4, int64s({0}));
  std::vector<float> seen;
  for (auto& item : prefetch(source, layer, to_features)) {
    optimizer.zero_grad();
    seen.push_back(item.activations.leaf().item<float>());
    item.activations.leaf().sum().backward();
    optimizer.step();
  }
  EXPECT_EQ(seen, (std::vector<float>{0, 0, -1, -2}));
}

TEST(PrefetchTest, TakesWeightsAndGivesThemTheirGradient) {
  TPUEmbedding layer = layer_of(
      FeatureConfig{.table = numbered_table("t", 4, 1)},
      optim::SGD{.learning_rate = 0.0});
  std::vector<at::Tensor> weights;
  for (int i = 0; i < 3; ++i) {
    weights.push_back(floats({1, 2}).requires_grad_());
  }
  const auto features_of = [](const at::Tensor& weights) {
    return std::pair<Features, Weights>(
        ragged({{2, 3}}), std::optional<Feature>(weights));
  };
  for (auto& [batch, activations] : prefetch(weights, layer, features_of)) {
    EXPECT_EQ(activations.leaf().item<float>(), 2 + 2 * 3);
    activations.leaf().sum().backward();
    EXPECT_TENSOR_EQ(batch.grad(), floats({2, 3}));
  }
}

// A regression on fixed targets, with and without prefetch().
TEST(PrefetchTest, LearnsAsWellWithStaleLookups) {
  std::vector<double> last;
  for (const bool is_pipelined : {false, true}) {
    TPUEmbedding layer = layer_of(
        FeatureConfig{.table = numbered_table("t", 40, 4)},
        optim::SGD{.learning_rate = 0.3});
    const at::Tensor targets = at::arange(160).view({40, 4}).remainder(7);
    std::vector<at::Tensor> batches;
    for (int step = 0; step < 400; ++step) {
      batches.push_back((at::arange(16) * 7 + step * 5).remainder(40));
    }
    const auto train = [&](const at::Tensor& ids, const at::Tensor& rows) {
      const at::Tensor loss =
          (rows - targets.index_select(0, ids)).square().sum() / 2;
      loss.backward();
      return loss.item<double>();
    };
    double loss = 0;
    if (is_pipelined) {
      for (auto& [ids, activations] : prefetch(batches, layer, to_features)) {
        loss = train(ids, activations.leaf());
      }
    } else {
      for (const at::Tensor& ids : batches) {
        loss = train(ids, layer->forward(ids).leaf());
      }
    }
    EXPECT_EQ(layer->iterations(), 400);
    last.push_back(loss);
  }
  EXPECT_LT(last[0], 1e-6);
  EXPECT_LT(last[1], 1e-6);
}

// A source of 4 batches that counts reads.
struct CountingSource {
  struct Iterator {
    int* reads;
    int position;
    at::Tensor operator*() const {
      ++*reads;
      return int64s({0});
    }
    Iterator& operator++() {
      ++position;
      return *this;
    }
    bool operator!=(const Iterator& other) const {
      return position != other.position;
    }
  };
  Iterator begin() {
    return {&reads, 0};
  }
  Iterator end() {
    return {&reads, 4};
  }
  int reads = 0;
};

TEST(PrefetchTest, ReadsOneBatchAhead) {
  CountingSource source;
  TPUEmbedding layer = one_row();
  int step = 0;
  for (auto& item : prefetch(source, layer, to_features)) {
    EXPECT_EQ(source.reads, std::min(++step + 1, 4));
    EXPECT_EQ(item.batch.numel(), 1);
  }
  EXPECT_EQ(step, 4);
}

TEST(PrefetchTest, ABadBatchRaisesBeforeAnythingChanges) {
  TPUEmbedding layer = one_row();
  const std::vector<at::Tensor> source{int64s({0}), int64s({0}), int64s({9})};
  int seen = 0;
  EXPECT_INDEX_ERROR(
      for (auto& item
           : prefetch(source, layer, to_features)) {
        ++seen;
        item.activations.leaf().sum().backward();
      },
      "got 9 at position 0");
  EXPECT_EQ(seen, 2);
  EXPECT_EQ(layer->iterations(), 2);
}

TEST(PendingForwardTest, IsFinishedOnceAndByItsOwnLayer) {
  TPUEmbedding layer = one_row();
  PendingForward pending = layer->begin_forward(int64s({0, 0}));
  EXPECT_EQ(
      layer->finish_forward(std::move(pending)).leaf().sizes(),
      at::IntArrayRef({2, 1}));
  EXPECT_TORCH_ERROR(
      layer->finish_forward(
          std::move(pending)),  // NOLINT(bugprone-use-after-move)
      "[TPUEmbedding::finish_forward] expected a PendingForward that is not "
      "finished yet, but this one is empty or finished already. Call "
      "begin_forward() again.");
  PendingForward foreign = one_row()->begin_forward(int64s({0}));
  EXPECT_TORCH_ERROR(
      layer->finish_forward(std::move(foreign)),
      "[TPUEmbedding::finish_forward] expected a PendingForward that this layer "
      "began, but another layer began it");
}

TEST(PendingForwardTest, MayOutliveItsLayerAndNeverBeFinished) {
  std::optional<PendingForward> pending;
  for (int i = 0; i < 20; ++i) {
    TPUEmbedding layer = layer_of(
        FeatureConfig{.table = numbered_table("t", 1000, 64)}, optim::SGD{});
    pending.emplace(layer->begin_forward(at::randint(1000, {5000}, at::kLong)));
  }
}

TEST(PendingForwardTest, UnderNoGradGivesPlainActivations) {
  TPUEmbedding layer = one_row();
  PendingForward pending = layer->begin_forward(int64s({0}));
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(
      layer->finish_forward(std::move(pending)).leaf().requires_grad());
}

TEST(PendingForwardTest, BackgroundThreadsAreAnOption) {
  EXPECT_EQ(
      seen_by(one_row(Strategy::fused({.lookup_threads = 1})), 3),
      (std::vector<float>{0, 0, -1}));
  EXPECT_VALUE_ERROR(
      one_row(Strategy::fused({.lookup_threads = -1})),
      "[Strategy::Fused] lookup_threads must be in [0, 4096], but got -1");
}

}  // namespace tessera::test::prefetch_test
