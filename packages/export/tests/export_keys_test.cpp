// SPDX-License-Identifier: Apache-2.0
// Export of tables with TableConfig::keys, in both formats. The files must give what the
// layer gives in evaluation.
#include <tessera/engine/embedding_engine.h>
#include <tessera/export/load_state_dict.h>
#include <tessera/optim/optimizers/sgd.h>

#include "packages/export/tests/export_test_util.h"
#include "tests/anonymous_memory.h"

namespace tessera::test::export_keys_test {

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
// Not a key of any table here.
constexpr int64_t kUnknown = 1'234'567'890'123;

at::Tensor spread_keys() {
  return int64s({7, kMin, -1, 1LL << 40, 3, kMax, -(1LL << 50), 0, 4});
}

class ExportKeysTest : public ExportFormatTest {
 protected:
  // Checks all kinds of features, with known, unknown and padding keys.
  static void expect_agrees_on_all_kinds(
      TPUEmbedding layer,
      int64_t padding,
      const ExportOptions& options = {},
      double tolerance = 1e-6) {
    const Rows rows{{3, kUnknown, 7}, {}, {kMin, padding, kMax, -1}, {padding}};
    const at::Tensor weights =
        floats({0.5F, 2.0F, 0.0F, 1.5F, -1.0F, 0.25F, 3.0F, 1.0F});
    const at::Tensor keys = int64s({3, kUnknown, padding, kMin, kMax, 0});
    expect_agrees(
        layer,
        {{{keys}, {int64s({})}, {int64s({kUnknown})}},
         {{keys.view({6, 1})}},
         {{keys.view({2, 3})}, {at::empty({0, 3}, at::kLong)}},
         {{int64s({3, -1, 5, 0}).to(at::kInt)}},
         {{ragged(rows)},
          {ragged({})},
          {ragged({{}, {}})},
          {ragged({{padding, padding}, {kUnknown, kUnknown}})}},
         {{ragged(rows), weights}, {ragged({}), floats({})}},
         {{sparse(rows, 5)}, {sparse({}, 5)}, {sparse({{}}, 1)}},
         {{sparse(rows, 5), weights}},
         {{SparseFeature{
             .indices =
                 int64s({1, 2, 0, 0, 0, 3, 1, 2, 2, 1, 2, 3}).view({4, 3}),
             .values = int64s({7, kUnknown, padding, kMax}),
             .dense_shape = int64s({2, 3, 4})}}}},
        options,
        tolerance);
  }
};

INSTANTIATE_TEST_SUITE_P(Formats, ExportKeysTest, kExportFormats, format_name);

TEST_P(ExportKeysTest, AgreesOnEveryKindOfFeature) {
  for (const Combiner combiner :
       {Combiner::kSum, Combiner::kMean, Combiner::kSqrtn}) {
    SCOPED_TRACE(to_string(combiner));
    const Kind kind{.combiner = combiner, .padding_key = 5};
    expect_agrees_on_all_kinds(layer_of(kind, spread_keys()), 5);
  }
}

TEST_P(ExportKeysTest, SequencesKeepTheirFirstKeys) {
  TPUEmbedding layer = layer_of(
      {.config = {.max_sequence_length = 2}, .padding_key = -2}, spread_keys());
  expect_agrees(
      layer,
      {{{ragged({{3, -2, 7}, {}, {kUnknown, kMin}, {-2, kMax}})},
        {ragged({})},
        {ragged({{7, 7, 7, 7}})}},
       {{sparse({{3, -2, 7}, {}, {kUnknown, kMin}}, 3)}, {sparse({}, 3)}}});
  TPUEmbedding shaped =
      layer_of({.config = {.output_shape = {{2, 3}}}}, spread_keys());
  expect_agrees(shaped, {{{ragged({{3, kUnknown, 7, 0}, {kMax}})}}});
}

// The first key, the last one, those between two keys, and both ends of int64.
TEST_P(ExportKeysTest, EveryInt64IsAKey) {
  for (const at::Tensor& keys :
       {int64s({kMin, kMax}),
        int64s({kMin + 1, kMax - 1}),
        int64s({kMin}),
        int64s({kMax}),
        int64s({-2, 0, 2}),
        int64s({})}) {
    const at::Tensor ids =
        int64s({kMin, kMin + 1, -3, -2, -1, 0, 1, 2, 3, kMax - 1, kMax});
    TPUEmbedding layer = layer_of({}, keys);
    const at::Tensor rows = run_file(layer, {{ids}})[0];
    const EmbeddingTables tables = layer->embedding_tables();
    at::Tensor expected = at::zeros({ids.numel(), 3});
    for (int64_t i = 0; i < keys.numel(); ++i) {
      const at::Tensor key = tables.begin()->keys[i];
      expected[ids.eq(key).nonzero().item<int64_t>()] =
          tables.begin()->parameters[i];
    }
    EXPECT_TRUE(at::equal(rows, expected)) << keys << rows << expected;
  }
}

TEST_P(ExportKeysTest, EveryInt64IsAPaddingKey) {
  for (const int64_t padding : {kMin, int64_t{-1}, int64_t{0}, kMax}) {
    SCOPED_TRACE(padding);
    TPUEmbedding layer = layer_of({.padding_key = padding}, int64s({1, 2, 3}));
    const auto actual = expect_agrees(
        layer,
        {{{int64s({padding, 1, kMin, kMax, 0, -1})}},
         {{ragged({{padding, 1, kUnknown}, {padding}, {2, 3}})},
          {ragged({{padding, 1, padding}})}}});
    // A mean of one key and of padding is the row of the key.
    const at::Tensor& mean = actual[1][1];
    EXPECT_TRUE(at::equal(mean, evaluate(layer, {int64s({1})})));
  }
}

TEST_P(ExportKeysTest, ATableWithoutKeysGivesZeros) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kChar}) {
    SCOPED_TRACE(c10::toString(dtype));
    TPUEmbedding layer = layer_of({.padding_key = 5}, int64s({}));
    expect_agrees_on_all_kinds(layer, 5, {.dtype = dtype});
  }
}

