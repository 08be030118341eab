// SPDX-License-Identifier: Apache-2.0
// Work on several threads, which gives the same numbers as on one.
#include "src/common/parallel.h"
#include "tests/layers/layer_test_util.h"

#include <latch>
#include <mutex>

namespace tessera::test::threads_test {

constexpr int64_t kManyBytes = 100 * kParallelBytes;

TEST(RunTasksTest, UsesTwoThreads) {
  if (std::thread::hardware_concurrency() < 2) {
    GTEST_SKIP() << "this machine has one core";
  }
  const Threads threads(2);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  const auto count_seen = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    seen.insert(std::this_thread::get_id());
    return seen.size();
  };
  // Each task waits for the other thread, which may start late.
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  run_tasks(2, kManyBytes, [&](int64_t) {
    while (count_seen() < 2 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  });
  EXPECT_EQ(seen.size(), 2);
  EXPECT_EQ(seen.count(std::this_thread::get_id()), 1);
}

TEST(RunTasksTest, EachTaskRunsOnce) {
  for (const int count : {1, 2, 4, 70}) {
    const Threads threads(count);
    for (const int64_t tasks : {0, 1, 2, 3, 63, 65, 71, 1000}) {
      std::vector<std::atomic<int>> runs(tasks);
      run_tasks(tasks, kManyBytes, [&](int64_t i) { ++runs[i]; });
      for (int64_t i = 0; i < tasks; ++i) {
        EXPECT_EQ(runs[i], 1) << "task " << i << " of " << tasks;
      }
    }
  }
}

TEST(RunTasksTest, AThreadFinishesItsOwnTasksAndThenTakesThoseOfOthers) {
  if (std::thread::hardware_concurrency() < 2) {
    GTEST_SKIP() << "this machine has one core";
  }
  const Threads threads(2);
  constexpr size_t kTasks = 6;
  std::array<std::atomic<bool>, kTasks> has_begun = {};
  std::array<std::thread::id, kTasks> thread_of;
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::seconds(20);
  const auto wait_for = [&](size_t task) {
    while (!has_begun[task] && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::yield();
    }
  };
  run_tasks(kTasks, kManyBytes, [&](int64_t task) {
    thread_of[task] = std::this_thread::get_id();
    has_begun[task] = true;
    if (task == 0) {
      wait_for(3);  // which the other thread begins with
    } else if (task == 3) {
      wait_for(5);  // so the first thread takes tasks 4 and 5
    }
  });
  EXPECT_NE(thread_of[0], thread_of[3]);
  for (const size_t task : {1, 2, 4, 5}) {
    EXPECT_EQ(thread_of[task], thread_of[0]) << "task " << task;
  }
}

TEST(RunTasksTest, LittleWorkStaysOnTheCallingThreadInOrder) {
  const Threads threads(2);
  const auto caller = std::this_thread::get_id();
  std::vector<int64_t> order;
  run_tasks(4, kParallelBytes - 1, [&](int64_t i) {
    ASSERT_EQ(std::this_thread::get_id(), caller);
    order.push_back(i);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3}));
}

TEST(RunTasksTest, RethrowsAndStaysUsable) {
  for (const int count : {1, 2}) {
    const Threads threads(count);
    EXPECT_THROW(
        run_tasks(
            100,
            kManyBytes,
            [](int64_t i) {
              if (i == 7) {
                throw std::domain_error("task 7");
              }
            }),
        std::domain_error);
    std::atomic<int> runs{0};
    run_tasks(100, kManyBytes, [&](int64_t) { ++runs; });
    EXPECT_EQ(runs, 100);
  }
}

TEST(RunTasksTest, NestedCallsAreSerial) {
  const Threads threads(2);
  std::atomic<int> on_other_threads{0};
  std::atomic<int> runs{0};
  run_tasks(8, kManyBytes, [&](int64_t) {
    const auto self = std::this_thread::get_id();
    run_tasks(8, kManyBytes, [&](int64_t) {
      on_other_threads += std::this_thread::get_id() == self ? 0 : 1;
      ++runs;
    });
  });
  EXPECT_EQ(runs, 64);
  EXPECT_EQ(on_other_threads, 0);
}

