// SPDX-License-Identifier: Apache-2.0
// Tables with TableConfig::keys in the layer. Where no key is evicted, they must do what
// a table with a vocabulary does.
#include <tessera/engine/embedding_engine.h>
#include <tessera/engine/serving_lookup.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/prefetch.h>
#include <tessera/serialization/config_json.h>

#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"
#include "src/tables/reserved_memory.h"
#include "tests/anonymous_memory.h"
#include "tests/layers/layer_test_util.h"
#include "tests/optim/all_specs.h"

namespace tessera::test::key_table_test {

// The key of row i. Keys are spread over all of int64.
int64_t key_of(int64_t row) {
  return static_cast<int64_t>(
      static_cast<uint64_t>(row) * 0xD1342543DE82EF95ULL);
}

at::Tensor keys_of(const at::Tensor& rows) {
  return rows * key_of(1);
}

// A function of the row, for both kinds of table.
float initial_value(int64_t row, int64_t column) {
  return 0.01F * static_cast<float>((7 * row + column) % 31) - 0.1F;
}

initializers::Callable initial_rows(std::function<int64_t(int64_t)> row_of) {
  return {"rows", [row_of](const at::Tensor& ids, int64_t dim) {
            at::Tensor values = at::zeros({ids.numel(), dim}, at::kFloat);
            auto* out = values.mutable_data_ptr<float>();
            for (int64_t i = 0; i < ids.numel(); ++i) {
              for (int64_t c = 0; c < dim; ++c) {
                *out++ = initial_value(row_of(ids[i].item<int64_t>()), c);
              }
            }
            return values;
          }};
}

constexpr int64_t kVocab = 40;
constexpr int64_t kDim = 5;

// The row of a key; key_of() has this inverse.
int64_t row_of_key(int64_t key) {
  for (int64_t row = 0; row < kVocab; ++row) {
    if (key_of(row) == key) {
      return row;
    }
  }
  return -1;
}

struct TableOptions {
  at::ScalarType dtype = at::kFloat;
  Combiner combiner = Combiner::kMean;
  DynamicKeys keys = {.capacity = 64};
};

TablePtr static_table(const TableOptions& options) {
  return make_table(
      {.name = "t",
       .vocabulary_size = kVocab,
       .dim = kDim,
       .combiner = options.combiner,
       .initializer = initial_rows([](int64_t id) { return id; }),
       .dtype = options.dtype,
       .stochastic_rounding = false});
}

TablePtr key_table(const TableOptions& options) {
  return make_table(
      {.name = "t",
       .dim = kDim,
       .combiner = options.combiner,
       .initializer = initial_rows(row_of_key),
       .dtype = options.dtype,
       .stochastic_rounding = false,
       .keys = options.keys});
}

TPUEmbedding make_layer(
    const TablePtr& table,
    const optim::OptimizerSpec& optimizer,
    Apply apply = Apply::kInBackward) {
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"dense", FeatureConfig{.table = table}},
           {"ragged", FeatureConfig{.table = table}},
           {"sparse", FeatureConfig{.table = table}},
           {"sequence",
            FeatureConfig{.table = table, .max_sequence_length = 3}}},
      .optimizer = optimizer,
      .apply = apply,
      .seed = 3});
}

// A table with rows of two ones.
TableConfig small_table(DynamicKeys keys) {
  return {
      .name = "t",
      .dim = 2,
      .initializer = initializers::Constant{.value = 1.0},
      .keys = std::move(keys)};
}

TPUEmbedding small_layer(
    DynamicKeys keys,
    optim::OptimizerSpec optimizer = optim::SGD{.learning_rate = 1.0},
    Apply apply = Apply::kInBackward) {
  return layer_of(
      small_table(std::move(keys)), std::move(optimizer), {.apply = apply});
}

at::Tensor lookup(TPUEmbedding& layer, const at::Tensor& keys) {
  return layer->forward({{"id", keys}})["id"];
}

// The rows without training.
at::Tensor stored(TPUEmbedding& layer, const at::Tensor& keys) {
  const at::NoGradGuard no_grad;
  return lookup(layer, keys);
}

void expect_rows(
    TPUEmbedding& layer,
    std::initializer_list<int64_t> keys,
    const at::Tensor& expected) {
  EXPECT_TENSOR_EQ(stored(layer, int64s(keys)), expected);
}

void train(TPUEmbedding& layer, const at::Tensor& keys) {
  lookup(layer, keys).sum().backward();
}

const KeyIndex& index_of(const TPUEmbedding& layer) {
  return TableModule::of(*layer)->state().tables[0].key_rows->index();
}

std::vector<int64_t> keys_of(const TPUEmbedding& layer) {
  const EmbeddingTables tables = layer->embedding_tables();
  const at::Tensor& keys = tables.begin()->keys;
  const auto* begin = keys.const_data_ptr<int64_t>();
  return {begin, begin + keys.numel()};
}

using Keys = std::vector<int64_t>;

class Batches {
 public:
  struct Pair {
    Features with_rows;
    Features with_keys;
  };

  Pair next() {
    std::vector<int64_t> dense(6);
    for (int64_t& id : dense) {
      id = pick();
    }
    Rows bags;
    Rows short_bags;
    for (int i = 0; i < 4; ++i) {
      bags.emplace_back(random_() % 4);
      short_bags.emplace_back(random_() % 5);
      for (auto* bag : {&bags.back(), &short_bags.back()}) {
        for (int64_t& id : *bag) {
          id = pick();
        }
      }
    }
    const at::Tensor ids = at::tensor(dense, at::kLong);
    const RaggedFeature ragged = test::ragged(bags);
    const SparseFeature sparse = test::sparse(bags, 4);
    const RaggedFeature sequence = test::ragged(short_bags);
    const auto features = [](const at::Tensor& dense,
                             const RaggedFeature& ragged,
                             const SparseFeature& sparse,
                             const RaggedFeature& sequence) {
      return Features{
          {"dense", dense},
          {"ragged", ragged},
          {"sparse", sparse},
          {"sequence", sequence}};
    };
    return {
        features(ids, ragged, sparse, sequence),
        features(
            keys_of(ids),
            {keys_of(ragged.values), ragged.row_splits},
            {sparse.indices, keys_of(sparse.values), sparse.dense_shape},
            {keys_of(sequence.values), sequence.row_splits})};
  }

