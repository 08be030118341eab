// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/optimizers.h>
#include <tessera/serialization/config_json.h>

#include "tests/test_util.h"

namespace tessera::test::config_json_test {

namespace init = initializers;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Writes the JSON as text and parses it again.
Json reparsed(const Json& json) {
  return Json::parse(json.dump());
}

Json parse(const std::string& text) {
  return Json::parse(text);
}

TableConfig users() {
  return {
      .name = "users",
      .vocabulary_size = 10,
      .dim = 4,
      .combiner = Combiner::kSqrtn,
      .initializer = init::Uniform{.low = -1.5, .high = 0.1},
      .optimizer = optim::Adagrad{.learning_rate = 0.3}};
}

TEST(ConfigJsonTest, EveryInitializerRoundTrips) {
  const std::vector<Initializer> all{
      init::Zeros{},
      init::Constant{.value = 0.1},
      init::Uniform{.low = -1.0 / 3.0, .high = 1e-300},
      init::Normal{.mean = 2.0, .stddev = 0.7},
      init::TruncatedNormal{.mean = -2.0, .stddev = 0.0},
      init::RowId{.offset = std::numeric_limits<int64_t>::min()}};
  static_assert(
      std::variant_size_v<Initializer> == 7, "add it above; Callable is below");
  for (const Initializer& initializer : all) {
    EXPECT_EQ(
        initializer_from_json(reparsed(to_json(initializer))), initializer);
  }
}

template <class Spec>
Spec with_all_options(Spec spec) {
  spec.learning_rate = 0.1;
  spec.use_gradient_accumulation = false;
  spec.clip_weight_min = -kInfinity;
  spec.clip_weight_max = kInfinity;
  spec.clip_gradient_min = -0.1;
  spec.clip_gradient_max = 1.0 / 3.0;
  spec.weight_decay_factor = 1e-5;
  spec.multiply_weight_decay_factor_by_learning_rate = true;
  return spec;
}

TEST(ConfigJsonTest, EveryOptimizerRoundTrips) {
  const std::vector<optim::OptimizerSpec> all{
      optim::SGD{},
      with_all_options(optim::SGD{}),
      optim::Adagrad{},
      with_all_options(optim::Adagrad{.initial_accumulator_value = 0.2}),
      optim::Adam{},
      with_all_options(optim::Adam{
          .beta_1 = 0.8,
          .beta_2 = 0.88,
          .epsilon = 1e-8,
          .sum_inside_sqrt = false}),
      with_all_options(optim::Momentum{.momentum = 0.8, .use_nesterov = true}),
      with_all_options(optim::AdagradMomentum{.exponent = 3.0}),
      with_all_options(optim::ProximalAdagrad{}),
      with_all_options(optim::RowWiseAdagrad{.epsilon = 1e-5}),
      with_all_options(optim::FTRL{.beta = 0.1, .keep_initial_weight = true}),
      with_all_options(optim::RMSprop{.momentum = 0.5, .centered = true}),
      with_all_options(optim::Adadelta{.rho = 0.9}),
      with_all_options(optim::Lion{.beta_2 = 0.98}),
      with_all_options(optim::LAMB{.weight_decay = 0.01}),
      with_all_options(optim::Adamax{.beta_2 = 0.98, .epsilon = 1e-5}),
      with_all_options(optim::Nadam{.beta_1 = 0.8, .schedule_decay = 0.004}),
      optim::Adagrad{
          .learning_rate = optim::Warmup{
              .start = 0.1,
              .steps = 5,
              .then = optim::PiecewiseConstantDecay{
                  .boundaries = {3}, .values = {0.5, 0.25}}}}};
  for (const optim::OptimizerSpec& spec : all) {
    EXPECT_EQ(optimizer_from_json(reparsed(to_json(spec))), spec);
  }
}

TEST(ConfigJsonTest, TablesRoundTrip) {
  EXPECT_EQ(table_from_json(reparsed(to_json(users()))), users());
  const TableConfig bare{.vocabulary_size = 1, .dim = 1};
  EXPECT_EQ(table_from_json(reparsed(to_json(bare))), bare);
  TableConfig with_zeros = users();
  with_zeros.zero_rows = 2;
  EXPECT_EQ(table_from_json(reparsed(to_json(with_zeros))), with_zeros);
}

TEST(ConfigJsonTest, TheTextIsStable) {
  TableConfig table = users();
  table.optimizer = {};
  EXPECT_EQ(
      to_json(table).dump(),
      R"({"name":"users","vocabulary_size":10,"dim":4,"combiner":"sqrtn",)"
      R"("initializer":{"class_name":"Uniform",)"
      R"("config":{"low":-1.5,"high":0.1}},"optimizer":null,)"
      R"("dtype":"float32","stochastic_rounding":true,)"
      R"("quantization":null,"trainable":true})");
}

TEST(ConfigJsonTest, AMissingKeyMeansTheDefault) {
  EXPECT_EQ(table_from_json(parse("{}")), TableConfig());
  EXPECT_EQ(
      optimizer_from_json(parse(R"({"class_name": "Adam"})")),
      optim::OptimizerSpec(optim::Adam{}));
  EXPECT_EQ(
      optimizer_from_json(
          parse(R"({"class_name": "SGD", "config": {"learning_rate": 2}})")),
      optim::OptimizerSpec(optim::SGD{.learning_rate = 2.0}));
}

TEST(ConfigJsonTest, AnUnknownKeyIsRefusedWithTheKnownOnes) {
  EXPECT_VALUE_ERROR(
      table_from_json(parse(R"({"name": "users", "size": 3})")),
      "[table] unknown key 'size' in the JSON. Known: name, vocabulary_size, "
      "dim, combiner, initializer, zero_rows, optimizer, dtype, slot_dtype, stochastic_rounding, "
      "quantization, trainable, keys.");
  EXPECT_VALUE_ERROR(
      optimizer_from_json(
          parse(R"({"class_name": "SGD", "config": {"momentum": 0.9}})")),
      "[optimizer.SGD] unknown key 'momentum' in the JSON. Known: "
      "learning_rate, use_gradient_accumulation");
  EXPECT_VALUE_ERROR(
      initializer_from_json(parse(R"({"class_name": "Zeros", "value": 1})")),
      "[initializer] unknown key 'value' in the JSON. Known: class_name, "
      "config.");
  EXPECT_VALUE_ERROR(
      initializer_from_json(
          parse(R"({"class_name": "Zeros", "config": {"value": 1}})")),
      "[initializer.Zeros] unknown key 'value' in the JSON. Known: .");
}

TEST(ConfigJsonTest, AnUnknownClassIsRefusedWithTheKnownOnes) {
  EXPECT_VALUE_ERROR(
      optimizer_from_json(parse(R"({"class_name": "Muon"})")),
      "[optimizer] class_name must be one of SGD, Momentum, Adagrad, "
      "AdagradMomentum, ProximalAdagrad, RowWiseAdagrad, Adam, FTRL, RMSprop, "
      "Adadelta, Lion, LAMB, Adamax, Nadam, CustomOptimizer, but got "
      "'Muon'.");
  EXPECT_VALUE_ERROR(
      initializer_from_json(parse(R"({"class_name": "Ones"})")),
      "one of Zeros, Constant, Uniform, Normal, TruncatedNormal, RowId, "
      "Callable, but got 'Ones'.");
  EXPECT_VALUE_ERROR(
      optimizer_from_json(parse("{}")), "[optimizer] missing key 'class_name'");
}

TEST(ConfigJsonTest, NamesTheKeyOfAWrongType) {
  const auto read = [](const std::string& text) {
    table_from_json(parse(text));
  };
  expect_refusals<std::string>(
      {{"[]", "[table] expected an object in the JSON"},
       {R"({"name": 3})",
        "[table.name] expected a string in the JSON, but got 3."},
       {R"({"dim": 3.0})",
        "[table.dim] expected a whole number in the JSON, but got 3.0."},
       {R"({"dim": "3"})", "expected a whole number"},
       {R"({"dim": true})", "expected a whole number"},
       {R"({"dim": null})", "but got null."},
       {R"({"combiner": "max"})",
        "[table.combiner] [Combiner] combiner must be one of sum, mean, sqrtn, "
        "but got 'max'."},
       {R"({"initializer": {"class_name": "Constant",
                               "config": {"value": "1"}}})",
        "[table.initializer.Constant.value] expected a number"},
       {R"({"optimizer": {"class_name": "SGD", "config": null}})",
        "[table.optimizer.SGD] expected an object in the JSON, but got null."},
       {R"({"optimizer": {"class_name": "SGD",
               "config": {"use_gradient_accumulation": 1}}})",
        "use_gradient_accumulation] expected true or false"}},
      [&](const std::string& x) { read(x); });
}