TEST_P(ExportKeysTest, UnknownKeysGiveTheRowOfTheDefaultKey) {
  for (const int64_t key : {int64_t{3}, kMin, kMax, kUnknown + 1}) {
    SCOPED_TRACE(key);
    const Kind kind{.padding_key = 5, .default_key = key};
    TPUEmbedding layer = layer_of(kind, spread_keys());
    const at::Tensor rows = evaluate(layer, {int64s({kUnknown, key})});
    EXPECT_TRUE(at::equal(rows[0], rows[1]));
    // The last of these keys has no row.
    EXPECT_EQ(rows.eq(0).all().item<bool>(), key == kUnknown + 1);
    expect_agrees_on_all_kinds(layer, 5);
    if (key == 3) {
      expect_agrees_on_all_kinds(layer, 5, {.dtype = at::kHalf}, 1e-2);
      expect_agrees_on_all_kinds(layer, 5, {.dtype = at::kChar}, 2e-2);
    }
  }
}

TEST_P(ExportKeysTest, NegativePaddingIsDroppedWithoutValidation) {
  TPUEmbedding layer = layer_of(
      {.config = {.validate_weights_and_indices = false}, .padding_key = -1},
      int64s({kMin, 3, 7, kMax}));
  expect_agrees(
      layer,
      {{{ragged({{-1, 3}, {kMin, kUnknown}, {-1}})}},
       {{ragged({{-1, 3}, {kMin, 7}}), floats({1.0F, -2.0F, 0.5F, 3.0F})}},
       {{sparse({{-1, 3}, {kMin, kUnknown}, {-1}}, 2)}}});
}

TEST_P(ExportKeysTest, RowsOfOtherDtypes) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kChar}) {
    TPUEmbedding layer =
        layer_of({.dtype = dtype, .padding_key = 5}, spread_keys());
    expect_agrees_on_all_kinds(layer, 5);
    expect_agrees_on_all_kinds(layer, 5, {.dtype = at::kFloat});
  }
  TPUEmbedding layer = layer_of({.padding_key = 5}, spread_keys());
  expect_agrees_on_all_kinds(layer, 5, {.dtype = at::kHalf}, 1e-2);
  expect_agrees_on_all_kinds(layer, 5, {.dtype = at::kChar}, 2e-2);
  const Kind rounded{
      .quantization =
          QuantizationConfig{.num_buckets = 9, .lower = -1, .upper = 1}};
  expect_agrees_on_all_kinds(layer_of(rounded, spread_keys()), 5);
}

// The rows of the file are those of the layer, rounded.
TEST_P(ExportKeysTest, SixteenBitRowsAreRoundedToTheNearest) {
  TPUEmbedding layer = layer_of({}, spread_keys());
  const EmbeddingTables tables = layer->embedding_tables();
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    EXPECT_TRUE(at::equal(
        run_file(layer, {{tables.begin()->keys}}, {.dtype = dtype})[0],
        tables.begin()->parameters.to(dtype).to(at::kFloat)));
  }
}