 private:
  int64_t pick() {
    const double u = std::uniform_real_distribution<>(0.0, 1.0)(random_);
    return static_cast<int64_t>(kVocab * u * u);
  }

  std::mt19937_64 random_{11};
};

void expect_equal(const Nest<at::Tensor>& a, const Nest<at::Tensor>& b) {
  const auto x = a.flatten();
  const auto y = b.flatten();
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_TENSOR_EQ(x[i], y[i]) << "feature " << i;
  }
}

class KeyTableSpecTest : public testing::TestWithParam<NamedSpec> {};

TEST_P(KeyTableSpecTest, EqualsATableWithAVocabulary) {
  // LibTorch's operators, with which the custom rule computes, round a row by its place in
  // the tensor.
  const bool is_exact = GetParam().name != "Custom";
  for (const TableOptions& options :
       {TableOptions{},
        TableOptions{.combiner = Combiner::kSqrtn},
        TableOptions{.dtype = at::kBFloat16, .combiner = Combiner::kSum}}) {
    if (!is_exact && options.dtype != at::kFloat) {
      continue;
    }
    TPUEmbedding known = make_layer(static_table(options), GetParam().spec);
    TPUEmbedding keyed = make_layer(key_table(options), GetParam().spec);
    Batches batches;
    for (int step = 0; step < 12; ++step) {
      SCOPED_TRACE(step);
      const Batches::Pair batch = batches.next();
      const auto expected = known->forward(batch.with_rows);
      const auto actual = keyed->forward(batch.with_keys);
      if (is_exact) {
        expect_equal(actual, expected);
      } else {
        expect_close(actual["ragged"], expected["ragged"], 1e-4, 1e-5);
      }
      loss_of(expected).backward();
      loss_of(actual).backward();
    }
    const EmbeddingState& state = TableModule::of(*keyed)->state();
    EXPECT_EQ(state.passes, 12);
    EXPECT_GT(state.tables[0].key_rows->index().size(), 30);
  }
}

TEST_P(KeyTableSpecTest, RecordsWhichKeysWereUsed) {
  TPUEmbedding layer = small_layer({.capacity = 6000}, GetParam().spec);
  const auto last_updates = [&] {
    std::map<int64_t, uint32_t> result;
    for (const KeyEntry& entry : index_of(layer).entries()) {
      result[entry.key] = entry.last_update;
    }
    return result;
  };
  train(layer, at::arange(5000, at::kLong));
  std::map<int64_t, uint32_t> expected;
  for (int64_t key = 0; key < 5000; ++key) {
    expected[key] = 1;
  }
  EXPECT_EQ(last_updates(), expected);
  // So many keys are updated in several bins, and so few in one.
  const std::vector<std::pair<int64_t, int64_t>> ranges{{1000, 4500}, {4, 7}};
  for (size_t i = 0; i < ranges.size(); ++i) {
    const auto [begin, end] = ranges[i];
    train(layer, at::arange(begin, end, at::kLong).repeat({2}));
    for (int64_t key = begin; key < end; ++key) {
      expected[key] = static_cast<uint32_t>(i) + 2;
    }
    EXPECT_EQ(last_updates(), expected);
  }
}

// An update of this many keys has several bins, and new keys are between others.
TEST_P(KeyTableSpecTest, ManyNewKeysStartAtTheirInitialValues) {
  TPUEmbedding layer = small_layer({.capacity = 8000}, GetParam().spec);
  TPUEmbedding expected = layer_of(
      {.name = "t",
       .vocabulary_size = 15'000,
       .dim = 2,
       .initializer = initializers::Constant{.value = 1.0}},
      GetParam().spec);
  // The last two evict keys that were not used since the first.
  for (const int64_t begin : {0, 2500, 5000, 7500}) {
    const at::Tensor keys =
        at::arange(begin, begin + 4000, at::kLong).repeat({2});
    train(layer, keys);
    train(expected, keys);
  }
  EXPECT_EQ(index_of(layer).size(), 8000);
  const at::Tensor keys = at::tensor(keys_of(layer), at::kLong);
  expect_close(stored(layer, keys), stored(expected, keys), 1e-6, 1e-6);
  EXPECT_FALSE(at::equal(stored(layer, keys), at::ones({8000, 2})));
}

TEST(KeyTableTest, ManyNewKeysWithoutAGradientKeepTheirInitialValues) {
  TPUEmbedding layer = small_layer(
      {.capacity = 8000,
       .admission =
           admission::AfterOccurrences{.count = 2, .counters = 1 << 24}});
  // Each lookup alone gives zeros, and both together admit the keys.
  const at::Tensor keys = at::arange(3000, at::kLong);
  (lookup(layer, keys) + lookup(layer, keys)).sum().backward();
  EXPECT_EQ(index_of(layer).size(), 3000);
  EXPECT_TENSOR_EQ(stored(layer, keys), at::ones({3000, 2}));
}

TEST_P(KeyTableSpecTest, IsSavedAndContinues) {
  const TableOptions options{
      .keys = {
          .capacity = 30,
          .admission = admission::AfterOccurrences{.count = 4},
          .default_key = key_of(5)}};
  TPUEmbedding layer = make_layer(key_table(options), GetParam().spec);
  Batches batches;
  for (int step = 0; step < 4; ++step) {
    loss_of(layer->forward(batches.next().with_keys)).backward();
  }
  TPUEmbedding loaded = make_layer(key_table(options), GetParam().spec);
  copy_by_archive(layer, loaded);
  TPUEmbedding copy = clone_of(layer);
  for (int step = 0; step < 4; ++step) {
    const Features batch = batches.next().with_keys;
    const auto expected = layer->forward(batch);
    for (TPUEmbedding& other : {std::ref(loaded), std::ref(copy)}) {
      const auto actual = other->forward(batch);
      expect_equal(actual, expected);
      loss_of(actual).backward();
    }
    loss_of(expected).backward();
  }
  EXPECT_EQ(keys_of(loaded), keys_of(layer));
  EXPECT_EQ(index_of(loaded).counts(), index_of(layer).counts());
}

INSTANTIATE_TEST_SUITE_P(Specs, KeyTableSpecTest, all_variants(), spec_name);