TEST(ConfigJsonTest, RefusesNumbersOutsideOfInt64) {
  EXPECT_EQ(
      table_from_json(parse(R"({"dim": 9223372036854775807})")).dim,
      std::numeric_limits<int64_t>::max());
  EXPECT_VALUE_ERROR(
      table_from_json(parse(R"({"dim": 9223372036854775808})")),
      "[table.dim] expected a whole number in the JSON, but got "
      "9223372036854775808.");
  EXPECT_VALUE_ERROR(
      table_from_json(parse(R"({"dim": 18446744073709551616})")),
      "expected a whole number");
  for (const char* table :
       {R"({"dim": 18446744073709551616})",
        R"({"dim": -18446744073709551616})"}) {
    EXPECT_VALUE_ERROR(
        table_from_json(parse(table)),
        "1.8446744073709552e+19. It must be in [-9223372036854775808, "
        "9223372036854775807].");
  }
}

TEST(ConfigJsonTest, WritesInfinitiesAsStrings) {
  const Json json = to_json(optim::OptimizerSpec(
      optim::SGD{.clip_weight_min = -kInfinity, .clip_weight_max = kInfinity}));
  EXPECT_EQ(json["config"]["clip_weight_min"], "-inf");
  EXPECT_EQ(json["config"]["clip_weight_max"], "inf");
  EXPECT_VALUE_ERROR(
      initializer_from_json(
          parse(R"({"class_name": "Constant", "config": {"value": "nan"}})")),
      "expected a number in the JSON, but got \"nan\".");
}

