// SPDX-License-Identifier: Apache-2.0
// Tests tables with TableConfig::keys in archives, checkpoint directories and increments.
#include <tessera/engine/embedding_engine.h>
#include <tessera/engine/table_module.h>
#include <tessera/serialization/checkpoint.h>
#include <tessera/serialization/saved_features.h>

#include "serialization/manifest.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"
#include "tests/layers/layer_test_util.h"
#include "tests/serialization/changed_archive.h"
#include "tests/serialization/recording_disk.h"

namespace tessera::test::key_checkpoint_test {

namespace fs = std::filesystem;
using Keys = std::vector<int64_t>;

struct LayerSetup {
  DynamicKeys keys = {.capacity = 40};
  optim::OptimizerSpec optimizer = optim::Adagrad{.learning_rate = 0.5};
  at::ScalarType dtype = at::kFloat;
  int64_t dim = 3;
};

// A layer with a key table, and a table with a vocabulary.
TPUEmbedding make_layer(const LayerSetup& setup, uint64_t seed = 0) {
  const TablePtr items = make_table(
      {.name = "items",
       .dim = setup.dim,
       .dtype = setup.dtype,
       .stochastic_rounding = setup.dtype != at::kFloat,
       .keys = setup.keys});
  const TablePtr weeks = plain_table("weeks", 7, 2);
  return layer_of(
      features_of({{"item", items}, {"seen", items}, {"week", weeks}}),
      setup.optimizer,
      {.seed = seed});
}

const KeyIndex& index_of(const TPUEmbedding& layer) {
  return TableModule::of(*layer)->state().tables[0].key_rows->index();
}

Keys keys_of(const TPUEmbedding& layer) {
  Keys keys;
  for (const KeyEntry& entry : index_of(layer).sorted_entries()) {
    keys.push_back(entry.key);
  }
  return keys;
}

EmbeddingTables::Entry items_of(const TPUEmbedding& layer) {
  const EmbeddingTables tables = layer->embedding_tables();
  return *tables.begin();
}

Features batch_of(const Keys& items, const Keys& seen) {
  return {
      {"item", at::tensor(items, at::kLong)},
      {"seen", ragged({seen, {}})},
      {"week", int64s({1, 3})}};
}

// Batches with some frequent keys, and many that occur once or twice.
class Batches {
 public:
  Batches(int64_t distinct, int64_t size) : distinct_(distinct), size_(size) {}

  Features next() {
    Keys items(size_);
    Keys seen(size_ / 2 + 1);
    for (Keys* keys : {&items, &seen}) {
      for (int64_t& key : *keys) {
        key = pick();
      }
    }
    return batch_of(items, seen);
  }

 private:
  int64_t pick() {
    const double u = std::uniform_real_distribution<double>(0, 1)(random_);
    const auto rank =
        static_cast<uint64_t>(static_cast<double>(distinct_) * u * u * u);
    return static_cast<int64_t>(rank * 0xD1342543DE82EF95ULL);
  }

  std::mt19937 random_{5};
  int64_t distinct_;
  int64_t size_;
};

// Trains one step and returns the activations.
at::Tensor train(TPUEmbedding& layer, const Features& batch) {
  at::Tensor loss = at::zeros({});
  std::vector<at::Tensor> activations;
  for (const at::Tensor& activation : layer->forward(batch).flatten()) {
    loss = loss + (activation - 0.5).square().sum();
    activations.push_back(activation.detach().flatten());
  }
  loss.backward();
  return at::cat(activations);
}

void train_keys(TPUEmbedding& layer, const Keys& keys) {
  train(layer, batch_of(keys, {}));
}

// The number of keys that a checkpoint of the directory has, and how many it removes.
std::pair<int64_t, int64_t> changes_in(
    const std::string& directory,
    size_t number) {
  const fs::path folder =
      fs::path(directory) / list_checkpoints(directory).at(number);
  std::pair<int64_t, int64_t> changes;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    const auto count = static_cast<int64_t>(entry.file_size() / 8);
    changes.first += name.starts_with("table_0.keys.") ? count : 0;
    changes.second += name.starts_with("table_0.removed_keys.") ? count : 0;
  }
  return changes;
}

struct NamedSetup {
  std::string name;
  LayerSetup setup;
  int64_t distinct = 200;
  int64_t batch = 20;
  bool evicts = true;
};

