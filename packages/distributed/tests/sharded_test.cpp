// SPDX-License-Identifier: Apache-2.0
// Compares ranks that share tables with one process that does all their work.
#include <tessera/engine/sum_gradients.h>
#include <tessera/layers/combined.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/prefetch.h>
#include <tessera/optim/optimizers/adam.h>

#include "packages/distributed/src/row_exchange.h"
#include "packages/distributed/tests/sharded_case.h"
#include "packages/distributed/tests/sharded_layers.h"
#include "src/common/random_key.h"
#include "tests/layers/layer_test_util.h"

#include <c10/util/ScopeExit.h>

namespace tessera::sharded_test {

// The loss is a sum over the batch, so the losses of the ranks add up to the whole one.
at::Tensor loss_of(
    const std::vector<at::Tensor>& activations,
    const std::vector<bool>& is_in_loss) {
  at::Tensor loss = at::zeros({});
  for (size_t i = 0; i < activations.size(); ++i) {
    if (is_in_loss[i]) {
      loss = loss + (activations[i] - 0.25).square().sum();
    }
  }
  return loss;
}

bool any(const std::vector<bool>& values) {
  return std::find(values.begin(), values.end(), true) != values.end();
}

// A layer that is trained in backward() or by a Combined.
struct Trained {
  Trained(TPUEmbeddingOptions options, bool on_step)
      : layer(std::move(options)) {
    if (on_step) {
      combined = std::make_unique<Combined>(
          torch::optim::SGD(layer->parameters(), 0.1),
          std::vector<TPUEmbedding>{layer});
    }
  }

  std::vector<at::Tensor> forward(const ShardedCase::Inputs& inputs) {
    return layer
        ->forward(
            Features::list(inputs.features), Weights::list(inputs.weights))
        .flatten();
  }