TEST(ConfigJsonTest, ACallableIsWrittenAsItsName) {
  const optim::OptimizerSpec spec = optim::SGD{
      .learning_rate = optim::LearningRate("warm_up", [] { return 0.5; })};
  const Json json = to_json(spec);
  EXPECT_EQ(
      json["config"]["learning_rate"].dump(), R"({"callable":"warm_up"})");
  const auto read = optimizer_from_json(reparsed(json));
  EXPECT_EQ(
      std::get<optim::SGD>(read.variant()).learning_rate,
      optim::LearningRate::placeholder("warm_up"));
  EXPECT_VALUE_ERROR(
      optimizer_from_json(parse(
          R"({"class_name": "SGD", "config": {"learning_rate": {"x": 1}}})")),
      "[optimizer.SGD.learning_rate] unknown key 'x' in the JSON. Known: "
      "callable.");

  const init::Callable callable(
      "warm_start", [](const at::Tensor& ids, int64_t dim) {
        return at::zeros({ids.numel(), dim});
      });
  const auto placeholder = std::get<init::Callable>(
      initializer_from_json(reparsed(to_json(Initializer(callable)))));
  EXPECT_EQ(placeholder.name(), "warm_start");
  EXPECT_EQ(placeholder.function(), nullptr);
}

// Features.

Nest<FeatureConfig> read_back(const Nest<FeatureConfig>& features) {
  return features_from_json(reparsed(to_json(features)));
}

// Compares tables by value, because those of `actual` are other objects.
void expect_equal(
    const Nest<FeatureConfig>& actual,
    const Nest<FeatureConfig>& expected) {
  ASSERT_EQ(actual.paths(), expected.paths());
  std::vector<FeatureConfig> leaves = actual.flatten();
  const std::vector<FeatureConfig> expected_leaves = expected.flatten();
  for (size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_EQ(*leaves[i].table, *expected_leaves[i].table);
    leaves[i].table = expected_leaves[i].table;
    EXPECT_EQ(leaves[i], expected_leaves[i]);
  }
  EXPECT_EQ(expected.pack(leaves), expected);
  EXPECT_EQ(actual.pack(leaves), expected);
}