TEST(TaskSizeTest, EachThreadGetsAFewTasks) {
  const Threads threads(16);
  EXPECT_EQ(task_size(64 * 1024, kManyBytes, 64, 4096), 1024);
  EXPECT_EQ(task_size(64 * 1500, kManyBytes, 64, 4096), 1024);
  EXPECT_EQ(task_size(0, kManyBytes, 64, 4096), 64);
  EXPECT_EQ(task_size(1 << 30, kManyBytes, 64, 4096), 4096);
}

TEST(TaskSizeTest, IsTheLargestOnOneThread) {
  {
    const Threads threads(1);
    EXPECT_EQ(task_size(64 * 1024, kManyBytes, 64, 4096), 4096);
  }
  const Threads threads(16);
  EXPECT_EQ(task_size(64 * 1024, kParallelBytes - 1, 64, 4096), 4096);
}

constexpr int64_t kVocab = 30000;
constexpr int64_t kDim = 6;
constexpr int64_t kSteps = 3;

// Returns log-uniform ids below `vocab`. A few are frequent, and most are rare.
at::Tensor zipf_ids(std::mt19937& random, int64_t count, int64_t vocab) {
  std::vector<int64_t> ids;
  std::uniform_real_distribution<double> unit(0.0, 1.0);
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int64_t>(
        std::pow(static_cast<double>(vocab + 1), unit(random)) - 1));
  }
  return at::tensor(ids, at::kLong).clamp_max(vocab - 1);
}

at::Tensor random_floats(
    std::mt19937& random,
    int64_t count,
    float low,
    float high) {
  std::uniform_real_distribution<float> distribution(low, high);
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(distribution(random));
  }
  return at::tensor(values, at::kFloat);
}

// Returns bags that span several chunks of ids. Some empty bags lie between two
// chunks, and one bag is longer than a chunk.
RaggedFeature long_bags(std::mt19937& random) {
  std::vector<int64_t> lengths{16384, 0, 0, 40000, 0, 1, 16383};
  for (int64_t i = 0; i < 3000; ++i) {
    lengths.push_back(static_cast<int64_t>(random() % 30));
  }
  int64_t nnz = 0;
  for (const int64_t length : lengths) {
    nnz += length;
  }
  return RaggedFeature::from_lengths(
      zipf_ids(random, nnz, kVocab), at::tensor(lengths, at::kLong));
}

struct Step {
  Features features = {};
  Weights weights = {};
  std::vector<at::Tensor> upstream = {};  // gradients of the activations
};

std::vector<Step> make_steps() {
  std::mt19937 random(5);
  std::vector<Step> steps;
  for (int64_t i = 0; i < kSteps; ++i) {
    const RaggedFeature bags = long_bags(random);
    const RaggedFeature weighted = long_bags(random);
    const at::Tensor dense = zipf_ids(random, 40000, kVocab);
    const at::Tensor hot = zipf_ids(random, 30000, 3);
    Step step;
    step.features = {
        {"bags", bags}, {"weighted", weighted}, {"dense", dense}, {"hot", hot}};
    step.weights = {
        {"bags", std::nullopt},
        {"weighted",
         random_floats(random, weighted.values.numel(), 0.5F, 1.5F)},
        {"dense", std::nullopt},
        {"hot", std::nullopt}};
    for (const int64_t rows :
         {bags.row_splits.numel() - 1,
          weighted.row_splits.numel() - 1,
          dense.numel(),
          hot.numel()}) {
      step.upstream.push_back(
          random_floats(random, rows * kDim, -1, 1).view({rows, kDim}));
    }
    steps.push_back(std::move(step));
  }
  return steps;
}

TPUEmbedding make_layer(
    const optim::OptimizerSpec& big,
    const optim::OptimizerSpec& small) {
  const auto rows = make_table(
      {.name = "rows",
       .vocabulary_size = kVocab,
       .dim = kDim,
       .optimizer = big});
  const auto few_rows = make_table(
      {.name = "few", .vocabulary_size = 3, .dim = kDim, .optimizer = small});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features = features_of(
          {{"bags", rows},
           {"weighted", rows},
           {"dense", rows},
           {"hot", few_rows}})});
}

void train(TPUEmbedding& layer, const std::vector<Step>& steps) {
  for (const Step& step : steps) {
    const auto activations =
        layer->forward(step.features, step.weights).flatten();
    torch::autograd::backward(activations, step.upstream);
  }
}

class ManyThreadsTest : public testing::TestWithParam<optim::OptimizerSpec> {};