std::vector<NamedSetup> named_setups() {
  using namespace admission;
  using namespace eviction;
  return {
      {"LeastRecentlyUsed",
       {.keys = {.capacity = 40, .eviction = LeastRecentlyUsed{}}}},
      {"LeastFrequentlyUsed",
       {.keys =
            {.capacity = 40, .eviction = LeastFrequentlyUsed{.half_life = 5}}}},
      {"OlderThan",
       {.keys = {.capacity = 40, .eviction = OlderThan{.updates = 3}}}},
      {"AfterOccurrences",
       {.keys = {.capacity = 20, .admission = AfterOccurrences{.count = 3}}}},
      {"AfterOccurrencesFewCounters",
       {.keys =
            {.capacity = 20,
             .admission = AfterOccurrences{.count = 4, .counters = 64},
             .eviction = LeastFrequentlyUsed{.half_life = 9}}}},
      {"WithProbability",
       {.keys =
            {.capacity = 20,
             .admission = WithProbability{.probability = 0.4}}}},
      {"CapacityOne",
       {.keys = {.capacity = 1, .eviction = LeastRecentlyUsed{}}}},
      {"SweepsOfAdam",
       {.keys = {.capacity = 40},
        .optimizer = optim::Adam{.learning_rate = 0.1}}},
      {"StochasticRounding",
       {.keys = {.capacity = 40}, .dtype = at::kBFloat16}},
      // Several partitions.
      {"Large",
       {.keys =
            {.capacity = 20'000,
             .admission = AfterOccurrences{.count = 2},
             .eviction = LeastFrequentlyUsed{.half_life = 3}}},
       60'000,
       8'000,
       false}};
}

class KeyCheckpointTest : public testing::TestWithParam<NamedSetup> {};

INSTANTIATE_TEST_SUITE_P(
    Setups,
    KeyCheckpointTest,
    testing::ValuesIn(named_setups()),
    [](const auto& info) { return info.param.name; });

// Loads of each kind of file continue like the layer that has saved it: the same keys are
// admitted and evicted at each step.
TEST_P(KeyCheckpointTest, EvictionStateSurvives) {
  const MemoryFolder folder;
  const NamedSetup& param = GetParam();
  TPUEmbedding layer = make_layer(param.setup);
  Batches batches(param.distinct, param.batch);
  for (int round = 0; round < 6; ++round) {
    train(layer, batches.next());
    train(layer, batches.next());
    torch::save(layer, folder / "layer.pt");
    layer->save_checkpoint(folder / "full");
    layer->save_checkpoint(
        folder / "increments",
        {.keep_last = 100, .full_every = 100, .file_bytes = 1000});

    std::vector<TPUEmbedding> loaded;
    for (uint64_t i = 0; i < 3; ++i) {
      loaded.push_back(make_layer(param.setup, 99 + i));
    }
    torch::load(loaded[0], folder / "layer.pt");
    loaded[1]->load_checkpoint(folder / "full");
    loaded[2]->load_checkpoint(folder / "increments");
    for (int step = 0; step < 3; ++step) {
      const std::string expected = saved(layer);
      for (TPUEmbedding& other : loaded) {
        ASSERT_TRUE(saved(other) == expected)
            << "round " << round << ", step " << step << ", file "
            << &other - loaded.data();
      }
      const Features batch = batches.next();
      const at::Tensor activations = train(layer, batch);
      for (TPUEmbedding& other : loaded) {
        ASSERT_TENSOR_EQ(train(other, batch), activations);
      }
    }
  }
  EXPECT_GT(index_of(layer).counts().admitted, 0);
  if (param.evicts) {
    EXPECT_GE(index_of(layer).counts().evicted, 10);
  }
}

// Increments must follow everything that may happen to a table.
TEST_P(KeyCheckpointTest, EveryIncrementLoads) {
  const MemoryFolder folder;
  const NamedSetup& param = GetParam();
  TPUEmbedding layer = make_layer(param.setup);
  Batches batches(param.distinct, param.batch);
  std::mt19937 random(3);
  std::vector<std::string> expected;
  int64_t removed = 0;
  for (int step = 0; step < 30; ++step) {
    switch (random() % 5) {
      case 0:
        layer->evict("items", 1);
        break;
      case 1: {
        const auto items = items_of(layer);
        layer->update_embedding_table(
            "items", items.keys.slice(0, 1), items.parameters.slice(0, 1));
        break;
      }
      case 2:
        layer->embedding_tables()["weeks"].add_(1.0F);
        break;
      default:
        train(layer, batches.next());
        train(layer, batches.next());
    }
    layer->save_checkpoint(
        folder / "run",
        {.keep_last = 100, .full_every = 5, .file_bytes = 5000});
    expected.push_back(saved(layer));
    removed += changes_in(folder / "run", expected.size() - 1).second;
  }
  // A table of one row is saved in full whenever its key changes.
  EXPECT_EQ(removed > 0, param.setup.keys.capacity > 1);
  const auto names = list_checkpoints(folder / "run");
  ASSERT_EQ(names.size(), expected.size());
  for (size_t i = 0; i < names.size(); ++i) {
    TPUEmbedding loaded = make_layer(param.setup, 99);
    train(loaded, batches.next());  // its own keys are replaced
    loaded->load_checkpoint(folder / "run", {.checkpoint = names[i]});
    EXPECT_TRUE(saved(loaded) == expected[i]) << names[i];
  }
}