TEST(FeaturesJsonTest, NestedMapsAndListsRoundTrip) {
  const TablePtr table = make_table(users());
  const FeatureConfig plain{.table = table};
  const FeatureConfig special{
      .table = table,
      .output_shape = std::vector<int64_t>{2, 3},
      .validate_weights_and_indices = false,
      .out_of_range = OutOfRange::kZero,
      .name = "special"};
  const FeatureConfig sequence{.table = table, .max_sequence_length = 7};
  using Features = Nest<FeatureConfig>;
  const Features features{
      {"z", plain},
      {"a", Features::list({special, Features{{"deep", sequence}}})},
      {"0", Features{{"", plain}, {"a/b", plain}}}};
  expect_equal(read_back(features), features);
}

TEST(FeaturesJsonTest, AnUnknownDimensionIsNullAndKnownOnesStayNumbers) {
  FeatureConfig feature{
      .table = make_table(users()),
      .max_sequence_length = 3,
      .output_shape = PartialShape{std::nullopt, 4}};
  expect_equal(read_back(feature), feature);
  Json json = to_json(Nest<FeatureConfig>(feature));
  EXPECT_EQ(json["features"][0]["output_shape"].dump(), "[null,4]");
  // This is how it was written before dimensions could be unknown.
  json["features"][0]["output_shape"] = Json::parse("[2, 4]");
  feature.output_shape = std::vector<int64_t>{2, 4};
  expect_equal(features_from_json(json), feature);
}

TEST(FeaturesJsonTest, ARootLeafAListAndNoFeaturesRoundTrip) {
  const FeatureConfig feature{.table = make_table(users())};
  expect_equal(read_back(feature), feature);
  const auto list = Nest<FeatureConfig>::list({feature, feature});
  expect_equal(read_back(list), list);
  EXPECT_TRUE(read_back({}).empty());
}

TEST(FeaturesJsonTest, SharedTablesStaySharedAndEqualOnesStayApart) {
  const TablePtr shared = make_table(users());
  const TablePtr twin = make_table(users());
  const auto read = read_back(
      {{"a", FeatureConfig{.table = shared}},
       {"b", FeatureConfig{.table = twin}},
       {"c", FeatureConfig{.table = shared}}});
  EXPECT_EQ(read["a"].table, read["c"].table);
  EXPECT_NE(read["a"].table, read["b"].table);
  EXPECT_EQ(*read["a"].table, *read["b"].table);
}

TEST(FeaturesJsonTest, AFeatureWithoutATableIsRefused) {
  EXPECT_VALUE_ERROR(
      to_json(Nest<FeatureConfig>{{"user", FeatureConfig()}}),
      "[features[\"user\"]] table must be set");
}

// A config of one table, and of features with the given paths.
Json features_at(const std::vector<std::string>& paths) {
  Json json = parse(R"({"tables": [{"vocabulary_size": 2, "dim": 1}]})");
  json["features"] = Json::array();
  for (const std::string& path : paths) {
    json["features"].push_back({{"path", parse(path)}, {"table", 0}});
  }
  return json;
}

void read_paths(const std::vector<std::string>& paths) {
  features_from_json(features_at(paths));
}

TEST(FeaturesJsonTest, RefusesPathsThatAreNotANest) {
  EXPECT_EQ(
      features_from_json(features_at({R"(["a", 0])", R"(["a", 1])"})).paths(),
      (std::vector<std::string>{"a/0", "a/1"}));
  EXPECT_VALUE_ERROR(
      read_paths({R"(["a"])", R"(["a"])"}),
      "[features[\"a\"]] two features have the same path.");
  const char* prefix =
      "the path of a feature must not be the beginning of another feature's "
      "path";
  expect_refusals<std::vector<std::string>>(
      {{{R"(["a"])", R"(["a", "b"])"}, prefix},
       {{R"(["a", "b"])", R"(["a"])"}, prefix},
       {{"[]", R"(["a"])"}, prefix},
       {{R"(["a"])", "[]"}, prefix},
       {{"[]", "[]"}, "two features have the same path"},
       {{R"(["a", "x"])", R"(["b"])", R"(["a", "y"])"}, "'a' is given twice"}},
      [&](const std::vector<std::string>& x) { read_paths(x); });
}