INSTANTIATE_TEST_SUITE_P(
    Optimizers,
    ManyThreadsTest,
    testing::Values(
        optim::SGD{.learning_rate = 0.1},
        optim::Adagrad{.learning_rate = 0.1},
        optim::Adam{.learning_rate = 0.1}),
    [](const auto& info) { return optim::name_of(info.param); });

TEST_P(ManyThreadsTest, GiveTheSameBitsInTablesAndSlots) {
  static const std::vector<Step> kBigSteps = make_steps();
  ASSERT_GT(
      std::get<RaggedFeature>(kBigSteps[0].features["bags"]).values.numel(),
      100000);
  const auto train_on = [&](int count) {
    const Threads threads(count);
    auto layer = make_layer(
        GetParam(),
        optim::Adagrad{
            .learning_rate = 0.1, .use_gradient_accumulation = false});
    const auto initial = tables_of(layer);
    train(layer, kBigSteps);
    for (size_t i = 0; i < initial.size(); ++i) {
      EXPECT_FALSE(at::equal(tables_of(layer)[i], initial[i]));
    }
    return layer;
  };
  const TPUEmbedding one = train_on(1);
  for (const int count : {2, 4, 16}) {
    SCOPED_TRACE(count);
    const TPUEmbedding many = train_on(count);
    expect_same_tables(many, tables_of(one));
    EXPECT_TRUE(saved(many) == saved(one)) << "slots";
  }
}

// A single feature is read on all threads, and its weights are divided there.
TEST(ThreadsTest, OneBigFeatureGivesTheSameBits) {
  std::mt19937 random(5);
  const RaggedFeature bags = long_bags(random);
  const at::Tensor weights =
      random_floats(random, bags.values.numel(), 0.5F, 1.5F);
  const Features batch{{"bags", bags}};
  const auto train_on = [&](int count) {
    const Threads threads(count);
    TPUEmbedding layer = layer_of(
        features_of({{"bags", plain_table("t", kVocab, kDim)}}),
        optim::Adagrad{.learning_rate = 0.1});
    const at::Tensor activations =
        layer->forward(batch, {{"bags", weights}})["bags"];
    activations.backward(activations.detach().clone());
    return tables_of(layer)[0];
  };
  const at::Tensor one = train_on(1);
  for (const int count : {2, 16}) {
    EXPECT_TENSOR_EQ(train_on(count), one) << count << " threads";
  }
}

TEST(ThreadsTest, ABadIdInOneBigFeatureIsReported) {
  const Threads threads(2);
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = features_of({{"a", numbered_table("t", 1000, kDim)}})});
  at::Tensor ids = at::arange(100000).remainder(1000);
  ids[70000] = -1;
  EXPECT_INDEX_ERROR((layer->forward({{"a", ids}})), "at position 70000");
}

// The big table after SGD with learning rate 1, computed in doubles. Rounding
// errors are a fraction of `magnitudes`, the sums of absolute values.
struct Reference {
  explicit Reference(const at::Tensor& table)
      : weights(table.to(at::kDouble)), magnitudes(weights.abs()) {}

  void apply(const Step& step) {
    add_bags(step, 0, at::Tensor());
    add_bags(
        step,
        1,
        std::get<at::Tensor>(*step.weights["weighted"]).to(at::kDouble));
    const at::Tensor ids = std::get<at::Tensor>(step.features["dense"]);
    add(ids, step.upstream[2].to(at::kDouble));
  }

  // Adds the gradients of bags that are combined by their weighted mean.
  void add_bags(const Step& step, size_t feature, at::Tensor weights_of_ids) {
    const auto bags = std::get<RaggedFeature>(step.features.flatten()[feature]);
    const at::Tensor lengths = bags.row_splits.diff();
    const at::Tensor bag =
        at::arange(lengths.numel()).repeat_interleave(lengths);
    if (!weights_of_ids.defined()) {
      weights_of_ids = at::full(bags.values.sizes(), 1.0, at::kDouble);
    }
    const at::Tensor totals = at::full({lengths.numel()}, 0.0, at::kDouble)
                                  .index_add(0, bag, weights_of_ids);
    const at::Tensor upstream = step.upstream[feature].to(at::kDouble);
    add(bags.values,
        upstream.index_select(0, bag) *
            (weights_of_ids / totals.index_select(0, bag)).unsqueeze(1));
  }