TEST_P(ExportKeysTest, KeysThatLostTheirRowsGiveZeros) {
  const TablePtr table =
      make_table({.name = "t", .dim = 3, .keys = DynamicKeys{.capacity = 8}});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {{"f", FeatureConfig{.table = table}}},
      .optimizer = optim::SGD{.learning_rate = 0.1}});
  for (int64_t step = 0; step < 10; ++step) {
    const at::Tensor keys = at::arange(4, at::kLong) * 1'000'003 + step;
    layer->forward({{"f", keys}})["f"].square().sum().backward();
  }
  const EmbeddingTables tables = layer->embedding_tables();
  ASSERT_EQ(tables.begin()->keys.numel(), 8);
  const at::Tensor all = (at::arange(4, at::kLong).unsqueeze(1) * 1'000'003 +
                          at::arange(10, at::kLong))
                             .flatten();
  const at::Tensor rows = run_file(layer, {{all}})[0];
  EXPECT_TRUE(at::equal(rows, evaluate(layer, {all})));
  EXPECT_EQ(rows.abs().sum(1).gt(0).sum().item<int64_t>(), 8);
}

TEST_P(ExportKeysTest, AnotherExportHasTheNewKeys) {
  TPUEmbedding layer = layer_of({}, int64s({1, 2}));
  expect_agrees(layer, {{{int64s({1, 2, 3})}}});
  layer->update_embedding_table("t", int64s({3}), floats({1, 3}, {1, 2, 3}));
  expect_agrees(layer, {{{int64s({1, 2, 3})}}});
}

// Features of two key tables and one with a vocabulary, below a dense layer.
struct TowerImpl : torch::nn::Module {
  TowerImpl() {
    const TablePtr users = make_table(
        {.name = "users",
         .dim = 2,
         .keys = DynamicKeys{.capacity = 32, .padding_key = 0}});
    const TablePtr items = make_table(
        {.name = "items", .dim = 3, .keys = DynamicKeys{.capacity = 32}});
    const TablePtr days =
        make_table({.name = "days", .vocabulary_size = 7, .dim = 1});
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"day", FeatureConfig{.table = days}},
                 {"friends", FeatureConfig{.table = users}},
                 {"item", FeatureConfig{.table = items}},
                 {"user", FeatureConfig{.table = users}}},
            .optimizer = optim::SGD{}}));
    for (const char* table : {"users", "items"}) {
      embedding->update_embedding_table(
          table,
          spread_keys().slice(0, 0, 7),
          at::rand({7, std::string(table) == "users" ? 2 : 3}));
    }
    dense = register_module("dense", torch::nn::Linear(8, 1));
  }
  at::Tensor forward(const Features& features) {
    const auto found = embedding->forward(features);
    return dense->forward(at::cat(
        {found["day"], found["friends"], found["item"], found["user"]}, 1));
  }

  static Features batch(int64_t user) {
    return {
        {"day", int64s({0, 6, 2})},
        {"friends", ragged({{kMin, 0, user}, {}, {7, kMax, -1}})},
        {"item", int64s({3, user, 1LL << 40})},
        {"user", int64s({user, 0, kMax})}};
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Linear dense{nullptr};
};
TORCH_MODULE(Tower);

TEST_P(ExportKeysTest, AModelWithSharedAndStaticTables) {
  Tower tower;
  const std::string path = new_file();
  const Features other = TowerImpl::batch(kUnknown);
  const at::NoGradGuard no_grad;
  at::Tensor actual;
  if (is_pt2()) {
    export_pt2(tower, path, {.features = TowerImpl::batch(7)});
    const Pt2Program program(path);
    actual = program.run(arguments_of(other))[0];
    Texts names;
    for (const auto& [name, tensor] : program.state_dict()) {
      names.push_back(name);
    }
    EXPECT_EQ(
        names,
        listed("embedding.table_0, embedding.table_1, embedding.table_1_keys, "
               "embedding.table_1_padding_key, embedding.table_2, "
               "embedding.table_2_keys, dense.weight, dense.bias"));
  } else {
    export_torchscript(tower, path, {.features = TowerImpl::batch(7)});
    torch::jit::Module loaded = torch::jit::load(path);
    actual = loaded.forward({to_dict(all_parts_of(other))}).toTensor();
  }
  tower->eval();
  expect_close(actual, tower->forward(other));
}