TEST(KeyTableTest, ForwardChangesNothing) {
  TPUEmbedding layer = small_layer({.capacity = 10});
  const at::Tensor first = lookup(layer, int64s({5, -7}));
  EXPECT_TENSOR_EQ(first, at::ones({2, 2}));
  EXPECT_EQ(index_of(layer).size(), 0);
  expect_close(stored(layer, int64s({5})), at::zeros({1, 2}));
  first.sum().backward();
  EXPECT_EQ(keys_of(layer), (Keys{-7, 5}));
  expect_close(stored(layer, int64s({5, 6})), floats({2, 2}, {0, 0, 0, 0}));
}

TEST(KeyTableTest, InitialValuesAreAFunctionOfTheKey) {
  const auto layer = [](int64_t capacity) {
    return layer_of(
        {.name = "t", .dim = 3, .keys = DynamicKeys{.capacity = capacity}},
        optim::SGD{.learning_rate = 0.0});
  };
  TPUEmbedding a = layer(100);
  TPUEmbedding b = layer(20'000);
  const at::Tensor keys =
      int64s({std::numeric_limits<int64_t>::min(), -1, 0, 7, 1'000'000'007});
  train(b, int64s({3, 7}));
  const at::Tensor values = lookup(a, keys).detach();
  EXPECT_TENSOR_EQ(lookup(b, keys).detach(), values);
  train(a, keys.flip(0));
  EXPECT_TENSOR_EQ(stored(a, keys), values);
  EXPECT_FALSE(at::equal(values[0], values[1]));
}

TEST(KeyTableTest, TheUpdateTakesTheInitialValuesOfTheLookup) {
  int64_t computed = 0;  // values
  const auto count_row_of_key = [&](int64_t key) {
    ++computed;
    return row_of_key(key);
  };
  TPUEmbedding layer = layer_of(
      {.name = "t",
       .dim = kDim,
       .initializer = initial_rows(count_row_of_key),
       .keys = DynamicKeys{.capacity = 30}},
      optim::SGD{.learning_rate = 0.0});
  const auto expect_initial_rows = [&] {
    const std::vector<int64_t> keys = keys_of(layer);
    const at::Tensor values = stored(layer, at::tensor(keys, at::kLong));
    for (size_t i = 0; i < keys.size(); ++i) {
      for (int64_t c = 0; c < kDim; ++c) {
        EXPECT_EQ(
            values[static_cast<int64_t>(i)][c].item<float>(),
            initial_value(row_of_key(keys[i]), c));
      }
    }
  };
  train(layer, keys_of(at::arange(10, at::kLong)));
  EXPECT_EQ(computed, 10 * kDim);
  expect_initial_rows();
  // Each lookup computes its own keys, and the update needs those of both.
  (lookup(layer, keys_of(at::arange(8, 15, at::kLong))).sum() +
   lookup(layer, keys_of(at::arange(12, 20, at::kLong))).sum())
      .backward();
  EXPECT_EQ(computed, (10 + 5 + 8) * kDim);
  expect_initial_rows();
  // Some of the new keys get no row.
  train(layer, keys_of(at::arange(15, kVocab, at::kLong)));
  EXPECT_EQ(computed, (10 + 5 + 8 + 20) * kDim);
  EXPECT_EQ(index_of(layer).size(), 30);
  expect_initial_rows();
}

TEST(KeyTableTest, RareKeysLookUpZerosAndGetNoGradient) {
  TPUEmbedding layer = small_layer(
      {.capacity = 10, .admission = admission::AfterOccurrences{.count = 3}});
  const at::Tensor first = lookup(layer, int64s({4, 5, 5}));
  EXPECT_TENSOR_EQ(first, at::zeros({3, 2}));
  first.sum().backward();
  EXPECT_EQ(index_of(layer).size(), 0);
  // 5 occurs for the third time.
  const at::Tensor second = lookup(layer, int64s({4, 5}));
  EXPECT_TENSOR_EQ(second, floats({2, 2}, {0, 0, 1, 1}));
  second.sum().backward();
  EXPECT_EQ(keys_of(layer), (Keys{5}));
  expect_close(stored(layer, int64s({5})), at::zeros({1, 2}));
}

// --- the default key -----------------------------------------------------------

constexpr int64_t kDefault = -12;

DynamicKeys keys_with_default(int64_t capacity, int64_t count) {
  return {
      .capacity = capacity,
      .admission =
          admission::AfterOccurrences{.count = count, .counters = 1 << 22},
      .default_key = kDefault};
}

TEST(KeyTableTest, UnknownKeysShareTheRowOfTheDefaultKey) {
  TPUEmbedding layer = small_layer(keys_with_default(10, 3));
  const at::Tensor first = lookup(layer, int64s({4, 5, 5}));
  // All three look up the initial value of the default key.
  EXPECT_TENSOR_EQ(first, at::ones({3, 2}));
  (first * floats({3, 1}, {0.25, 0.5, 2})).sum().backward();
  EXPECT_EQ(keys_of(layer), (Keys{kDefault}));
  const at::Tensor shared = at::full({1, 2}, 1 - 2.75);
  EXPECT_TENSOR_EQ(stored(layer, int64s({kDefault})), shared);
  EXPECT_TENSOR_EQ(stored(layer, int64s({5})), shared);
  // 5 occurs for the third time, and gets a row of its own.
  const at::Tensor second = lookup(layer, int64s({4, 5}));
  EXPECT_TENSOR_EQ(second, floats({2, 2}, {-1.75, -1.75, 1, 1}));
  second.sum().backward();
  EXPECT_EQ(keys_of(layer), (Keys{kDefault, 5}));
  expect_rows(layer, {kDefault, 5}, floats({2, 2}, {-2.75, -2.75, 0, 0}));
}

// The table as the documentation describes it, in double precision.
class SharedRowReference {
 public:
  explicit SharedRowReference(int64_t count) : count_(count) {}

  std::vector<double> lookup(const Keys& keys) {
    std::map<int64_t, int64_t> in_batch;
    for (const int64_t key : keys) {
      ++in_batch[key];
    }
    std::vector<double> values;
    read_.clear();
    for (const int64_t key : keys) {
      const bool is_known = rows_.count(key) > 0 ||
          seen_[key] + in_batch[key] >= count_ || key == kDefault;
      read_.push_back(is_known ? key : kDefault);
      const auto row = rows_.find(read_.back());
      values.push_back(
          row == rows_.end() ? initial(read_.back()) : row->second.value);
    }
    return values;
  }

  // One Adagrad update of the keys of lookup().
  void update(
      const Keys& keys,
      const std::vector<double>& gradients,
      double learning_rate) {
    std::map<int64_t, double> sums;
    for (size_t i = 0; i < keys.size(); ++i) {
      sums[read_[i]] += gradients[i];
      ++seen_[keys[i]];
    }
    for (const auto& [key, sum] : sums) {
      Row& row = rows_.try_emplace(key, Row{initial(key)}).first->second;
      row.accumulator += sum * sum;
      row.value -= learning_rate * sum / std::sqrt(row.accumulator);
    }
  }

  static double initial(int64_t key) {
    return std::sin(static_cast<double>(key % 1000));
  }

  size_t size() const {
    return rows_.size();
  }

 private:
  struct Row {
    double value;
    double accumulator = 0.1;
  };

  int64_t count_;
  std::map<int64_t, Row> rows_;
  std::map<int64_t, int64_t> seen_;
  Keys read_;  // the key whose row each key of the batch has looked up
};

TEST(KeyTableTest, TheSharedRowFollowsAReferenceInDoubles) {
  TPUEmbedding layer = layer_of(
      {.name = "t",
       .dim = 1,
       .initializer = initializers::Callable(
           "sines",
           [](const at::Tensor& keys, int64_t) {
             at::Tensor values = at::zeros({keys.numel(), 1});
             for (int64_t i = 0; i < keys.numel(); ++i) {
               values[i] = SharedRowReference::initial(keys[i].item<int64_t>());
             }
             return values;
           }),
       .keys = keys_with_default(5000, 3)},
      optim::Adagrad{.learning_rate = 0.1});
  SharedRowReference reference(3);
  std::mt19937_64 random(9);
  for (int step = 0; step < 60; ++step) {
    SCOPED_TRACE(step);
    Keys keys(50);
    std::vector<double> gradients;
    for (int64_t& key : keys) {
      key =
          random() % 20 == 0 ? kDefault : static_cast<int64_t>(random() % 2000);
      gradients.push_back(std::uniform_real_distribution<>(-1.0, 1.0)(random));
    }
    const at::Tensor actual = lookup(layer, at::tensor(keys, at::kLong));
    expect_close(
        actual.flatten(),
        at::tensor(reference.lookup(keys), at::kDouble).to(at::kFloat),
        1e-4,
        1e-5);
    actual.backward(
        at::tensor(gradients, at::kDouble).to(at::kFloat).view({-1, 1}));
    reference.update(keys, gradients, 0.1);
  }
  EXPECT_GT(reference.size(), 100);
}

TEST(KeyTableTest, WithoutADefaultRowUnknownKeysAreZerosInEvaluation) {
  TPUEmbedding layer = small_layer(keys_with_default(10, 3));
  EXPECT_TENSOR_EQ(stored(layer, int64s({5, kDefault})), at::zeros({2, 2}));
  // Forward changes nothing.
  lookup(layer, int64s({5}));
  EXPECT_EQ(index_of(layer).size(), 0);
  EXPECT_TENSOR_EQ(stored(layer, int64s({5})), at::zeros({1, 2}));
  // The key itself needs no admission.
  train(layer, int64s({kDefault}));
  EXPECT_EQ(keys_of(layer), (Keys{kDefault}));
}

TEST(KeyTableTest, TheDefaultRowIsServed) {
  TPUEmbedding layer = small_layer(keys_with_default(10, 3));
  const auto configs = layer->options().features;
  const Features features{{"id", int64s({9, 5, kDefault})}};
  const auto expect_served = [&](const at::Tensor& expected) {
    EXPECT_TENSOR_EQ(layer->embedding_lookup(features)["id"], expected);
    EXPECT_TENSOR_EQ(
        serving_embedding_lookup(
            features, {}, layer->embedding_tables(), configs)["id"],
        expected);
    layer->virtual_variable().requires_grad_(false);
    EXPECT_TENSOR_EQ(lookup(layer, int64s({9, 5, kDefault})), expected);
    layer->virtual_variable().requires_grad_(true);
  };
  layer->update_embedding_table("t", int64s({9}), floats({1, 2}, {1, 2}));
  expect_served(floats({3, 2}, {1, 2, 0, 0, 0, 0}));
  layer->update_embedding_table(
      "t", int64s({9, kDefault}), floats({2, 2}, {1, 2, 3, 4}));
  expect_served(floats({3, 2}, {1, 2, 3, 4, 3, 4}));
}

TEST(KeyTableTest, TheDefaultRowIsTrainedOnStepAndUnderAccumulation) {
  for (const bool accumulates : {false, true}) {
    SCOPED_TRACE(accumulates);
    TPUEmbedding layer = small_layer(
        keys_with_default(10, 2),
        optim::SGD{
            .learning_rate = 1.0,
            .gradient_accumulation_steps = accumulates ? 2 : 1},
        accumulates ? Apply::kInBackward : Apply::kOnStep);
    const auto run_passes = [&] {
      (lookup(layer, int64s({5, 6})) * 0.5).sum().backward();
      (lookup(layer, int64s({5})) * 0.25).sum().backward();
    };
    if (accumulates) {
      run_passes();
    } else {
      Combined combined = combined_of(layer);
      run_passes();
      combined.step();
    }
    // 5 has occurred twice, but its gradients are those of the shared row.
    EXPECT_EQ(keys_of(layer), (Keys{kDefault, 5}));
    const double sum =
        accumulates ? 1.25 / 2 : 1.25;  // or the mean of the passes
    EXPECT_TENSOR_EQ(
        stored(layer, int64s({kDefault, 5, 6})),
        at::stack(
            {at::full({2}, 1 - sum), at::ones({2}), at::full({2}, 1 - sum)}));
  }
}

TEST(KeyTableTest, AKeyThatIsAdmittedAfterItsLookupTrainsTheDefaultRow) {
  DynamicKeys keys = keys_with_default(2, 2);
  keys.eviction = eviction::LeastRecentlyUsed{};
  TPUEmbedding layer = small_layer(std::move(keys));
  auto ahead = layer->begin_forward({{"id", int64s({5})}});
  train(layer, int64s({5, 5}));
  EXPECT_EQ(keys_of(layer), (Keys{5}));
  const at::Tensor late = layer->finish_forward(std::move(ahead))["id"];
  EXPECT_TENSOR_EQ(late, at::ones({1, 2}));
  late.sum().backward();
  EXPECT_EQ(keys_of(layer), (Keys{kDefault, 5}));
  expect_rows(layer, {kDefault, 5}, floats({2, 2}, {0, 0, -1, -1}));
  EXPECT_EQ(index_of(layer).counts().dropped, 0);
  // 7 takes the row of 5. The default key keeps its own.
  train(layer, int64s({7, 7}));
  EXPECT_EQ(keys_of(layer), (Keys{kDefault, 7}));
}

TEST(KeyTableTest, MoreKeysThanRowsLeaveTheDefaultKeyItsRow) {
  for (const Eviction& eviction : std::vector<Eviction>{
           eviction::LeastRecentlyUsed{},
           eviction::LeastFrequentlyUsed{},
           eviction::OlderThan{.updates = 1}}) {
    for (const bool has_default : {false, true}) {
      DynamicKeys keys{.capacity = 3, .eviction = eviction};
      if (has_default) {
        keys.default_key = kDefault;
      }
      TPUEmbedding layer = small_layer(keys);
      train(layer, at::arange(10, at::kLong));
      EXPECT_EQ(index_of(layer).size(), has_default ? 2 : 3);
      train(layer, at::arange(kDefault, 20, at::kLong));
      EXPECT_EQ(index_of(layer).size(), 3);
      train(layer, at::arange(20, at::kLong));
      EXPECT_EQ(index_of(layer).size(), 3);
      EXPECT_EQ(keys_of(layer)[0] == kDefault, has_default);
    }
  }
}

// Three updates with the keys -7 and 3.
TEST(KeyTableTest, TheEngineTrainsKeysAndTheDefaultRow) {
  struct Row {
    DynamicKeys keys;
    at::Tensor trained;
    at::Tensor parameters;
  };
  const std::vector<Row> rows{
      {{.capacity = 10}, int64s({-7, 3}), at::full({2, 2}, -0.5)},
      {keys_with_default(10, 100), int64s({kDefault}), at::full({1, 2}, -2.0)}};
  for (const Row& row : rows) {
    for (const Pipelining pipelining : {Pipelining::kOff, Pipelining::kOn}) {
      EmbeddingEngine engine(EmbeddingEngineOptions{
          .features = features_of({{"id", make_table(small_table(row.keys))}}),
          .optimizer = optim::SGD{.learning_rate = 0.5},
          .pipelining = pipelining});
      for (int step = 0; step < 3; ++step) {
        engine.enqueue({{"id", int64s({-7, 3})}});
        engine.dequeue()["id"].sum().backward();
        engine.apply_gradients();
      }
      const EmbeddingTables tables = engine.embedding_tables();
      EXPECT_TENSOR_EQ(tables.begin()->keys, row.trained);
      EXPECT_TENSOR_EQ(tables.begin()->parameters, row.parameters);
    }
  }
}

TEST(KeyTableTest, TwoForwardsOfOnePassCountTogether) {
  TPUEmbedding layer = small_layer(
      {.capacity = 10, .admission = admission::AfterOccurrences{.count = 2}});
  (lookup(layer, int64s({5})) + lookup(layer, int64s({5}))).sum().backward();
  // Both have looked up zeros, so the key is admitted without a gradient.
  EXPECT_TENSOR_EQ(stored(layer, int64s({5})), at::ones({1, 2}));
}

TEST(KeyTableTest, AGradientOfAnEvictedKeyIsDropped) {
  for (const Apply apply : {Apply::kInBackward, Apply::kOnStep}) {
    TPUEmbedding layer =
        small_layer({.capacity = 1}, optim::SGD{.learning_rate = 1.0}, apply);
    std::optional<Combined> combined;
    if (apply == Apply::kOnStep) {
      combined.emplace(combined_of(layer));
    }
    const auto step = [&](const at::Tensor& loss) {
      loss.backward();
      if (combined) {
        combined->step();
        combined->zero_grad();
      }
    };
    step(lookup(layer, int64s({1})).sum());
    auto ahead = layer->begin_forward({{"id", int64s({1, 1})}});
    step(lookup(layer, int64s({2})).sum());
    EXPECT_EQ(keys_of(layer), (Keys{2}));
    const at::Tensor late = layer->finish_forward(std::move(ahead))["id"].sum();
    step(late);
    EXPECT_EQ(keys_of(layer), (Keys{2}));
    EXPECT_EQ(
        index_of(layer).counts(),
        (KeyCounts{.admitted = 2, .evicted = 1, .dropped = 2}));
  }
}

TEST(KeyTableTest, ThePaddingKeyIsNoKey) {
  const TablePtr table =
      make_table(small_table({.capacity = 10, .padding_key = 0}));
  TPUEmbedding layer(
      features_of({{"dense", table}, {"bag", table}}),
      optim::SGD{.learning_rate = 0.5});
  const auto activations = layer->forward(
      {{"dense", int64s({0, 3})}, {"bag", test::ragged({{0, 4, 0}, {0}})}});
  EXPECT_TENSOR_EQ(activations["dense"], floats({2, 2}, {0, 0, 1, 1}));
  // The mean of one key, and an empty bag.
  EXPECT_TENSOR_EQ(activations["bag"], floats({2, 2}, {1, 1, 0, 0}));
  loss_of(activations).backward();
  EXPECT_EQ(keys_of(layer), (Keys{3, 4}));
  EXPECT_EQ(layer->out_of_range_count(), 0);
}

TEST(KeyTableTest, OnStepAndAccumulationEqualTheVocabulary) {
  const auto run = [&](const TablePtr& table, bool with_keys, bool on_step) {
    TPUEmbedding layer = make_layer(
        table,
        optim::Adagrad{
            .learning_rate = 0.1,
            .gradient_accumulation_steps = on_step ? 1 : 3},
        on_step ? Apply::kOnStep : Apply::kInBackward);
    std::optional<Combined> combined;
    if (on_step) {
      combined.emplace(combined_of(layer));
    }
    Batches batches;
    std::vector<at::Tensor> losses;
    for (int pass = 0; pass < 12; ++pass) {
      const auto batch = batches.next();
      at::Tensor loss = loss_of(
          layer->forward(with_keys ? batch.with_keys : batch.with_rows));
      loss.backward();
      losses.push_back(loss.detach());
      if (on_step && pass % 2 == 1) {
        combined->step();
        combined->zero_grad();
      }
    }
    return losses;
  };
  for (const bool on_step : {true, false}) {
    const auto expected = run(static_table({}), false, on_step);
    const auto actual = run(key_table({}), true, on_step);
    for (size_t i = 0; i < expected.size(); ++i) {
      expect_close(actual[i], expected[i], 1e-5, 1e-6);
    }
  }
}

TEST(KeyTableTest, AFailedPassChangesNothing) {
  bool fails = false;
  const optim::OptimizerSpec spec =
      optim::SGD{.learning_rate = optim::LearningRate([&] {
                   TORCH_CHECK_VALUE(!fails, "no rate");
                   return 1.0;
                 })};
  TPUEmbedding layer = small_layer({.capacity = 2}, spec);
  train(layer, int64s({1, 2}));
  const auto before = index_of(layer).entries();
  fails = true;
  EXPECT_ANY_THROW(train(layer, int64s({3, 4})));
  EXPECT_EQ(index_of(layer).entries(), before);
  fails = false;
  train(layer, int64s({3}));
  EXPECT_EQ(index_of(layer).size(), 2);
  EXPECT_EQ(index_of(layer).counts().evicted, 1);
}

TEST(KeyTableTest, PrefetchTrainsAsWithoutIt) {
  const auto run = [](bool ahead) {
    TPUEmbedding layer =
        small_layer({.capacity = 20}, optim::Adagrad{.learning_rate = 0.1});
    std::vector<at::Tensor> batches;
    std::mt19937_64 random(2);
    for (int i = 0; i < 30; ++i) {
      std::vector<int64_t> keys(8);
      for (int64_t& key : keys) {
        key = static_cast<int64_t>(random() % 60);
      }
      batches.push_back(at::tensor(keys, at::kLong));
    }
    if (ahead) {
      for (auto& item : prefetch(batches, layer, [](const at::Tensor& ids) {
             return Features{{"id", ids}};
           })) {
        item.activations["id"].square().sum().backward();
      }
    } else {
      for (const at::Tensor& batch : batches) {
        lookup(layer, batch).square().sum().backward();
      }
    }
    return index_of(layer).counts();
  };
  // With prefetch, some keys are evicted between their lookup and their update.
  EXPECT_EQ(run(false).dropped, 0);
  EXPECT_GT(run(true).dropped, 0);
}

TEST(KeyTableTest, TablesCanBeReadAndReplaced) {
  TPUEmbedding layer = small_layer({.capacity = 10});
  layer->update_embedding_table(
      "t", int64s({9, -4}), floats({2, 2}, {1, 2, 3, 4}));
  const EmbeddingTables tables = layer->embedding_tables();
  EXPECT_TENSOR_EQ(tables.begin()->keys, int64s({-4, 9}));
  EXPECT_TENSOR_EQ(tables.begin()->parameters, floats({2, 2}, {3, 4, 1, 2}));
  expect_close(stored(layer, int64s({9, 8})), floats({2, 2}, {1, 2, 0, 0}));
  EXPECT_VALUE_ERROR(
      layer->update_embedding_table("t", floats({2, 2}, {1, 2, 3, 4})),
      "[update_embedding_table] table 't' has keys");
  EXPECT_VALUE_ERROR(
      layer->update_embedding_table("t", int64s({1, 1}), at::ones({2, 2})),
      "the keys of table 't' must be distinct, but 1 occurs twice");
  EXPECT_VALUE_ERROR(
      layer->update_embedding_table("t", int64s({1}), at::ones({2, 2})),
      "expected keys [n] and values [n, 2], but got [1] and [2, 2]");
  EXPECT_TYPE_ERROR(
      layer->update_embedding_table("t", at::ones({1}), at::ones({1, 2})),
      "keys must be a dense int64 cpu tensor");
  EXPECT_TYPE_ERROR(
      layer->update_embedding_table(
          "t", int64s({1}), at::empty({1, 2}, at::kMeta)),
      "values must be a dense tensor of a floating-point type, but got Float of "
      "shape [1, 2] on meta");
  EXPECT_VALUE_ERROR(layer->read_rows("t", 0, 1), "has keys");
  EXPECT_EQ(keys_of(layer), (Keys{-4, 9}));
}

TEST(KeyTableTest, EvictsOnDemand) {
  TPUEmbedding layer = small_layer({.capacity = 10});
  train(layer, int64s({1, 2}));
  train(layer, int64s({2, 3}));
  EXPECT_EQ(layer->evict("t", 2), 0);
  EXPECT_EQ(layer->evict("t", 1), 1);
  EXPECT_EQ(keys_of(layer), (Keys{2, 3}));
  EXPECT_VALUE_ERROR(layer->evict("t", 0), "[evict] updates must be >= 1");
  EXPECT_VALUE_ERROR(layer->evict("x", 1), "[evict] no table 'x'");
}

TEST(KeyTableTest, RefusesToEvictWhileGradientsWait) {
  TPUEmbedding layer = small_layer(
      {.capacity = 10}, optim::SGD{.learning_rate = 1.0}, Apply::kOnStep);
  Combined combined = combined_of(layer);
  train(layer, int64s({1}));
  EXPECT_TORCH_ERROR(
      layer->evict("t", 1), "table 't' has gradients that wait for an update");
  combined.step();
  EXPECT_EQ(layer->evict("t", 1), 0);
}

TEST(KeyTableTest, ASavedSketchCountsOn) {
  const DynamicKeys keys{
      .capacity = 10, .admission = admission::AfterOccurrences{.count = 2}};
  TPUEmbedding layer = small_layer(keys);
  train(layer, int64s({5}));
  TPUEmbedding loaded = small_layer(keys);
  copy_by_archive(layer, loaded);
  train(loaded, int64s({5}));
  EXPECT_EQ(keys_of(loaded), (Keys{5}));

  TPUEmbedding other = small_layer({.capacity = 10});
  EXPECT_VALUE_ERROR(
      copy_by_archive(layer, other),
      "the sketch of table 't' must have 0 counters, but got 40");
}

TEST(KeyTableTest, RowsOfAVocabularyBecomeKeys) {
  const TablePtr known = plain_table("t", 4, 2);
  TPUEmbedding source = layer_of(*known, optim::SGD{.learning_rate = 1.0});
  TPUEmbedding layer = small_layer({.capacity = 10});
  copy_by_archive(source, layer);
  EXPECT_EQ(keys_of(layer), (Keys{0, 1, 2, 3}));
  EXPECT_TENSOR_EQ(
      stored(layer, at::arange(4, at::kLong)), source->embedding_tables()["t"]);

  TPUEmbedding tiny = small_layer({.capacity = 3});
  EXPECT_VALUE_ERROR(copy_by_archive(source, tiny), "has a capacity of 3 rows");
  EXPECT_EQ(index_of(tiny).size(), 0);
}

TEST(KeyTableTest, SummaryShowsTheKeys) {
  TPUEmbedding layer = small_layer({.capacity = 4});
  train(layer, int64s({1, 2, 3}));
  EXPECT_CONTAINS(
      layer->summary(),
      "table 't': 3 of 4 rows have keys (75 %), 3 keys admitted, 0 evicted, 0 gradients of evicted keys dropped");
  TPUEmbedding large = small_layer({.capacity = 1'000'000});
  const MemoryPlan plan = memory_plan(large->options());
  EXPECT_CONTAINS(
      large->summary(),
      fmt::format(
          "1 table, 1 feature, 0.0 MiB (with all keys {:.1f} MiB), ",
          static_cast<double>(plan.lazy_bytes()) / 1024 / 1024));
  TPUEmbedding shared = small_layer(keys_with_default(4, 2));
  EXPECT_CONTAINS(
      shared->summary(),
      "0 gradients of evicted keys dropped, unknown keys look up -12\n");
}

TEST(KeyTableTest, TheConfigSurvivesJson) {
  for (const DynamicKeys& keys :
       {DynamicKeys{.capacity = 7},
        DynamicKeys{.capacity = 7, .eviction = eviction::LeastRecentlyUsed{}},
        DynamicKeys{
            .capacity = 1,
            .admission = admission::AfterOccurrences{.halve_at = 1.5},
            .eviction = eviction::LeastFrequentlyUsed{.half_life = 2.5},
            .padding_key = -1},
        DynamicKeys{
            .capacity = 3,
            .default_key = std::numeric_limits<int64_t>::min(),
            .preallocate = true},
        DynamicKeys{
            .capacity = 2,
            .admission = admission::WithProbability{.probability = 0.5},
            .eviction = eviction::OlderThan{.updates = 3}}}) {
    const TableConfig config{.name = "t", .dim = 2, .keys = keys};
    EXPECT_EQ(table_from_json(to_json(config)), config);
  }
  EXPECT_EQ(DynamicKeys{}.eviction, Eviction{eviction::LeastFrequentlyUsed{}});
}

// Configs saved before the sketch could forget have no `halve_at`.
TEST(KeyTableTest, AConfigWithoutHalveAtIsRead) {
  const TableConfig config{
      .name = "t",
      .dim = 2,
      .keys = DynamicKeys{
          .capacity = 1, .admission = admission::AfterOccurrences{.count = 9}}};
  nlohmann::json json = to_json(config);
  nlohmann::json& admission = json["keys"]["admission"]["config"];
  ASSERT_EQ(admission.erase("halve_at"), 1U);
  EXPECT_EQ(table_from_json(json), config);
  admission["halve_at"] = "often";
  EXPECT_VALUE_ERROR(table_from_json(json), "halve_at");
}

TEST(KeyTableTest, RefusesWhatItCantDo) {
  const DynamicKeys keys{.capacity = 10};
  expect_refusals<TableConfig>(
      {{{.name = "t", .vocabulary_size = 3, .dim = 2, .keys = keys},
        "vocabulary_size must be 0 if keys are set, but got 3"},
       {{.name = "t", .dim = 2, .keys = DynamicKeys{}},
        "[TableConfig 't'] keys: capacity must be in [1, 2147483648], but got 0"},
       {{.name = "t",
         .dim = 2,
         .keys =
             DynamicKeys{.capacity = 2, .padding_key = 4, .default_key = 4}},
        "[TableConfig 't'] keys: default_key must differ from padding_key"}},
      [&](const TableConfig& x) { make_table(x); });
  for (const Strategy& strategy : {Strategy::host(), Strategy::padded()}) {
    EXPECT_RAISES(
        c10::NotImplementedError,
        layer_of(
            {.name = "t", .dim = 2, .keys = keys},
            optim::SGD{},
            {.strategy = strategy}),
        "[table 't'] keys need Strategy::fused()");
  }
}

TEST(KeyTableTest, RefusesACapacityBeyondTheAddressSpace) {
  // 2^31 rows of 2^17 floats take 2^50 bytes.
  EXPECT_TORCH_ERROR(
      layer_of(
          {.name = "t",
           .dim = 1 << 17,
           .keys = DynamicKeys{.capacity = int64_t{1} << 31}},
          optim::SGD{}),
      "[DynamicKeys] the rows of table 't' need");
}

TEST(KeyTableTest, MemoryIsTakenAtOnceUnderPreallocate) {
  constexpr int64_t kRows = 500'000;
  constexpr int64_t kRowBytes = 16 * sizeof(float);
  for (const bool preallocate : {false, true}) {
    SCOPED_TRACE(preallocate);
    int64_t before = anonymous_memory();
    int64_t index_bytes = 0;
    const auto expect_taken = [&] {
      const int64_t taken = anonymous_memory() - before;
      if (preallocate) {
        EXPECT_GT(taken, 2 * kRows * kRowBytes + index_bytes);
      } else {
        EXPECT_LT(taken, kRows * kRowBytes / 4);
      }
    };
    TPUEmbedding layer = layer_of(
        {.name = "t",
         .dim = 16,
         .keys = DynamicKeys{.capacity = kRows, .preallocate = preallocate}},
        optim::Adagrad{});
    index_bytes = index_of(layer).bytes_at_capacity();
    expect_taken();
    // A copy is as its original.
    before = anonymous_memory();
    const auto copy = layer->clone();
    expect_taken();
    train(layer, int64s({1, 2, 3}));
    EXPECT_EQ(index_of(layer).size(), 3);
  }
}

TEST(KeyTableTest, RefusesToTakeMoreMemoryThanThereIs) {
  char byte = 1;
  EXPECT_TORCH_ERROR(
      touch_pages(&byte, size_t{1} << 50, "the rows of table 't'"),
      "[DynamicKeys] the rows of table 't' need 1073741824 MiB of memory under "
      "preallocate, but only");
}

TEST(KeyTableTest, ThePaddingKeyGetsNoRow) {
  TPUEmbedding layer = small_layer({.capacity = 4, .padding_key = 0});
  train(layer, int64s({5}));
  EXPECT_VALUE_ERROR(
      layer->update_embedding_table("t", int64s({0, 1}), at::ones({2, 2})),
      "table 't' can't have a row for key 0, because it is the padding_key");
  EXPECT_EQ(index_of(layer).size(), 1);
}

TablePtr ten_keys() {
  return make_table(
      {.name = "t", .dim = 2, .keys = DynamicKeys{.capacity = 10}});
}

TEST(KeyTableTest, KeysOfAnEngineCanBeReplacedAndEvicted) {
  const TablePtr table = ten_keys();
  EmbeddingEngine engine(EmbeddingEngineOptions{
      .features = features_of({{"id", table}}),
      .optimizer = optim::SGD{.learning_rate = 0.5}});
  engine.update_embedding_table(
      "t", int64s({4, -1}), floats({2, 2}, {1, 2, 3, 4}));
  for (int step = 0; step < 2; ++step) {
    engine.enqueue({{"id", int64s({4})}});
    engine.dequeue()["id"].sum().backward();
    engine.apply_gradients();
  }
  const EmbeddingTables tables = engine.embedding_tables();
  EXPECT_TENSOR_EQ(tables.begin()->keys, int64s({-1, 4}));
  EXPECT_TENSOR_EQ(tables["t"], floats({2, 2}, {3, 4, 0, 1}));
  EXPECT_EQ(engine.evict("t", 2), 1);
  EXPECT_TENSOR_EQ(engine.embedding_tables()["t"], floats({1, 2}, {0, 1}));
  EXPECT_VALUE_ERROR(engine.evict("t", 0), "[evict] updates must be >= 1");
  EXPECT_VALUE_ERROR(engine.evict("u", 1), "[evict]");
  EXPECT_VALUE_ERROR(
      engine.update_embedding_table("t", int64s({1}), at::ones({2, 2})),
      "[update_embedding_table] table 't'");
}

TEST(KeyTableTest, TablesInMemoryNeedAscendingKeys) {
  const TablePtr table = ten_keys();
  const auto make_tables = [&](const at::Tensor& keys) {
    return EmbeddingTables(
        {{.config = table,
          .name = "t",
          .parameters = at::ones({3, 2}),
          .keys = keys}});
  };
  make_tables(int64s({-5, 1, 9}));
  expect_refusals<at::Tensor>(
      {{int64s({5, 1, 9}),
        "[EmbeddingTables] the keys of table 't' must be ascending"},
       {int64s({1, 1, 9}), "each of them once"},
       {at::ones({3}), "contiguous int64 vector"}},
      [&](const at::Tensor& x) { make_tables(x); });
}

// The keys lie far apart, so that most of them have pages of their own.
TEST(KeyTableTest, FewKeysOfALargeCapacityTakeLittleMemory) {
  const int64_t before = anonymous_memory();
  TPUEmbedding layer = layer_of(
      {.name = "t", .dim = 64, .keys = DynamicKeys{.capacity = 50'000'000}},
      optim::Adagrad{});
  train(layer, at::arange(1000, at::kLong));
  EXPECT_EQ(index_of(layer).size(), 1000);
  // All rows and slots would take 26 GB.
  EXPECT_LT(anonymous_memory() - before, int64_t{64} << 20);
}

TEST(KeyTableTest, ServingLooksUpKnownKeys) {
  TPUEmbedding layer = small_layer({.capacity = 10});
  layer->update_embedding_table(
      "t", int64s({9, -4}), floats({2, 2}, {1, 2, 3, 4}));
  const Features features{{"id", int64s({-4, 5, 9})}};
  const at::Tensor expected = floats({3, 2}, {3, 4, 0, 0, 1, 2});
  EXPECT_TENSOR_EQ(layer->embedding_lookup(features)["id"], expected);
  const auto configs = layer->options().features;
  const EmbeddingTables tables = layer->embedding_tables();
  EXPECT_TENSOR_EQ(
      serving_embedding_lookup(features, {}, tables, configs)["id"], expected);
  EmbeddingTables::Entry broken = *tables.begin();
  broken.keys = int64s({1});
  EXPECT_VALUE_ERROR(
      serving_embedding_lookup(
          features, {}, EmbeddingTables({broken}), configs),
      "so the entry must have contiguous int64 keys [rows]");
}

// The rows have other numbers after the load.
TEST(KeyTableTest, RandomRoundingUsesTheKey) {
  const auto make = [] {
    return layer_of(
        {.name = "t",
         .dim = 32,
         .dtype = at::kBFloat16,
         .keys = DynamicKeys{.capacity = 100}},
        optim::SGD{.learning_rate = 0.01});
  };
  TPUEmbedding layer = make();
  for (const int64_t key : {5, 90, 3, 8}) {
    train(layer, int64s({key}));
  }
  TPUEmbedding loaded = make();
  copy_by_archive(layer, loaded);
  const at::Tensor keys = int64s({3, 5, 8, 90});
  for (int step = 0; step < 3; ++step) {
    train(layer, keys);
    train(loaded, keys);
  }
  EXPECT_TENSOR_EQ(stored(loaded, keys), stored(layer, keys));
}

TEST(KeyTableTest, EmptyAndUnusableBatches) {
  TPUEmbedding layer = small_layer({.capacity = 10});
  const at::Tensor none = lookup(layer, at::zeros({0}, at::kLong));
  EXPECT_EQ(none.sizes(), (std::vector<int64_t>{0, 2}));
  none.sum().backward();
  EXPECT_EQ(index_of(layer).size(), 0);
  train(layer, int64s({-3}).to(at::kInt));
  EXPECT_EQ(keys_of(layer), (Keys{-3}));
  EXPECT_TYPE_ERROR(
      lookup(layer, at::ones({2})),
      "[feature 'id'] ids must be int32 or int64");
  EXPECT_VALUE_ERROR(
      lookup(layer, at::zeros({}, at::kLong)), "must have rank 1 or above");
  EXPECT_EQ(keys_of(layer), (Keys{-3}));
}

TEST(KeyTableTest, FrozenTablesKeepTheirKeys) {
  TPUEmbedding layer = small_layer({.capacity = 10});
  train(layer, int64s({1}));
  layer->virtual_variable().requires_grad_(false);
  EXPECT_TENSOR_EQ(lookup(layer, int64s({2})), at::zeros({1, 2}));
  EXPECT_EQ(index_of(layer).size(), 1);
}

}  // namespace tessera::test::key_table_test