  void add(const at::Tensor& ids, const at::Tensor& gradients) {
    weights.index_add_(0, ids, gradients, -1);
    magnitudes.index_add_(0, ids, gradients.abs());
  }

  at::Tensor weights;
  at::Tensor magnitudes;
};

TEST(ThreadsTest, ABadIdInABigBatchIsReported) {
  const Threads threads(2);
  std::mt19937 random(5);
  auto layer = make_layer(optim::SGD{}, optim::SGD{});
  const RaggedFeature bags = long_bags(random);
  at::Tensor ids = zipf_ids(random, 40000, kVocab);
  ids[39999] = kVocab;
  EXPECT_INDEX_ERROR(
      (layer->forward(
          {{"bags", bags},
           {"weighted", bags},
           {"dense", ids},
           {"hot", zipf_ids(random, 30000, 3)}})),
      "[feature 'dense'] table 'rows' has ids in [0, 30000), but got 30000 at "
      "position 39999");
}

TEST(ThreadsTest, BigBatchesMatchThePlainSum) {
  const Threads threads(2);
  const std::vector<Step> steps = make_steps();
  auto layer = make_layer(optim::SGD{.learning_rate = 1.0}, optim::SGD{});
  Reference reference(tables_of(layer)[0]);
  train(layer, steps);
  for (const Step& step : steps) {
    reference.apply(step);
  }
  const at::Tensor actual = tables_of(layer)[0].to(at::kDouble);
  const at::Tensor errors =
      (actual - reference.weights).abs() / (reference.magnitudes + 1e-3);
  EXPECT_LT(errors.max().item<double>(), 1e-6);
}

// If all ids are about equally frequent, each task of an update is a range of rows.
// Otherwise, a task has rows from the whole table.
TEST(ThreadsTest, EvenlySpreadAndFrequentIdsMatchThePlainSum) {
  constexpr int64_t kCount = 60000;
  std::mt19937 random(5);
  const auto check = [&](int64_t vocab, int64_t dim, const at::Tensor& ids) {
    const at::Tensor gradients =
        random_floats(random, kCount * dim, -1, 1).view({kCount, dim});
    const auto train_on = [&](int count) {
      const Threads threads(count);
      TPUEmbedding layer = layer_of(FeatureConfig{
          .table = make_table(
              {.name = "t",
               .vocabulary_size = vocab,
               .dim = dim,
               .optimizer = optim::Adagrad{.learning_rate = 1.0}})});
      const at::Tensor initial = tables_of(layer)[0].clone();
      layer->forward(ids).leaf().backward(gradients);
      return std::pair(initial, tables_of(layer)[0].clone());
    };
    const auto [initial, one] = train_on(1);
    const at::Tensor sums = at::full({vocab, dim}, 0.0, at::kDouble)
                                .index_add(0, ids, gradients.to(at::kDouble));
    // A row that two tasks update has an error of about 1.
    expect_close(one, initial - sums / (sums * sums + 0.1).sqrt(), 0.0, 5e-3);
    for (const int count : {2, 16}) {
      EXPECT_TENSOR_EQ(train_on(count).second, one) << count;
    }
  };
  // Rows that share a cache line, and rows that do not.
  for (const int64_t dim : {4, 40}) {
    // 20,000 rows take 5/8 of the next power of two, and 32,000 nearly all of it.
    for (const int64_t vocab : {16, 20000, 32000}) {
      SCOPED_TRACE(testing::Message() << vocab << " rows, dim " << dim);
      const at::Tensor frequent = zipf_ids(random, kCount, vocab);
      check(vocab, dim, frequent);
      check(vocab, dim, (frequent * 7919).remainder(vocab));
      check(vocab, dim, at::arange(kCount).mul(7919).remainder(vocab));
    }
  }
}