TEST(KeyIncrementTest, HasOnlyTheChangedKeys) {
  using Changes = std::pair<int64_t, int64_t>;
  const MemoryFolder folder;
  const LayerSetup setup{
      .keys = {.capacity = 5, .eviction = eviction::LeastRecentlyUsed{}}};
  TPUEmbedding layer = make_layer(setup);
  size_t number = 0;
  const auto save = [&] {
    layer->save_checkpoint(
        folder / "run", {.keep_last = 100, .full_every = 100});
    TPUEmbedding loaded = make_layer(setup, 99);
    loaded->load_checkpoint(folder / "run");
    EXPECT_TRUE(saved(loaded) == saved(layer)) << "checkpoint " << number;
    return changes_in(folder / "run", number++);
  };
  train_keys(layer, {1, 2, 3});
  EXPECT_EQ(save(), Changes(3, 0));  // full
  EXPECT_EQ(save(), Changes(0, 0));
  train_keys(layer, {2, 4});
  EXPECT_EQ(save(), Changes(2, 0));
  // 2 and 4 stay.
  EXPECT_EQ(layer->evict("items", 1), 2);
  EXPECT_EQ(save(), Changes(0, 2));
  // 1 comes back, and other keys get the remaining rows.
  train_keys(layer, {1, 5, 6});
  EXPECT_EQ(save(), Changes(3, 0));
  // 7 gets the row of 2 or 4.
  train_keys(layer, {7});
  EXPECT_EQ(save(), Changes(1, 1));
  // A key may lose its row and get another one between two increments.
  train_keys(layer, {8, 9, 10, 11, 12});
  train_keys(layer, {1, 7});
  EXPECT_EQ(keys_of(layer).size(), 5U);
  EXPECT_EQ(save(), Changes(5, 0));  // all keys: a full table
  // A load moves rows, which changes nothing.
  layer->load_checkpoint(folder / "run");
  EXPECT_EQ(save(), Changes(0, 0));
  const at::Tensor keys = items_of(layer).keys.slice(0, 0, 2);
  layer->update_embedding_table("items", keys, at::full({2, setup.dim}, 0.25));
  EXPECT_EQ(save(), Changes(2, 0));
  // An increment may leave no key.
  for (int step = 0; step < 3; ++step) {
    train(layer, batch_of({}, {}));
  }
  layer->evict("items", 1);
  EXPECT_EQ(keys_of(layer), Keys{});
  EXPECT_EQ(save(), Changes(0, 0));
  train_keys(layer, {1});
  EXPECT_EQ(save(), Changes(1, 0));
}