TEST_P(ExportKeysTest, AnEngineIsExported) {
  const TablePtr table =
      make_table({.name = "t", .dim = 3, .keys = DynamicKeys{.capacity = 16}});
  EmbeddingEngine engine(
      {.features = {{"f", FeatureConfig{.table = table}}},
       .optimizer = optim::SGD{}});
  engine.enqueue({{"f", int64s({kMax, -9})}});
  engine.dequeue()["f"].square().sum().backward();
  engine.apply_gradients();
  const EmbeddingTables tables = engine.embedding_tables();
  const at::Tensor& rows = tables.begin()->parameters;
  const std::string path = new_file();
  const at::Tensor ids = int64s({-9, kUnknown, kMax});
  at::Tensor actual;
  if (is_pt2()) {
    export_pt2(engine, path, {.features = {{"f", ids}}});
    actual = Pt2Program(path).run({ids})[0];
  } else {
    export_torchscript(engine, path);
    torch::jit::Module loaded = torch::jit::load(path);
    actual = run_embedding(loaded, {{"f", {ids}}})["f"];
  }
  EXPECT_TRUE(at::equal(actual, at::stack({rows[0], at::zeros({3}), rows[1]})));
}

TEST(ExportKeysFileTest, HoldsSortedKeysAndTheirRows) {
  TPUEmbedding layer = layer_of({.padding_key = kMin}, int64s({4, -3, 9}));
  const torch::jit::Module loaded = export_and_load(layer);
  const EmbeddingTables tables = layer->embedding_tables();
  EXPECT_TRUE(at::equal(
      loaded.attr("table_0_keys").toTensor(), int64s({-3, 4, 9, kMax})));
  EXPECT_EQ(
      loaded.attr("table_0_padding_key").toTensor().item<int64_t>(), kMin);
  EXPECT_TRUE(at::equal(
      loaded.attr("table_0").toTensor(),
      at::cat({tables.begin()->parameters, at::zeros({1, 3})})));
}

TEST(ExportKeysFileTest, BadInputIsRefused) {
  torch::jit::Module loaded =
      export_and_load(layer_of({.padding_key = 5}, spread_keys()));
  expect_broken_parts_refused(loaded);
}

TEST(ExportKeysFileTest, KeysAndRowsGoBackIntoALayer) {
  TPUEmbedding layer = layer_of({}, spread_keys());
  const std::string path = new_file();
  export_pt2(layer, path, example_of({int64s({1})}));
  const NamedTensors state{.tensors = Pt2Program(path).state_dict()};
  TPUEmbedding other = layer_of({}, int64s({5}));
  EXPECT_RAISES(
      c10::NotImplementedError,
      load_state_dict(*other, state),
      "[load_state_dict] expected tables with a vocabulary, but table 't' has "
      "keys. Call update_embedding_table() with keys and values.");
  other->update_embedding_table(
      "t",
      state["table_0_keys"].slice(0, 0, -1),
      state["table_0"].slice(0, 0, -1));
  const Input keys{spread_keys()};
  EXPECT_TRUE(at::equal(evaluate(other, keys), evaluate(layer, keys)));
}

TEST_P(ExportKeysTest, RowsThatDoNotFitAreRefused) {
  TPUEmbedding layer = layer_of({}, int64s({1}));
  layer->update_embedding_table("t", int64s({1}), floats({1, 3}, {1e9, 0, 0}));
  const std::string path = new_file();
  EXPECT_VALUE_ERROR(
      export_layer(layer, path, {int64s({1})}, {.dtype = at::kHalf}),
      std::string(is_pt2() ? "[export_pt2]" : "[export_torchscript]") +
          " table 't' can't be stored as float16: some values are beyond the "
          "range");
  expect_nothing_at(path);
}

// Two tables of 16 MiB, whose rows the file has in another order than the memory.
TEST(ExportKeysFileTest, SortedRowsTakeTheMemoryOfOneTable) {
  constexpr int64_t kRows = 262'144;
  Nest<FeatureConfig>::Map features;
  for (const char* name : {"a", "b"}) {
    features.emplace_back(
        name,
        feature_of(
            {.name = name,
             .dim = 16,
             .keys = DynamicKeys{.capacity = 2 * kRows}}));
  }
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = Nest<FeatureConfig>::map(std::move(features)),
      .optimizer = optim::SGD{}});
  for (const char* name : {"a", "b"}) {
    layer->update_embedding_table(
        name, at::arange(kRows, at::kLong) * 7919, at::rand({kRows, 16}));
  }
  const at::Tensor ids = int64s({0, 1, 7919});
  const ExportExample example{.features = {{"a", ids}, {"b", ids}}};
  const std::string path = new_file();
  export_pt2(layer, path, example);  // fills caches that later calls reuse
  PeakMemory peak;
  export_pt2(layer, path, example);
  // One table of rows, the keys of both, and 24 bytes per key while they are sorted.
  EXPECT_LT(peak.growth(), kRows * (64 + 2 * 8 + 24 + 8) + (int64_t{12} << 20));
}

}  // namespace tessera::test::export_keys_test