// Calls `work` on `count` threads, with the number of the thread.
void run_threads(int64_t count, const std::function<void(int64_t)>& work) {
  std::vector<std::thread> threads;
  for (int64_t i = 0; i < count; ++i) {
    threads.emplace_back([&work, i] { work(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

class ConcurrentBackwardTest : public testing::TestWithParam<Apply> {
 protected:
  // Calls backward() of the loss with this number.
  using Pass = std::function<void(int64_t)>;

  // Returns a layer of one table that two losses have trained, each from a forward pass
  // of its own. `run` must call the passes 0 and 1.
  static TPUEmbedding trained(const std::function<void(const Pass&)>& run) {
    constexpr int64_t kIds = 3000;
    const TablePtr table = numbered_table("t", 1000, kDim);
    TPUEmbedding layer = layer_of(
        FeatureConfig{.table = table},
        optim::SGD{.learning_rate = 0.5},
        {.apply = GetParam()});
    std::optional<Combined> combined;
    if (GetParam() == Apply::kOnStep) {
      combined.emplace(
          torch::optim::SGD(layer->parameters(), 0.5),
          std::vector<TPUEmbedding>{layer});
    }
    const at::Tensor ids = at::arange(kIds);
    const std::vector<at::Tensor> batches{
        (ids * 7).remainder(1000), (ids * ids).remainder(900)};
    std::vector<at::Tensor> losses;
    for (const at::Tensor& batch : batches) {
      const at::Tensor activation = layer->forward(batch).leaf();
      losses.push_back(
          (activation * static_cast<double>(losses.size() + 1)).sum());
    }
    run([&](int64_t i) { losses[i].backward(); });
    if (combined) {
      EXPECT_EQ(layer->iterations(), 0);
      combined->step();
      EXPECT_EQ(layer->iterations(), 1);
    } else {
      EXPECT_EQ(layer->iterations(), 2);
    }
    const at::Tensor expected =
        at::arange(1000, at::kFloat).unsqueeze(1).repeat({1, kDim});
    expected.index_add_(0, batches[0], at::full({kIds, kDim}, -0.5));
    expected.index_add_(0, batches[1], at::full({kIds, kDim}, -1.0));
    expect_close(tables_of(layer)[0], expected, 0.0, 1e-6);
    return layer;
  }
};

INSTANTIATE_TEST_SUITE_P(
    Applies,
    ConcurrentBackwardTest,
    testing::Values(Apply::kInBackward, Apply::kOnStep),
    [](const auto& info) {
      return info.param == Apply::kOnStep ? "on_step" : "in_backward";
    });

TEST_P(ConcurrentBackwardTest, AppliesEachPassOnce) {
  const TPUEmbedding in_turn = trained([](const Pass& backward) {
    backward(0);
    backward(1);
  });
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    const TPUEmbedding at_once = trained([](const Pass& backward) {
      std::latch both_started(2);
      run_threads(2, [&](int64_t thread) {
        both_started.arrive_and_wait();
        backward(thread);
      });
    });
    // All numbers are multiples of 0.5, which are exact in any order of additions.
    expect_same_tables(at_once, tables_of(in_turn));
  }
}

constexpr int64_t kServers = 4;
constexpr int64_t kRequests = 30;

// A layer whose features `a` and `b` share a table that the tests do not train.
TPUEmbedding serving_layer(const Strategy& strategy) {
  const TablePtr served = numbered_table("served", 1000, kDim);
  const TablePtr trained = numbered_table("trained", 1000, kDim);
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"a",
            FeatureConfig{.table = served, .out_of_range = OutOfRange::kZero}},
           {"b", FeatureConfig{.table = served, .max_sequence_length = 2}},
           {"c", FeatureConfig{.table = trained}}},
      .optimizer = optim::SGD{.learning_rate = 0.5},
      .strategy = strategy});
}

// Sends requests for a single feature each, by forward() and embedding_lookup().
void serve(TPUEmbedding& layer, int64_t server) {
  const at::NoGradGuard no_grad;
  // Enough ids for several intra-op threads, and one of them out of range.
  const at::Tensor ids = (at::arange(3000) * 7 + server).remainder(1000);
  ids[5] = 1000;
  const at::Tensor expected =
      ids.remainder(1000).to(at::kFloat).unsqueeze(1).expand({3000, kDim});
  const RaggedFeature history = ragged({{server, 1, 2}, {}});
  for (int64_t i = 0; i < kRequests; ++i) {
    const at::Tensor a = i % 2 == 0
        ? layer->forward({{"a", ids}})["a"]
        : layer->embedding_lookup({{"a", ids}})["a"];
    ASSERT_TENSOR_EQ(a, expected) << "request " << i;
    const at::Tensor b = layer->forward({{"b", history}})["b"];
    ASSERT_EQ(b.sizes(), at::IntArrayRef({2, 2, kDim}));
    ASSERT_EQ(b[0][0][0].item<float>(), static_cast<float>(server));
    ASSERT_EQ(b[1].abs().sum().item<float>(), 0.0F);
  }
}