  TPUEmbedding layer;
  std::unique_ptr<Combined> combined;
};

void run_case(uint32_t seed, const ShardedCase::Options& options) {
  SCOPED_TRACE(c10::str("seed ", seed));
  ShardedCase sample(seed, ranks(), options);
  const bool on_step = sample.pick(0, 2) == 0;
  const bool clips = sample.pick(0, 1) == 0;
  const Apply apply = on_step ? Apply::kOnStep : Apply::kInBackward;
  Trained one(sample.options(Strategy::fused(), apply), on_step);
  Trained shard(sample.options(sharded(sample.sharding()), apply), on_step);
  expect_same_state(shard.layer, one.layer, 0.0);
  for (int step = 0; step < 3; ++step) {
    SCOPED_TRACE(c10::str("step ", step));
    // Some passes have two forwards, and the loss may not use the first.
    const int64_t forwards = sample.pick(1, 2);
    at::Tensor loss_one = at::zeros({});
    at::Tensor loss_shard = at::zeros({});
    std::vector<ShardedCase::Step> batches;
    for (int64_t i = 0; i < forwards; ++i) {
      batches.push_back(sample.next_step());
      const ShardedCase::Step& batch = batches.back();
      const auto expected = one.forward(batch.all);
      const auto actual = shard.forward(batch.ranks[rank()]);
      for (size_t feature = 0; feature < actual.size(); ++feature) {
        SCOPED_TRACE(c10::str("feature ", feature));
        const auto [begin, end] = batch.ranks[rank()].rows[feature];
        const at::Tensor own = expected[feature].slice(0, begin, end);
        if (step == 0) {
          EXPECT_TRUE(at::equal(actual[feature], own));
        } else {
          expect_close(actual[feature], own, 3e-2, 3e-2);
        }
      }
      loss_one = loss_one + loss_of(expected, batch.is_in_loss);
      loss_shard = loss_shard + loss_of(actual, batch.is_in_loss);
    }
    const bool trains =
        std::any_of(batches.begin(), batches.end(), [](const auto& batch) {
          return any(batch.is_in_loss);
        });
    if (trains) {
      loss_one.backward();
      loss_shard.backward();
      for (const ShardedCase::Step& batch : batches) {
        // Finds this rank's weights among those of all ranks.
        const auto& own = batch.ranks[rank()].flat_weights;
        for (size_t i = 0; i < own.size(); ++i) {
          int64_t begin = 0;
          for (int64_t other = 0; other < rank(); ++other) {
            begin += batch.ranks[other].flat_weights[i].numel();
          }
          const at::Tensor all = batch.all.flat_weights[i].grad();
          ASSERT_EQ(all.defined(), own[i].grad().defined());
          if (all.defined()) {
            expect_close(
                own[i].grad(),
                all.slice(0, begin, begin + own[i].numel()),
                3e-2,
                3e-2);
          }
        }
      }
    }
    if (on_step) {
      if (clips) {
        const double norm = one.combined->clip_grad_norm_(1.0);
        EXPECT_NEAR(shard.combined->clip_grad_norm_(1.0), norm, 1e-2 * norm);
      }
      one.combined->step();
      shard.combined->step();
      one.combined->zero_grad();
      shard.combined->zero_grad();
    }
    expect_same_state(shard.layer, one.layer);
  }
  double out_of_range = 0.0;
  for (const double count : state_of(shard.layer)
                                .ranks->all_gather(static_cast<double>(
                                    shard.layer->out_of_range_count()))) {
    out_of_range += count;
  }
  EXPECT_EQ(out_of_range, static_cast<double>(one.layer->out_of_range_count()));
}

class ShardedSpecTest : public testing::TestWithParam<NamedSpec> {};

INSTANTIATE_TEST_SUITE_P(
    Specs,
    ShardedSpecTest,
    testing::ValuesIn(spec_variants()),
    [](const auto& info) { return info.param.name; });

// TESSERA_TEST_SEED and TESSERA_TEST_CASES select other cases.
TEST_P(ShardedSpecTest, EqualsOneProcessOnAllBatches) {
  // Each spec has its own tables and batches.
  const auto seed = static_cast<uint32_t>(
      number_from("TESSERA_TEST_SEED", 1) + random_key(0, GetParam().name));
  for (uint32_t i = 0; i < number_from("TESSERA_TEST_CASES", 6); ++i) {
    run_case(
        1000 * seed + i, {.optimizer = GetParam().spec, .only_float32 = true});
  }
}

TEST(ShardedTest, EqualsOneProcessForRandomTables) {
  const auto seed = static_cast<uint32_t>(number_from("TESSERA_TEST_SEED", 1));
  for (uint32_t i = 0; i < 5 * number_from("TESSERA_TEST_CASES", 6); ++i) {
    run_case(100000 + 1000 * seed + i, {});
  }
}

// --- fixed cases ---------------------------------------------------------------

// Each rank sums in the order of its batch, and these sums are added in the order of
// the ranks. The order is documented, so the result is exact to the last bit.
TEST(ShardedTest, GradientsAreSummedInTheStatedOrder) {
  TPUEmbedding layer(small_options(sharded()));
  const at::Tensor before = all_rows(layer);
  // Each rank looks row 3 up three times.
  std::vector<at::Tensor> gradients;
  torch::manual_seed(5);
  for (int64_t i = 0; i < ranks(); ++i) {
    gradients.push_back(at::rand({3, kDim}));
  }
  const at::Tensor activation = activation_of(layer, int64s({3, 3, 3}));
  activation.backward(gradients[rank()]);
  at::Tensor total = at::zeros({kDim});
  for (int64_t i = 0; i < ranks(); ++i) {
    const at::Tensor& own = gradients[i];
    const at::Tensor sum = (own[0] + own[1]) + own[2];
    total = i == 0 ? sum : total + sum;
  }
  at::Tensor expected = before.clone();
  expected[3].sub_(total);
  EXPECT_TRUE(at::equal(all_rows(layer), expected));
}

TEST(ShardedTest, ReplicasStayEqualToTheLastBit) {
  TPUEmbedding layer(small_options(
      placed(TablePlacement::data_parallel()),
      optim::Adam{.learning_rate = 0.1}));
  for (int step = 0; step < 5; ++step) {
    torch::manual_seed(100 * step + rank());
    const at::Tensor activation = layer->forward(
        {{"user", at::randint(0, kVocab, {rank() + step}, at::kLong)}})["user"];
    activation.backward(at::rand({rank() + step, kDim}));
  }
  const EmbeddingState& state = state_of(layer);
  const auto group = state.ranks;
  std::string bytes = text_of(as_bytes(state.tables[0].parameters));
  for (const Slot& slot : state.tables[0].slots) {
    bytes += text_of(as_bytes(slot.values));
  }
  for (const std::string& other : group->all_gather(bytes)) {
    EXPECT_TRUE(other == bytes);
  }
}

TEST(ShardedTest, EachRankHasTheRowsOfItsPlacement) {
  const auto rows_of = [](const TablePlacement& placement) {
    TPUEmbedding layer(small_options(placed(placement)));
    return state_of(layer).tables[0].rows;
  };
  const int64_t more = kVocab % ranks();
  const int64_t each = kVocab / ranks();
  const LocalRows div = rows_of(TablePlacement::row_wise());
  EXPECT_EQ(div.count, each + (rank() < more ? 1 : 0));
  EXPECT_EQ(div.numbers.first, rank() * each + std::min(rank(), more));
  EXPECT_EQ(div.numbers.step, 1);
  const LocalRows mod = rows_of(TablePlacement::row_wise(RowSplit::kMod));
  EXPECT_EQ(mod.count, each + (rank() < more ? 1 : 0));
  EXPECT_EQ(mod.numbers.first, rank());
  EXPECT_EQ(mod.numbers.step, ranks());
  const int64_t home = ranks() / 2;
  EXPECT_EQ(
      rows_of(TablePlacement::table_wise(home)).count,
      rank() == home ? kVocab : 0);
  EXPECT_EQ(rows_of(TablePlacement::data_parallel()).count, kVocab);
}

TEST(ShardedTest, ARankHoldsItsShareOfTablesAndSlots) {
  const auto options = [](Strategy strategy) {
    TPUEmbeddingOptions options =
        small_options(std::move(strategy), optim::Adam{.learning_rate = 0.1});
    options.features =
        feature_of({.name = "users", .vocabulary_size = 10'000, .dim = 16});
    return options;
  };
  const auto bytes_of = [](const TPUEmbedding& layer) {
    size_t bytes = 0;
    for (const TableState& table : state_of(layer).tables) {
      bytes += table.parameters.nbytes();
      for (const Slot& slot : table.slots) {
        bytes += slot.values.nbytes();
      }
    }
    return static_cast<double>(bytes);
  };
  const TPUEmbedding one(options(Strategy::fused()));
  const TPUEmbedding shard(options(sharded()));
  EXPECT_LE(
      bytes_of(shard), 1.05 * bytes_of(one) / static_cast<double>(ranks()));
}

TEST(ShardedTest, SendsLittleMoreThanTheDistinctRows) {
  constexpr int64_t kRows = 500;
  constexpr int64_t kWidth = 64;
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = feature_of(
          {.name = "users", .vocabulary_size = kRows, .dim = kWidth}),
      .optimizer = optim::Adagrad{},
      .strategy = sharded()});
  const auto ids_of = [](int64_t of_rank) {
    torch::manual_seed(of_rank);
    return at::randint(0, kRows, {800}, at::kLong);
  };
  // Rows that this rank owns and others request, and the reverse.
  const LocalRows& rows = state_of(layer).tables[0].rows;
  const auto is_own = [&](int64_t id) {
    return id >= rows.numbers[0] && id < rows.numbers[rows.count];
  };
  int64_t floats = 0;
  for (int64_t other = 0; other < ranks(); ++other) {
    const at::Tensor ids = ids_of(other);
    const auto* first = ids.const_data_ptr<int64_t>();
    const std::set<int64_t> distinct(first, first + ids.numel());
    for (const int64_t id : distinct) {
      floats += is_own(id) != (other == rank()) ? kWidth : 0;
    }
  }
  const auto group = state_of(layer).ranks;
  const int64_t before = group->bytes_sent();
  layer->forward(Feature(ids_of(rank()))).leaf().sum().backward();
  const int64_t sent = group->bytes_sent() - before;
  const int64_t bound = floats * static_cast<int64_t>(sizeof(float));
  EXPECT_GE(sent, bound);
  EXPECT_LE(static_cast<double>(sent), 1.1 * static_cast<double>(bound));
}

TEST(ShardedTest, RowsAndGradientsTravelAsBFloat16IfRequested) {
  TPUEmbedding layer(small_options(sharded(
      {.row_transport = at::kBFloat16, .gradient_transport = at::kBFloat16})));
  const at::Tensor before = all_rows(layer);
  const at::Tensor activation = activation_of(layer, int64s({3, 9}));
  // A single rank exchanges nothing but rounds as well.
  EXPECT_TRUE(at::equal(
      activation.detach(),
      before.index_select(0, int64s({3, 9})).to(at::kBFloat16).to(at::kFloat)));
  const at::Tensor gradient = at::full({2, kDim}, 0.123F);
  activation.backward(gradient);
  at::Tensor sum = at::zeros({kDim});
  for (int64_t i = 0; i < ranks(); ++i) {
    sum += gradient[0].to(at::kBFloat16).to(at::kFloat);
  }
  EXPECT_TRUE(at::equal(all_rows(layer)[3], before[3] - sum));
}

TEST(ShardedTest, PrefetchGivesWhatOneProcessGives) {
  const auto train = [](const Strategy& strategy, bool all) {
    TPUEmbedding layer(
        small_options(strategy, optim::Adagrad{.learning_rate = 0.1}));
    std::vector<at::Tensor> batches;
    for (int64_t step = 0; step < 6; ++step) {
      std::vector<at::Tensor> of_ranks;
      for (int64_t i = 0; i < ranks(); ++i) {
        of_ranks.push_back(int64s({(step + i) % kVocab, 2, step}));
      }
      batches.push_back(all ? at::cat(of_ranks) : of_ranks[rank()]);
    }
    for (auto& item : prefetch(batches, layer, [](const at::Tensor& ids) {
           return Features{{"user", ids}};
         })) {
      (item.activations["user"] - 0.5).square().sum().backward();
    }
    return layer;
  };
  expect_same_state(
      train(sharded(), /*all=*/false), train(Strategy::fused(), /*all=*/true));
}

TEST(ShardedTest, LooksUpTheSameWithoutGradients) {
  const at::NoGradGuard no_grad;
  TPUEmbedding layer(small_options(sharded()));
  const at::Tensor ids = int64s({rank() % kVocab, 10});
  EXPECT_TRUE(at::equal(
      activation_of(layer, ids), all_rows(layer).index_select(0, ids)));
  EXPECT_EQ(layer->iterations(), 0);
}

TEST(ShardedTest, EachRankMayRequestOtherFeaturesWithoutGradients) {
  TPUEmbeddingOptions options = small_options(sharded());
  const FeatureConfig user = options.features["user"];
  options.features = {{"user", user}, {"friend", user}};
  TPUEmbedding layer(options);
  const at::Tensor ids = int64s({rank() % kVocab, 10});
  const std::string name = rank() % 2 == 0 ? "user" : "friend";
  const at::Tensor rows = all_rows(layer).index_select(0, ids);
  const at::NoGradGuard no_grad;
  const auto activations =
      is_last() ? layer->forward(Features()) : layer->forward({{name, ids}});
  EXPECT_EQ(activations.empty(), is_last());
  if (!is_last()) {
    EXPECT_TRUE(at::equal(activations[name], rows));
  }
  if (ranks() > 1) {
    EXPECT_TORCH_ERROR(
        layer->embedding_lookup({{"user", ids}}),
        "Call forward() under NoGradGuard on all ranks");
  }
}

// Two towers look up only their own features, and the ranks have other features in the
// last batch.
TEST(ShardedTest, ForwardPartialTrainsAsOneProcessDoes) {
  const auto options = [](Strategy strategy) {
    TPUEmbeddingOptions options = small_options(
        std::move(strategy), optim::Adagrad{.learning_rate = 0.1});
    options.features = {
        {"user", options.features["user"]},
        {"movie",
         feature_of(
             {.name = "movies",
              .vocabulary_size = kVocab,
              .dim = kDim,
              .combiner = Combiner::kSum})}};
    return options;
  };
  TPUEmbedding one(options(Strategy::fused()));
  TPUEmbedding shard(options(sharded()));
  const auto loss_of = [](TPUEmbedding& layer,
                          const at::Tensor& users,
                          const at::Tensor& movies) {
    const at::Tensor user = layer->forward_partial({{"user", users}})["user"];
    const at::Tensor movie =
        layer->forward_partial({{"movie", movies}})["movie"];
    return (user * movie - 0.5).square().sum();
  };
  for (int64_t step = 0; step < 4; ++step) {
    std::vector<at::Tensor> users;
    std::vector<at::Tensor> movies;
    for (int64_t i = 0; i < ranks(); ++i) {
      users.push_back(int64s({(step + i) % kVocab, 2}));
      movies.push_back(int64s({step, (2 * step + i) % kVocab}));
    }
    loss_of(one, at::cat(users), at::cat(movies)).backward();
    loss_of(shard, users[rank()], movies[rank()]).backward();
  }
  const at::Tensor movies = int64s({4, 4});
  const at::Tensor users = int64s({5});
  const auto sum_of =
      [](TPUEmbedding& layer, const std::string& name, const at::Tensor& ids) {
        return layer->forward_partial({{name, ids}})[name].square().sum();
      };
  at::Tensor loss = sum_of(one, "movie", movies);
  if (ranks() > 1) {
    loss = loss + (ranks() - 1) * sum_of(one, "user", users);
  }
  loss.backward();
  (is_last() ? sum_of(shard, "movie", movies) : sum_of(shard, "user", users))
      .backward();
  expect_same_state(shard, one);
}

TEST(ShardedTest, RowsCanBeReplacedAndRead) {
  for (const TablePlacement& placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    TPUEmbedding layer(small_options(placed(placement)));
    const at::Tensor values =
        at::linspace(0, 1, kVocab * kDim).view({kVocab, kDim});
    layer->update_embedding_table("users", values);
    EXPECT_TRUE(at::equal(all_rows(layer), values));
    EXPECT_TRUE(
        at::equal(layer->read_rows("users", 2, 9), values.slice(0, 2, 9)));
    EXPECT_EQ(layer->read_rows("users", 5, 5).size(0), 0);
  }
}

TEST(ShardedTest, ACloneIsAShardOfItsOwn) {
  TPUEmbedding layer(small_options(sharded()));
  TPUEmbedding copy(
      std::dynamic_pointer_cast<TPUEmbeddingImpl>(layer->clone()));
  activation_of(copy, int64s({1})).sum().backward();
  EXPECT_TRUE(at::equal(all_rows(layer)[2], all_rows(copy)[2]));
  EXPECT_FALSE(at::equal(all_rows(layer)[1], all_rows(copy)[1]));
}

// --- key tables ----------------------------------------------------------

constexpr int64_t kKeyDim = 2;

TPUEmbeddingOptions key_options(Strategy strategy, const DynamicKeys& keys) {
  return {
      .features =
          {{"user",
            feature_of({.name = "users", .dim = kKeyDim, .keys = keys})}},
      .optimizer = optim::Adagrad{.learning_rate = 0.1},
      .strategy = std::move(strategy),
      .seed = 3};
}

// Keys of a batch of all ranks. Half of them are frequent.
at::Tensor keys_of_step(int64_t size, int64_t step) {
  at::Tensor keys = at::empty({size}, at::kLong);
  for (int64_t i = 0; i < size; ++i) {
    const int64_t number = i % 2 == 0 ? i % 997 : step * size + i;
    keys.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(
        static_cast<uint64_t>(number) * 0xD1342543DE82EF95ULL);
  }
  return keys;
}

at::Tensor own_part(const at::Tensor& batch) {
  return batch.tensor_split(ranks())[rank()].contiguous();
}

TEST(ShardedKeysTest, AdmitsAndEvictsAsOneProcessDoes) {
  for (const Eviction& eviction : std::vector<Eviction>{
           eviction::LeastRecentlyUsed{},
           eviction::LeastFrequentlyUsed{.half_life = 3.0},
           eviction::OlderThan{.updates = 2}}) {
    SCOPED_TRACE(eviction.index());
    const DynamicKeys keys{
        .capacity = 30'000,
        .admission = admission::AfterOccurrences{.count = 2, .counters = 8'000},
        .eviction = eviction};
    TPUEmbedding one(key_options(Strategy::fused(), keys));
    TPUEmbedding shard(key_options(sharded(), keys));
    for (int64_t step = 0; step < 14; ++step) {
      // Each key occurs twice, on other ranks.
      const at::Tensor half = keys_of_step(5000, step);
      const at::Tensor all = at::cat({half, half});
      for (auto& [layer, batch] :
           {std::pair{&one, all}, std::pair{&shard, own_part(all)}}) {
        (*layer)->forward({{"user", batch}})["user"].sum().backward();
      }
    }
    expect_same_state(shard, one);
    const KeyIndex& index = state_of(one).tables[0].key_rows->index();
    EXPECT_GT(index.counts().evicted, 1000);
    // The two occurrences of each key have increased eight counters.
    const auto sketch = index.sketch();
    EXPECT_LT(
        std::accumulate(sketch.begin(), sketch.end(), int64_t{0}),
        index.counts().admitted * 4);
  }
}

TEST(ShardedKeysTest, UnknownKeysShareTheDefaultRowOfAllRanks) {
  // The second one occurs, too.
  for (const int64_t default_key : {int64_t{-1}, int64_t{0}}) {
    for (const Eviction& eviction : std::vector<Eviction>{
             eviction::LeastRecentlyUsed{},
             eviction::LeastFrequentlyUsed{.half_life = 3.0}}) {
      SCOPED_TRACE(c10::str(default_key, " ", eviction.index()));
      const DynamicKeys keys{
          .capacity = 20'000,
          .admission = admission::AfterOccurrences{.count = 3},
          .eviction = eviction,
          .default_key = default_key};
      TPUEmbedding one(key_options(Strategy::fused(), keys));
      TPUEmbedding shard(key_options(sharded(), keys));
      const auto has_row = [&] {
        return state_of(one).tables[0].key_rows->index().default_row() !=
            kNoRow;
      };
      const auto step = [&](const at::Tensor& all) {
        const at::Tensor expected = activation_of(one, all);
        const at::Tensor own = activation_of(shard, own_part(all));
        expect_close(own, expected.tensor_split(ranks())[rank()], 2e-4, 2e-5);
        expected.sum().backward();
        own.sum().backward();
      };
      // Without an unknown key, the default key gets no row.
      step(int64s({5, 5, 5, 7, 7, 7}));
      EXPECT_FALSE(has_row());
      expect_same_state(shard, one);
      step(int64s({9}));  // on one rank
      EXPECT_TRUE(has_row());
      expect_same_state(shard, one);
      step(int64s({5, 7}));
      expect_same_state(shard, one);
      for (int64_t i = 0; i < 12; ++i) {
        const at::Tensor half = keys_of_step(5000, i);
        step(at::cat({half, half}));
      }
      expect_same_state(shard, one, 5.0);
      const at::NoGradGuard no_grad;
      const at::Tensor unknown = int64s({1'234'567, default_key});
      const at::Tensor rows = activation_of(shard, unknown);
      EXPECT_TRUE(at::equal(rows[0], rows[1]));
      EXPECT_TRUE(rows[0].ne(0).any().item<bool>());
    }
  }
}

// A key of this batch that occurs twice in all is admitted, and looks up its initial
// value before the update.
TEST(ShardedKeysTest, TheWholeBatchDecidesBeforeAnyKeyIsServed) {
  const DynamicKeys keys{
      .capacity = 50'000,
      .admission = admission::AfterOccurrences{.count = ranks() + 1}};
  TPUEmbedding layer(key_options(sharded(), keys));
  const at::Tensor once = int64s({5, -7, std::numeric_limits<int64_t>::min()});
  const auto is_zero = [&] {
    return activation_of(layer, once).eq(0).all().item<bool>();
  };
  EXPECT_TRUE(is_zero());
  const at::Tensor twice = rank() == 0 ? at::cat({once, once}) : once;
  EXPECT_FALSE(activation_of(layer, twice).eq(0).any().item<bool>());
}

TEST(ShardedKeysTest, EachRankOwnsItsShareOfThePartitions) {
  const DynamicKeys keys{.capacity = 2'000'000};
  TPUEmbedding layer(key_options(sharded(), keys));
  const TableState& table = state_of(layer).tables[0];
  const double share = static_cast<double>(table.rows.count) *
      static_cast<double>(ranks()) / 2e6;
  EXPECT_NEAR(share, 1.0, 0.05);
  EXPECT_EQ(table.parameters.size(0), table.rows.count);
  const int64_t last = ranks() - 1;
  TPUEmbedding on_one(
      key_options(placed(TablePlacement::table_wise(last)), keys));
  EXPECT_EQ(
      state_of(on_one).tables[0].rows.count, rank() == last ? 2'000'000 : 0);
}

TEST(ShardedKeysTest, RowsAreReplacedAndEvictedOnTheRankThatOwnsThem) {
  const DynamicKeys keys{.capacity = 50'000};
  TPUEmbedding one(key_options(Strategy::fused(), keys));
  TPUEmbedding shard(key_options(sharded(), keys));
  const at::Tensor numbers = keys_of_step(1000, 0).slice(0, 0, 500);
  const at::Tensor distinct = std::get<0>(at::_unique(numbers));
  const at::Tensor values =
      at::linspace(0, 1, distinct.numel() * kKeyDim).view({-1, kKeyDim});
  one->update_embedding_table("users", distinct, values);
  shard->update_embedding_table("users", distinct, values);
  expect_same_state(shard, one);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(activation_of(shard, distinct), values));
  for (TPUEmbedding* layer : {&one, &shard}) {
    const torch::AutoGradMode with_gradients(true);
    const at::Tensor batch = layer == &one ? distinct : own_part(distinct);
    (*layer)
        ->forward({{"user", batch.slice(0, 0, batch.numel() / 2)}})["user"]
        .sum()
        .backward();
  }
  int64_t evicted = 0;
  for (const double count : state_of(shard).ranks->all_gather(
           static_cast<double>(shard->evict("users", 1)))) {
    evicted += static_cast<int64_t>(count);
  }
  EXPECT_GT(evicted, 0);
}

TEST(ShardedKeysTest, RefusesToCopyATableWithKeysToAllRanks) {
  EXPECT_VALUE_ERROR(
      TPUEmbedding(key_options(
          placed(TablePlacement::data_parallel()),
          DynamicKeys{.capacity = 10})),
      "[ShardingOptions] table 'users' has keys, so it can't be data-parallel");
}

TEST(ShardedKeysTest, AnInitializerThatFailsOnOneRankRaisesOnAll) {
  TPUEmbeddingOptions options =
      key_options(sharded(), DynamicKeys{.capacity = 50'000});
  options.features = {
      {"user",
       feature_of(
           {.name = "users",
            .dim = kKeyDim,
            .initializer = initializers::Callable(
                "one_row_more",
                [](const at::Tensor& ids, int64_t dim) {
                  return at::zeros({ids.numel() + 1, dim});
                }),
            .keys = DynamicKeys{.capacity = 50'000}})}};
  TPUEmbedding layer(std::move(options));
  EXPECT_VALUE_ERROR(
      layer->forward({{"user", int64s({1, 2, 3})}}),
      "initializer must return a float32 tensor of shape");
  EXPECT_EQ(state_of(layer).tables[0].key_rows->index().size(), 0);
}

TEST(ShardedTest, SumsGradientsOfDenseParameters) {
  const Strategy strategy = sharded();
  const at::Tensor both = at::zeros({2, 2}).requires_grad_(true);
  const at::Tensor last = at::zeros({3}).requires_grad_(true);
  const at::Tensor none = at::zeros({1}).requires_grad_(true);
  const at::Tensor empty = at::zeros({0}).requires_grad_(true);
  both.mutable_grad() = at::full({2, 2}, static_cast<double>(rank() + 1));
  if (is_last()) {
    last.mutable_grad() = at::ones({3});
  }
  distributed::sum_gradients({both, last, none, empty}, strategy);
  const auto n = static_cast<double>(ranks());
  EXPECT_TRUE(at::equal(both.grad(), at::full({2, 2}, n * (n + 1.0) / 2.0)));
  EXPECT_TRUE(at::equal(last.grad(), at::ones({3})));
  EXPECT_FALSE(none.grad().defined());
  distributed::sum_gradients({}, strategy);

  const at::Tensor weight = at::full({5}, static_cast<double>(rank() + 3));
  distributed::broadcast_parameters({weight}, strategy);
  EXPECT_TRUE(at::equal(weight, at::full({5}, 3.0)));
  distributed::broadcast_parameters({weight}, Strategy::fused());
}

// --- errors --------------------------------------------------------------------

TEST(ShardedErrorTest, BadInputOnOneRankRaisesOnAllAndChangesNothing) {
  TPUEmbedding layer(small_options(sharded()));
  const at::Tensor before = all_rows(layer);
  const at::Tensor ids = int64s({2, is_last() ? kVocab : 4});
  const std::string text = reported(
      "[feature 'user'] table 'users' has ids in [0, 11), but got 11 at "
      "position 1");
  EXPECT_INDEX_ERROR((layer->forward({{"user", ids}})), text);
  EXPECT_INDEX_ERROR(
      (layer->finish_forward(layer->begin_forward({{"user", ids}}))), text);
  EXPECT_TYPE_ERROR(
      (layer->forward(
          {{"user", is_last() ? at::rand({2}) : at::Tensor(int64s({1}))}})),
      reported("[feature 'user'] ids must be int32 or int64, but got Float"));
  EXPECT_VALUE_ERROR(
      (layer->forward_partial({{is_last() ? "users" : "user", int64s({2})}})),
      reported("[features] unexpected entry 'users'. Known: user."));
  EXPECT_TRUE(at::equal(all_rows(layer), before));
  EXPECT_EQ(layer->iterations(), 0);
  // The ranks can continue.
  activation_of(layer, int64s({2})).sum().backward();
  EXPECT_EQ(layer->iterations(), 1);
}

TEST(ShardedErrorTest, TooManyRowsOfOneRankRaiseOnAll) {
  NEEDS_TWO_RANKS();
  const ShardingOptions options{
      .placement = {{"users", TablePlacement::table_wise(0)}}};
  TPUEmbedding layer(small_options(sharded(options)));
  const EmbeddingState& state = state_of(layer);
  constexpr int64_t kRows = 4;
  // Each rank's request to rank 0 has a count and kRows rows.
  const int64_t max_rows = ranks() * (1 + kRows);
  const auto exchange =
      distributed::make_row_exchange(state, state.ranks, options, max_rows);
  const auto fetch = [&](int64_t count) {
    IdBags bags;
    for (int64_t id = 0; id < count; ++id) {
      bags.ids.push_back(static_cast<uint32_t>(id));
    }
    bags.bags = count;
    bags.dim = kDim;
    std::vector<IdBags> features{bags};
    return exchange->fetch(features, UnknownKeys::kZeros);
  };
  const std::string problem = c10::str(
      "[sharded_strategy] all ranks together must request fewer than ",
      max_rows,
      " rows from one rank, but requested ",
      max_rows);
  EXPECT_VALUE_ERROR(
      fetch(kRows), rank() == 0 ? problem : "since rank 0 raised: " + problem);
  // The ranks can continue.
  const at::Tensor row = fetch(1).rows[0];
  EXPECT_TRUE(at::equal(row, all_rows(layer).slice(0, 0, 1)));
}

// A layer whose learning rate is that of the function.
TPUEmbedding with_rate(std::function<double()> rate) {
  return TPUEmbedding(small_options(
      sharded(),
      optim::SGD{
          .learning_rate = optim::LearningRate("own", std::move(rate))}));
}

TEST(ShardedErrorTest, AThrowingLearningRateRaisesOnAll) {
  TPUEmbedding layer = with_rate([] {
    TORCH_CHECK_VALUE(!is_last(), "no rate here");
    return 0.1;
  });
  const at::Tensor before = all_rows(layer);
  const at::Tensor loss = activation_of(layer, int64s({2})).sum();
  EXPECT_VALUE_ERROR((loss.backward()), reported("no rate here"));
  EXPECT_TRUE(at::equal(all_rows(layer), before));
  EXPECT_EQ(layer->iterations(), 0);
}

TEST(ShardedErrorTest, LearningRatesMustBeTheSame) {
  NEEDS_TWO_RANKS();
  TPUEmbedding layer =
      with_rate([] { return 0.1 * static_cast<double>(rank() + 1); });
  const at::Tensor before = all_rows(layer);
  const at::Tensor loss = activation_of(layer, int64s({2})).sum();
  EXPECT_VALUE_ERROR(
      (loss.backward()), "it has read other learning rates for this update");
  EXPECT_TRUE(at::equal(all_rows(layer), before));
}

TEST(ShardedErrorTest, ConfigurationsMustBeTheSame) {
  NEEDS_TWO_RANKS();
  const auto with_seed = [](uint64_t seed) {
    TPUEmbeddingOptions options = small_options(sharded());
    options.seed = seed;
    return options;
  };
  EXPECT_VALUE_ERROR(
      TPUEmbedding(with_seed(is_last() ? 8 : 0)),
      "has another configuration than rank");
  EXPECT_VALUE_ERROR(
      TPUEmbedding(small_options(
          sharded({.split = is_last() ? RowSplit::kMod : RowSplit::kDiv}))),
      "has another configuration than rank");
  // A configuration that can't be built at all.
  TPUEmbeddingOptions options = small_options(sharded());
  if (is_last()) {
    options.features = Nest<FeatureConfig>();
  }
  EXPECT_VALUE_ERROR(
      TPUEmbedding{options},
      reported(
          "[TPUEmbeddingOptions] features must have at least one feature"));
}

TEST(ShardedErrorTest, NamesOtherCallsOnOneRank) {
  NEEDS_TWO_RANKS();
  TPUEmbedding layer(small_options(sharded()));
  const std::string text = "All ranks must make the same calls";
  if (is_last()) {
    EXPECT_TORCH_ERROR((all_rows(layer)), text);
  } else {
    EXPECT_TORCH_ERROR((layer->forward({{"user", int64s({2})}})), text);
  }
  // A correct step succeeds afterwards.
  activation_of(layer, int64s({2})).sum().backward();
  EXPECT_EQ(layer->iterations(), 1);
  const auto first = activation_of(layer, int64s({2})).sum();
  const auto second = activation_of(layer, int64s({2})).sum();
  EXPECT_VALUE_ERROR(
      ((is_last() ? first : second).backward()),
      "it runs backward() over other forward() calls");
}

TEST(ShardedErrorTest, NamesUnusableOptions) {
  const auto users_on = [](int64_t on_rank) {
    return ShardingOptions{
        .placement = {{"users", TablePlacement::table_wise(on_rank)}}};
  };
  expect_refusals<ShardingOptions>(
      {{users_on(ranks()), "[ShardingOptions] table 'users' is placed on rank"},
       {{.placement = {{"movies", TablePlacement::table_wise(0)}}},
        "[ShardingOptions] placement must name tables that a feature uses, but "
        "names 'movies'"},
       {{.row_transport = at::kHalf},
        "[ShardingOptions] row_transport must be kFloat or kBFloat16, but got "
        "kHalf"},
       {{.gradient_transport = at::kDouble},
        "[ShardingOptions] gradient_transport must be kFloat or kBFloat16"},
       {{.lookup_threads = -1},
        "[ShardingOptions] lookup_threads must be in [0, 4096], but got -1"}},
      [](const ShardingOptions& options) {
        TPUEmbedding layer(small_options(sharded(options)));
      });
  EXPECT_VALUE_ERROR(
      TPUEmbedding(small_options(
          sharded(), optim::SGD{.use_gradient_accumulation = false})),
      "use_gradient_accumulation must be true under sharded_strategy(), but "
      "got false, which applies the gradients of duplicate ids one by one");
  EXPECT_VALUE_ERROR(
      distributed::sharded_strategy({}),
      "[sharded_strategy] backend must not be empty");
  if (distributed::has_mpi()) {
    EXPECT_VALUE_ERROR(
        distributed::make_mpi_backend(std::chrono::milliseconds(0)),
        "[make_mpi_backend] timeout must be from 1 ms to a year, but got 0 ms");
  }
}

TEST(ShardedErrorTest, CallsThatNeedWholeTablesSayThatTheyAreSpread) {
  TPUEmbedding layer(small_options(sharded()));
  if (ranks() == 1) {
    layer->embedding_tables();
    return;
  }
  EXPECT_TORCH_ERROR(
      (layer->embedding_tables()),
      "[embedding_tables] the tables are spread over");
  EXPECT_TORCH_ERROR(
      (test::saved(layer)), "[TPUEmbedding::save] the tables are spread over");
  EXPECT_INDEX_ERROR(
      (layer->read_rows("users", 3, kVocab + 1)), "has rows [0, 11)");
  EXPECT_VALUE_ERROR((layer->read_rows("movies", 0, 1)), "no table 'movies'");
}

TEST(ShardedErrorTest, DenseParametersMustBeTheSame) {
  const Strategy strategy = sharded();
  EXPECT_VALUE_ERROR(
      distributed::sum_gradients({at::Tensor()}, strategy),
      "[sum_gradients] parameters must be dense float32 tensors");
  EXPECT_VALUE_ERROR(
      distributed::broadcast_parameters(
          {at::zeros({2}, at::kDouble)}, strategy),
      "[broadcast_parameters] parameters must be dense float32 tensors");
  EXPECT_VALUE_ERROR(
      distributed::broadcast_parameters(
          MLP(MLPOptions{.units = {2}})->parameters(), strategy),
      "[broadcast_parameters] each parameter must have a size, but one has none, "
      "because its layer is not built.");
  if (ranks() > 1) {
    EXPECT_VALUE_ERROR(
        distributed::broadcast_parameters(
            {at::zeros({is_last() ? 3 : 2})}, strategy),
        "has parameters of other shapes");
  }
}

TEST(ShardedTest, AStepHasFourExchanges) {
  NEEDS_TWO_RANKS();
  const Strategy strategy = sharded();
  TPUEmbedding layer(small_options(strategy));
  at::Tensor dense = at::zeros({100});
  dense.mutable_grad() = at::ones({100});
  for (int step = 0; step < 3; ++step) {
    const int64_t before = group()->exchanges();
    activation_of(layer, int64s({1, 2 + rank()})).sum().backward();
    distributed::sum_gradients({dense}, strategy);
    EXPECT_EQ(group()->exchanges() - before, 4);
  }
}

}  // namespace tessera::sharded_test