TEST(FeaturesJsonTest, StepsMustBeKeysOrIndicesInOrder) {
  const char* indices = "expected the indices 0, 1, ... in order";
  expect_refusals<std::vector<std::string>>(
      {{{"[1]"}, indices},
       {{"[0]", "[2]"}, indices},
       {{"[18446744073709551615]"}, indices},
       {{"[0]", R"(["a"])"}, indices},
       {{R"(["a"])", "[0]"}, "expected a string"},
       {{"[-1]"}, "expected a string"},
       {{"[0.0]"}, "expected a string"},
       {{"[null]"}, "expected a string"},
       {{"[[0]]"}, "expected a string"},
       {{R"("a")"}, "[features.path] expected a list"}},
      [&](const std::vector<std::string>& x) { read_paths(x); });
}

TEST(FeaturesJsonTest, ATableIndexOutOfRangeIsRefused) {
  for (const char* index : {"1", "-1", "9223372036854775807"}) {
    Json json = features_at({R"(["a"])"});
    json["features"][0]["table"] = parse(index);
    EXPECT_VALUE_ERROR(
        features_from_json(json),
        std::string("[features[\"a\"]] table must be an index in [0, 1), but "
                    "got ") +
            index);
  }
  Json json = features_at({R"(["a"])"});
  json["features"][0]["table"] = "users";
  EXPECT_VALUE_ERROR(
      features_from_json(json), "[features.table] expected a whole number");
  json["features"][0].erase("table");
  EXPECT_VALUE_ERROR(
      features_from_json(json), "[features] missing key 'table'");
}

TEST(FeaturesJsonTest, UnknownKeysAndUnusableTablesAreRefused) {
  Json json = features_at({R"(["a"])"});
  json["features"][0]["combiner"] = "sum";
  EXPECT_VALUE_ERROR(
      features_from_json(json),
      "[features] unknown key 'combiner' in the JSON. Known: path, table, "
      "max_sequence_length, output_shape, validate_weights_and_indices, "
      "out_of_range, name.");
  json = features_at({R"(["a"])"});
  json["version"] = 1;
  EXPECT_VALUE_ERROR(
      features_from_json(json), "[features] unknown key 'version'");
  json = features_at({R"(["a"])"});
  json["tables"][0]["dim"] = 0;
  EXPECT_VALUE_ERROR(features_from_json(json), "dim must be >= 1, but got 0");
  json["tables"][0]["dims"] = 0;
  EXPECT_VALUE_ERROR(
      features_from_json(json), "[tables[0]] unknown key 'dims'");
  json.erase("tables");
  EXPECT_VALUE_ERROR(
      features_from_json(json), "[features] missing key 'tables'");
}

TEST(FeaturesJsonTest, RefusesAHostileDepth) {
  Json path = Json::array();
  for (int i = 0; i < 200'000; ++i) {
    path.push_back("a");
  }
  Json json = features_at({"[]"});
  json["features"][0]["path"] = path;
  EXPECT_VALUE_ERROR(
      features_from_json(json), "expected a list of at most 64 steps");

  constexpr size_t kLevels = 1'000'000;
  const Json deep =
      parse(std::string(kLevels, '[') + std::string(kLevels, ']'));
  EXPECT_VALUE_ERROR(features_from_json(deep), "at most 64 levels deep");
  EXPECT_VALUE_ERROR(table_from_json(deep), "at most 64 levels deep");
  EXPECT_VALUE_ERROR(optimizer_from_json(deep), "at most 64 levels deep");
  EXPECT_VALUE_ERROR(initializer_from_json(deep), "at most 64 levels deep");
}

TEST(FeaturesJsonTest, KeysMayHaveBytesThatAreNotUtf8) {
  Nest<FeatureConfig> features{{"\xff", FeatureConfig()}};
  EXPECT_VALUE_ERROR(to_json(features), "table must be set");
  features = {{"\xff", FeatureConfig{.table = make_table(users())}}};
  EXPECT_EQ(
      features_from_json(to_json(features)).paths(),
      std::vector<std::string>{"\xff"});
}

}  // namespace tessera::test::config_json_test