TEST(ServingThreadsTest, ForwardsOfSomeFeaturesDoNotDisturbEachOther) {
  for (const Strategy& strategy :
       {Strategy::fused(), Strategy::host(), Strategy::padded()}) {
    SCOPED_TRACE(strategy.name());
    TPUEmbedding layer = serving_layer(strategy);
    const auto before = tables_of(layer);
    run_threads(kServers, [&](int64_t server) { serve(layer, server); });
    expect_same_tables(layer, before);
    // forward() counts ids out of range, and embedding_lookup() does not.
    EXPECT_EQ(layer->out_of_range_count(), kServers * kRequests / 2);
  }
}

TEST(ServingThreadsTest, FusedServesWhileItTrains) {
  TPUEmbedding layer = serving_layer(Strategy::fused());
  const at::Tensor before = tables_of(layer)[1];
  const RaggedFeature none = ragged({{}, {}});
  const Features batch{
      {"a", int64s({1})}, {"b", none}, {"c", ragged({{1, 1}, {2}})}};
  run_threads(kServers + 1, [&](int64_t thread) {
    if (thread < kServers) {
      serve(layer, thread);
      return;
    }
    for (int64_t step = 0; step < kRequests; ++step) {
      layer->forward(batch)["c"].sum().backward();
    }
  });
  EXPECT_EQ(layer->iterations(), kRequests);
  at::Tensor expected = before.clone();
  expected[1].sub_(static_cast<double>(kRequests));
  expected[2].sub_(0.5 * static_cast<double>(kRequests));
  expect_close(tables_of(layer)[1], expected);
}

// Two features have equal configs. One gets bags, and the other sequences.
TEST(ServingThreadsTest, EachFeatureHasItsOwnNumberOfRaggedRows) {
  const FeatureConfig config{
      .table = numbered_table("t", 10, 2), .output_shape = PartialShape{2, 2}};
  TPUEmbedding layer(
      TPUEmbeddingOptions{.features = {{"a", config}, {"b", config}}});
  const at::NoGradGuard no_grad;
  const RaggedFeature bags = ragged({{1}, {2}, {3}, {4, 5}});
  const RaggedFeature sequences = ragged({{1, 2}, {3}});
  layer->forward({{"a", bags}, {"b", sequences}});
  const auto served = layer->embedding_lookup({{"a", bags}});
  EXPECT_TENSOR_EQ(served["a"], layer->forward({{"a", bags}})["a"]);
  layer->embedding_lookup({{"b", sequences}});
}

// A refused batch does not fix the number of ragged rows.
TEST(ServingThreadsTest, ARefusedBatchFixesNoNumberOfRaggedRows) {
  TPUEmbedding layer = layer_of(
      FeatureConfig{
          .table = numbered_table("t", 10, 2),
          .output_shape = PartialShape{2, 2}},
      optim::SGD{},
      {.apply = Apply::kOnStep});
  EXPECT_TORCH_ERROR(
      layer->forward(ragged({{1}, {2}, {3}, {4, 5}})), "Combined");
  const at::NoGradGuard no_grad;
  layer->forward(ragged({{1, 2}, {3}}));
}

TEST(ServingThreadsTest, ConcurrentBatchesFixOneNumberOfRaggedRows) {
  for (int round = 0; round < 20; ++round) {
    TPUEmbedding layer = layer_of(FeatureConfig{
        .table = numbered_table("t", 10, 2), .output_shape = {{4, 2}}});
    std::atomic<int> bags{0};
    std::atomic<int> sequences{0};
    std::atomic<int> refused{0};
    run_threads(kServers, [&](int64_t thread) {
      const at::NoGradGuard no_grad;
      const bool has_bags = thread % 2 == 0;
      try {
        layer->forward(ragged(Rows(has_bags ? 8 : 4, {1})));
        ++(has_bags ? bags : sequences);
      } catch (const c10::ValueError&) {
        ++refused;
      }
    });
    EXPECT_EQ(std::max(bags.load(), sequences.load()), 2);
    EXPECT_EQ(std::min(bags.load(), sequences.load()), 0);
    EXPECT_EQ(refused, 2);
  }
}

}  // namespace tessera::test::threads_test