// A load moves rows of all partitions, which changes nothing.
TEST(KeyIncrementTest, RowsMoveInManyPartitions) {
  const MemoryFolder folder;
  TPUEmbedding layer = make_layer({.keys = {.capacity = 20'000}});
  ASSERT_GT(index_of(layer).partitions().count(), 1);
  Keys keys(3000);
  for (const int64_t first : {1, 3001}) {
    std::iota(keys.begin(), keys.end(), first);
    train_keys(layer, keys);
  }
  const CheckpointOptions options{.keep_last = 9, .full_every = 9};
  layer->save_checkpoint(folder / "run", options);
  const std::vector<KeyEntry> before = index_of(layer).sorted_entries();
  layer->load_checkpoint(folder / "run");
  EXPECT_FALSE(index_of(layer).sorted_entries() == before);
  layer->save_checkpoint(folder / "run", options);
  EXPECT_EQ(changes_in(folder / "run", 1), std::pair(int64_t{0}, int64_t{0}));
}

// A write to a row from outside is found, as it is for tables with a vocabulary.
TEST(KeyIncrementTest, HasWritesFromOutside) {
  const MemoryFolder folder;
  TPUEmbedding layer = make_layer({});
  train_keys(layer, {1, 2, 3});
  layer->save_checkpoint(folder / "run", {.full_every = 100});
  const at::Tensor slot =
      TableModule::of(*layer)->state().tables[0].slots[0].values;
  slot[index_of(layer).sorted_entries()[1].row].fill_(7.0F);
  layer->save_checkpoint(folder / "run", {.full_every = 100});
  EXPECT_EQ(changes_in(folder / "run", 1).first, 1);
  TPUEmbedding loaded = make_layer({}, 99);
  loaded->load_checkpoint(folder / "run");
  EXPECT_TRUE(saved(loaded) == saved(layer));
}

TEST(KeyIncrementTest, CopiesSaveAllKeys) {
  const MemoryFolder folder;
  TPUEmbedding layer = make_layer({});
  train_keys(layer, {1, 2, 3});
  layer->save_checkpoint(folder / "run", {.full_every = 100});
  TPUEmbedding copy = clone_of(layer);
  train_keys(copy, {1});
  copy->save_checkpoint(folder / "run", {.full_every = 100});
  EXPECT_EQ(changes_in(folder / "run", 1).first, 3);
  // The layer's own changes still count from the checkpoint that it has written.
  layer->save_checkpoint(folder / "other", {.full_every = 100});
  train_keys(layer, {2});
  layer->save_checkpoint(folder / "other", {.full_every = 100});
  EXPECT_EQ(changes_in(folder / "other", 1).first, 1);
}

TEST(KeyCheckpointOptionsTest, AnEngineAndServingLoadIt) {
  const MemoryFolder folder;
  TPUEmbedding layer = make_layer({});
  Batches batches(100, 20);
  for (int step = 0; step < 4; ++step) {
    train(layer, batches.next());
  }
  layer->save_checkpoint(folder / "run");
  const auto features = saved_features(folder / "run");
  EmbeddingEngine engine(
      {.features = features,
       .optimizer = optim::Adagrad{.learning_rate = 0.5},
       .seed = 9});
  engine.load_checkpoint(folder / "run");
  engine.save_checkpoint(folder / "engine");
  TPUEmbedding loaded = make_layer({}, 99);
  loaded->load_checkpoint(folder / "engine");
  EXPECT_TRUE(saved(loaded) == saved(layer));

  TPUEmbedding rows = make_layer({}, 99);
  rows->load_checkpoint(folder / "run", {.slots = false});
  EXPECT_EQ(keys_of(rows), keys_of(layer));
  EXPECT_TENSOR_EQ(items_of(rows).parameters, items_of(layer).parameters);
  const TableState& table = TableModule::of(*rows)->state().tables[0];
  for (const KeyEntry& entry : index_of(rows).entries()) {
    EXPECT_TRUE(table.slots[0].values[entry.row].eq(0.1F).all().item<bool>());
  }
  TPUEmbedding some = make_layer({}, 99);
  some->load_checkpoint(folder / "run", {.tables = {"weeks"}});
  EXPECT_EQ(keys_of(some), Keys{});
}

// The counters alone decide about the halving, and all files have them.
TEST(KeySketchTest, ALoadedSketchIsHalvedInTheSameUpdate) {
  const MemoryFolder folder;
  const LayerSetup setup{
      .keys = {
          .capacity = 10,
          .admission = admission::AfterOccurrences{.count = 3}}};
  TPUEmbedding layer = make_layer(setup);
  const auto sum = [&] {
    const auto sketch = index_of(layer).sketch();
    return std::accumulate(sketch.begin(), sketch.end(), 0);
  };
  const CheckpointOptions increments{.keep_last = 9, .full_every = 9};
  layer->save_checkpoint(folder / "increments", increments);
  Keys keys(19);
  std::iota(keys.begin(), keys.end(), 1);
  train_keys(layer, keys);
  // The 40 counters may have a mean of 2.
  ASSERT_EQ(sum(), 76);
  torch::save(layer, folder / "layer.pt");
  layer->save_checkpoint(folder / "full");
  layer->save_checkpoint(folder / "increments", increments);
  std::vector<TPUEmbedding> loaded;
  for (uint64_t i = 0; i < 3; ++i) {
    loaded.push_back(make_layer(setup, 99 + i));
  }
  torch::load(loaded[0], folder / "layer.pt");
  loaded[1]->load_checkpoint(folder / "full");
  loaded[2]->load_checkpoint(folder / "increments");
  for (const Keys& next : {Keys{20}, Keys{21}, Keys{1, 2, 3}}) {
    train_keys(layer, next);
    for (TPUEmbedding& other : loaded) {
      train_keys(other, next);
      EXPECT_TRUE(saved(other) == saved(layer));
    }
    EXPECT_EQ(sum() > 60, next == Keys{20});
  }
}

TEST(KeySketchTest, AnIncrementHasTheSketchOnlyIfItHasChanged) {
  const MemoryFolder folder;
  const LayerSetup setup{
      .keys = {
          .capacity = 10,
          .admission = admission::AfterOccurrences{.count = 2}}};
  TPUEmbedding layer = make_layer(setup);
  train_keys(layer, {1, 2, 3});
  train_keys(layer, {1, 2, 3});
  const CheckpointOptions increments{.keep_last = 9, .full_every = 9};
  int number = 0;
  // Keys that have rows are not counted, but 4 has none.
  for (const Keys& keys : {Keys{1, 2}, Keys{1}, Keys{4}, Keys{2}, Keys{3}}) {
    train_keys(layer, keys);
    layer->save_checkpoint(folder / "run", increments);
    const std::string name = "checkpoint_00000" + std::to_string(++number);
    const bool is_first_or_new = number == 1 || keys == Keys{4};
    EXPECT_EQ(
        fs::exists(fs::path(folder / "run") / name / "table_0.sketch.0"),
        is_first_or_new)
        << name;
    TPUEmbedding loaded = make_layer(setup, 99);
    loaded->load_checkpoint(folder / "run");
    EXPECT_TRUE(saved(loaded) == saved(layer)) << name;
  }
  // The last one needs the sketch of the third.
  const fs::path sketch =
      fs::path(folder / "run") / "checkpoint_000003" / "table_0.sketch.0";
  fs::resize_file(sketch, fs::file_size(sketch) - 1);
  TPUEmbedding other = make_layer(setup, 99);
  const std::string before = saved(other);
  EXPECT_VALUE_ERROR(other->load_checkpoint(folder / "run"), sketch.string());
  EXPECT_TRUE(saved(other) == before);
}

TEST(KeyCheckpointOptionsTest, AnotherConfig) {
  using namespace admission;
  using namespace eviction;
  const MemoryFolder folder;
  TPUEmbedding layer =
      make_layer({.keys = {.capacity = 40, .eviction = LeastRecentlyUsed{}}});
  Batches batches(100, 20);
  for (int step = 0; step < 4; ++step) {
    train(layer, batches.next());
  }
  const std::string run = folder / "run";
  layer->save_checkpoint(run);
  const auto expect_refused = [&](const LayerSetup& setup,
                                  const std::string& problem) {
    TPUEmbedding other = make_layer(setup, 99);
    train_keys(other, {5});
    const std::string before = saved(other);
    EXPECT_VALUE_ERROR(other->load_checkpoint(run), problem);
    EXPECT_TRUE(saved(other) == before);
  };
  expect_refused(
      {.keys = {.capacity = 39}},
      "table 'items' has a capacity of 39 rows in 1 partitions, but 40 keys");
  expect_refused(
      {.keys = {.capacity = 40, .admission = AfterOccurrences{.count = 2}}},
      "the sketch of table 'items' must have 160 counters, but got 0");
  expect_refused({.dim = 4}, "parameters is float32 [40, 4] in the layer");
  expect_refused(
      {.optimizer = optim::SGD{}},
      "the optimizer is SGD, but the saved one is Adagrad");

  // Another capacity moves the rows, also to other partitions.
  TPUEmbedding large = make_layer({.keys = {.capacity = 50'000}}, 99);
  large->load_checkpoint(run);
  EXPECT_EQ(keys_of(large), keys_of(layer));
  EXPECT_TENSOR_EQ(items_of(large).parameters, items_of(layer).parameters);
  // Another eviction takes over the scores that it needs. Each key has occurred once, at
  // its last update.
  TPUEmbedding frequent = make_layer(
      {.keys = {.capacity = 40, .eviction = LeastFrequentlyUsed{}}}, 99);
  frequent->load_checkpoint(run);
  const auto expected = index_of(layer).sorted_entries();
  const auto actual = index_of(frequent).sorted_entries();
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    EXPECT_EQ(actual[i].last_update, expected[i].last_update);
    EXPECT_FLOAT_EQ(
        actual[i].frequency,
        static_cast<float>(expected[i].last_update) / 10'000.0F);
  }
}

// The kinds of file from which a layer can be loaded.
class KeyConversionTest : public testing::TestWithParam<std::string> {
 protected:
  void save(TPUEmbedding& layer) {
    if (GetParam() == "Archive") {
      torch::save(layer, folder_ / "layer.pt");
    } else {
      layer->save_checkpoint(
          folder_ / "run",
          {.keep_last = 100, .full_every = GetParam() == "Full" ? 1 : 100});
    }
  }
  void load(TPUEmbedding& layer, const LoadOptions& options = {}) {
    if (GetParam() == "Archive") {
      torch::serialize::InputArchive archive;
      archive.load_from(folder_ / "layer.pt");
      layer->load(archive, options);
    } else {
      layer->load_checkpoint(folder_ / "run", options);
    }
  }

  // A layer with a vocabulary of `vocabulary_size`, or with keys if that is 0.
  static TPUEmbedding make(int64_t vocabulary_size, uint64_t seed = 0) {
    TableConfig config{.name = "t", .dim = 3};
    if (vocabulary_size > 0) {
      config.vocabulary_size = vocabulary_size;
    } else {
      config.keys = DynamicKeys{.capacity = 20};
    }
    return layer_of(
        features_of({{"id", make_table(config)}}),
        optim::Adagrad{.learning_rate = 0.5},
        {.seed = seed});
  }
  static void train(TPUEmbedding& layer, const Keys& keys) {
    layer->forward({{"id", at::tensor(keys, at::kLong)}})["id"]
        .square()
        .sum()
        .backward();
  }
  static at::Tensor slots_of(const TPUEmbedding& layer) {
    const TableState& table = TableModule::of(*layer)->state().tables[0];
    if (table.key_rows == nullptr) {
      return table.slots[0].values;
    }
    return table.slots[0].values.index_select(
        0, table.key_rows->sorted_keys().rows);
  }

  const MemoryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(
    From,
    KeyConversionTest,
    testing::Values("Archive", "Full", "Increment"),
    [](const auto& info) { return info.param; });

TEST_P(KeyConversionTest, RowsOfAVocabularyBecomeKeys) {
  TPUEmbedding known = make(12);
  save(known);
  train(known, {3, 5, 11});
  save(known);
  TPUEmbedding layer = make(0, 99);
  train(layer, {-4});
  load(layer);
  EXPECT_EQ(keys_of(layer), (Keys{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(index_of(layer).counts(), (KeyCounts{.admitted = 12}));
  const auto expect_same = [&] {
    EXPECT_TENSOR_EQ(
        items_of(layer).parameters, known->embedding_tables()["t"]);
    EXPECT_TENSOR_EQ(slots_of(layer), slots_of(known));
  };
  expect_same();
  EXPECT_EQ(layer->iterations(), 1);
  train(known, {3, 4});
  train(layer, {3, 4});
  expect_same();
}

TEST_P(KeyConversionTest, KeysBecomeRowsOfAVocabulary) {
  TPUEmbedding layer = make(0);
  train(layer, {1, 5, 7});
  save(layer);
  train(layer, {5, 9});
  save(layer);
  TPUEmbedding known = make(12, 99);
  const at::Tensor initial = known->embedding_tables()["t"].clone();
  load(known);
  const at::Tensor keys = int64s({1, 5, 7, 9});
  const at::Tensor rows = known->embedding_tables()["t"];
  EXPECT_TENSOR_EQ(rows.index_select(0, keys), items_of(layer).parameters);
  EXPECT_TENSOR_EQ(slots_of(known).index_select(0, keys), slots_of(layer));
  const at::Tensor others = int64s({0, 2, 3, 4, 6, 8, 10, 11});
  EXPECT_TENSOR_EQ(
      rows.index_select(0, others), initial.index_select(0, others));
  train(known, {5, 9});
  train(layer, {5, 9});
  EXPECT_TENSOR_EQ(rows.index_select(0, keys), items_of(layer).parameters);

  for (const int64_t key : {int64_t{-1}, int64_t{12}}) {
    train(layer, {key});
    save(layer);
    const std::string before = saved(known);
    EXPECT_VALUE_ERROR(
        load(known),
        "table 't' was saved with keys, but has a vocabulary of 12 rows in the "
        "layer, and the saved key " +
            std::to_string(key) + " is none of these rows");
    EXPECT_TRUE(saved(known) == before);
    layer->update_embedding_table(
        "t", int64s({1}), at::zeros({1, 3}));  // removes the key
  }
}

// A layer that keeps its own step counter takes the age of the keys, not their updates.
TEST_P(KeyConversionTest, KeysKeepTheirAgeBesideAnotherCounter) {
  using namespace eviction;
  for (const Eviction& eviction : std::vector<Eviction>{
           LeastRecentlyUsed{}, LeastFrequentlyUsed{.half_life = 4}}) {
    const LayerSetup setup{.keys = {.capacity = 5, .eviction = eviction}};
    TPUEmbedding layer = make_layer(setup);
    for (int64_t key = 1; key <= 5; ++key) {
      train_keys(layer, {9});
      train_keys(layer, {key});
    }
    save(layer);
    EXPECT_EQ(index_of(layer).sorted_entries().back().key, 9);
    for (const int64_t steps : {0, 6, 30}) {
      TPUEmbedding other = make_layer(setup, 99);
      for (int64_t step = 0; step < steps; ++step) {
        train_keys(other, {20 + step % 5});
      }
      load(other, {.tables = {"items"}});
      const auto entries = index_of(other).sorted_entries();
      const auto before = index_of(layer).sorted_entries();
      ASSERT_EQ(entries.size(), before.size());
      for (size_t i = 0; i < entries.size(); ++i) {
        const int64_t age = 10 - int64_t{before[i].last_update};
        EXPECT_EQ(entries[i].last_update, std::max<int64_t>(0, steps - age));
      }
      // The layer goes on as the saved one does, if it is not younger than the keys.
      TPUEmbedding copy = clone_of(layer);
      for (const Keys& keys : std::vector<Keys>{{30}, {31, 4}, {32}}) {
        train_keys(copy, keys);
        train_keys(other, keys);
        if (steps >= 10) {
          EXPECT_EQ(keys_of(other), keys_of(copy));
        }
        EXPECT_TRUE(std::ranges::count(keys_of(other), keys[0]) == 1);
      }
    }
  }
}

TEST_P(KeyConversionTest, FrequenciesKeepTheirValueUnderAnotherHalfLife) {
  const auto make_with = [](const Eviction& eviction) {
    return make_layer({.keys = {.capacity = 5, .eviction = eviction}});
  };
  constexpr double kUpdates = 12.0;
  TPUEmbedding layer =
      make_with(eviction::LeastFrequentlyUsed{.half_life = 10});
  for (int64_t step = 0; step < 12; ++step) {
    train_keys(layer, {step % 3, 7});
  }
  save(layer);
  const auto before = index_of(layer).sorted_entries();
  for (const double half_life : {1.0, 100.0}) {
    TPUEmbedding other =
        make_with(eviction::LeastFrequentlyUsed{.half_life = half_life});
    load(other);
    const auto entries = index_of(other).sorted_entries();
    ASSERT_EQ(entries.size(), 4);
    for (size_t i = 0; i < entries.size(); ++i) {
      EXPECT_NEAR(
          entries[i].frequency - kUpdates / half_life,
          before[i].frequency - kUpdates / 10,
          1e-5);
    }
    // The way back restores the frequencies, up to rounding.
    save(other);
    TPUEmbedding again =
        make_with(eviction::LeastFrequentlyUsed{.half_life = 10});
    load(again);
    const auto restored = index_of(again).sorted_entries();
    for (size_t i = 0; i < restored.size(); ++i) {
      EXPECT_NEAR(restored[i].frequency, before[i].frequency, 1e-5);
    }
    save(layer);
  }
  // Keys without frequencies count as one occurrence at their last update.
  TPUEmbedding recent = make_with(eviction::LeastRecentlyUsed{});
  load(recent);
  save(recent);
  TPUEmbedding frequent =
      make_with(eviction::LeastFrequentlyUsed{.half_life = 4});
  load(frequent);
  for (const KeyEntry& entry : index_of(frequent).sorted_entries()) {
    EXPECT_FLOAT_EQ(
        entry.frequency, static_cast<float>(entry.last_update) / 4.0F);
  }
}

// The sketches have as many counters, but keys have other ones.
TEST_P(KeyConversionTest, RefusesASketchOfOtherPartitions) {
  const auto make_with = [](int64_t capacity) {
    return make_layer(
        {.keys = {
             .capacity = capacity,
             .admission = admission::AfterOccurrences{
                 .count = 2, .counters = 1 << 15}}});
  };
  TPUEmbedding layer = make_with(4096);
  train_keys(layer, {1, 2});
  save(layer);
  TPUEmbedding other = make_with(8192);
  train_keys(other, {5, 5});
  EXPECT_VALUE_ERROR(
      load(other),
      "was saved with 1 partitions, but a capacity of 8192 has 2. Nothing was");
  EXPECT_EQ(keys_of(other), (Keys{5}));
}

TEST_P(KeyConversionTest, UpdatesAreCountedAfterAnAccumulation) {
  optim::Adagrad adagrad{.learning_rate = 0.5};
  adagrad.gradient_accumulation_steps = 2;
  const auto make_accumulating = [&](uint64_t seed) {
    return make_layer({.keys = {.capacity = 3}, .optimizer = adagrad}, seed);
  };
  TPUEmbedding layer = make_accumulating(0);
  for (int64_t key = 1; key <= 3; ++key) {
    train_keys(layer, {key});
    train_keys(layer, {key});
  }
  EXPECT_EQ(layer->evict("items", 2), 1);
  EXPECT_EQ(keys_of(layer), (Keys{2, 3}));
  // In the middle of an accumulation, a file also has the keys that have occurred.
  for (const Keys& keys : std::vector<Keys>{{1, 1}, {4, 2}, {5}, {2, 6}}) {
    train_keys(layer, keys);
    save(layer);
    TPUEmbedding loaded = make_accumulating(99);
    train_keys(loaded, {8});
    load(loaded);
    EXPECT_TRUE(saved(loaded) == saved(layer));
    TPUEmbedding copy = clone_of(layer);
    for (int64_t step = 0; step < 3; ++step) {
      train_keys(copy, {2, 3 * step});
      train_keys(loaded, {2, 3 * step});
      EXPECT_TRUE(saved(loaded) == saved(copy)) << "step " << step;
    }
  }

  train_keys(layer, {1});
  save(layer);
  const auto make_static = [&] {
    return layer_of(
        features_of({{"item", plain_table("items", 9, 3)}}), adagrad);
  };
  TPUEmbedding known = make_static();
  EXPECT_VALUE_ERROR(
      load(known),
      "table 'items': it was saved with keys in the middle of an accumulation "
      "over 2 passes, and only a table of the same kind can take");
}

// A key table and one with a vocabulary, from files of older versions.
TEST(OldSlotsTest, MeanSquaresBecomeVariances) {
  const LayerSetup setup{
      .optimizer = optim::RMSprop{.momentum = 0.5, .centered = true}};
  TPUEmbedding layer = make_layer(setup);
  Batches batches(30, 10);
  for (int step = 0; step < 5; ++step) {
    train(layer, batches.next());
  }
  std::vector<at::Tensor> variances;
  std::vector<at::Tensor> means;
  for (size_t table = 0; table < 2; ++table) {
    variances.push_back(slot_of(layer, table, "variances"));
    means.push_back(slot_of(layer, table, "means"));
    ASSERT_TRUE((variances[table] > 0).any().item<bool>());
  }

  std::istringstream archive(
      changed_archive(saved(layer), [&](std::string& key, at::Tensor& value) {
        if (key == "slot_variances") {
          key = "slot_mean_squares";
          const size_t table = at::equal(value, variances[0]) ? 0 : 1;
          value = value + means[table].square();
        }
        return true;
      }));
  TPUEmbedding loaded = make_layer(setup, /*seed=*/9);
  torch::load(loaded, archive);
  for (size_t table = 0; table < 2; ++table) {
    SCOPED_TRACE(table);
    expect_close(
        slot_of(loaded, table, "variances"), variances[table], 1e-5, 1e-5);
    EXPECT_TENSOR_EQ(slot_of(loaded, table, "means"), means[table]);
  }

  // The numbers of the variances stand for mean squares.
  const MemoryFolder folder;
  layer->save_checkpoint(folder / "run");
  const std::string path = folder / "run/checkpoint_000001/manifest.json";
  Manifest manifest = manifest_from_text(read_file(path), "[test]");
  for (ManifestTable& table : manifest.tables) {
    for (ManifestTensor& tensor : table.tensors) {
      if (tensor.name == "slot_variances") {
        tensor.name = "slot_mean_squares";
      }
    }
  }
  write_file(path, to_text(manifest));
  TPUEmbedding other = make_layer(setup, /*seed=*/9);
  other->load_checkpoint(folder / "run");
  for (size_t table = 0; table < 2; ++table) {
    SCOPED_TRACE(table);
    const at::Tensor actual = slot_of(other, table, "variances");
    expect_close(
        actual, (variances[table] - means[table].square()).clamp_min(0));
    EXPECT_TRUE((actual > 0).any().item<bool>());
  }
}

}  // namespace tessera::test::key_checkpoint_test
