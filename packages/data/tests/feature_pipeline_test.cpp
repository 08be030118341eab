// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feature_pipeline.h>

#include "packages/data/tests/column_builders.h"

namespace tessera::data::feature_pipeline_test {

using namespace transforms;  // NOLINT(google-build-using-namespace)

FeaturePipeline sample_pipeline() {
  return FeaturePipeline({
      {"counts", {"I1", "I2"}, Log1p{}},
      {"site", {"C1"}, Hash{.num_bins = 100, .salt = 1}},
      {"words", {"W"}, Vocabulary{.values = Texts{"red", "blue"}}, 2},
      {"price", {"P"}, Normalize{.mean = 1.0, .variance = 4.0}},
      {"site_x_words", {"C1", "W"}, Cross{.num_bins = 50}},
      {"band", {"P"}, Bucketize{.boundaries = {2.0}}},
  });
}

Columns sample_columns() {
  return columns_of(
      {{"label", integers({0, 1})},
       {"I1", integers({0, 9})},
       {"I2", integers({kMissing, 3})},
       {"C1", integers({68065421, kMissing})},
       {"W", ragged(text({"blue", "green", "red", "red"}), {0, 3, 4})},
       {"P", numbers({3.0F, 0.0F})}});
}

TEST(FeaturePipelineTest, GivesFeaturesAndOneMatrixOfNumbersInOrder) {
  const PipelineBatch batch = sample_pipeline().apply(sample_columns());
  EXPECT_EQ(
      batch.features.paths(), (Texts{"site", "words", "site_x_words", "band"}));
  expect_close(
      batch.dense,
      floats({0.0F, 0.0F, 1.0F, std::log(10.0F), std::log(4.0F), -0.5F})
          .view({2, 3}));
  const auto site = std::get<at::Tensor>(batch.features["site"]);
  EXPECT_EQ(site.scalar_type(), at::kLong);
  EXPECT_EQ(to_vector(site)[1], 0);
  const auto words = std::get<RaggedFeature>(batch.features["words"]);
  EXPECT_EQ(to_vector(words.values), (Ids{3, 1, 2}));
  EXPECT_EQ(to_vector(words.row_splits), (Ids{0, 2, 3}));
  const auto crossed = std::get<RaggedFeature>(batch.features["site_x_words"]);
  EXPECT_EQ(to_vector(crossed.row_splits), (Ids{0, 3, 4}));
  EXPECT_EQ(
      to_vector(std::get<at::Tensor>(batch.features["band"])), (Ids{2, 1}));
}

TEST(FeaturePipelineTest, AnEmptyBatchGivesEmptyFeatures) {
  const Columns columns = columns_of(
      {{"I1", integers({})},
       {"I2", integers({})},
       {"C1", integers({})},
       {"W", ragged(text({}), {0})},
       {"P", numbers({})}});
  const PipelineBatch batch = sample_pipeline().apply(columns);
  EXPECT_EQ(batch.dense.sizes(), (Ids{0, 3}));
  EXPECT_EQ(std::get<at::Tensor>(batch.features["site"]).numel(), 0);
  const auto words = std::get<RaggedFeature>(batch.features["words"]);
  EXPECT_EQ(words.values.numel(), 0);
  EXPECT_EQ(to_vector(words.row_splits), (Ids{0}));
}

TEST(FeaturePipelineTest, WithoutNumbersTheMatrixIsEmpty) {
  const FeaturePipeline pipeline({{"a", {"I1"}, Identity{.num_ids = 10}}});
  EXPECT_EQ(pipeline.apply(sample_columns()).dense.sizes(), (Ids{2, 0}));
  EXPECT_EQ(FeaturePipeline({}).apply({}).dense.numel(), 0);
}

TEST(FeaturePipelineTest, ReadsViewsOfTensors) {
  Columns columns;
  columns.add(
      "a", {.values = int64s({1, 9, 2, 9, 3, 9}).view({3, 2}).select(1, 0)});
  const FeaturePipeline pipeline({{"a", {"a"}, Identity{.num_ids = 10}}});
  EXPECT_EQ(
      to_vector(std::get<at::Tensor>(pipeline.apply(columns).features["a"])),
      (Ids{1, 2, 3}));
}

TEST(FeaturePipelineTest, NamesAllColumnsThatDoNotFitAtOnce) {
  Columns columns;
  columns.add("C1", numbers({1.0F}));
  columns.add("W", integers({3}));
  columns.add("I1", ragged(integers({1}), {0, 1}));
  for (const char* text :
       {"'counts': column 'I2' is missing.",
        "'counts': column 'I1' has lists of integers, but Log1p takes integers "
        "or floats, one per example.",
        "'site': column 'C1' has floats, but Hash takes integers or text.",
        "'words': column 'W' has integers, but Vocabulary takes text. Read it "
        "as text: set its type to ColumnType::kText in `types` of the reader, "
        "or pass `types = pipeline.types()`.",
        "'band': column 'P' is missing.",
        "Columns of the batch: C1, W, I1."}) {
    EXPECT_VALUE_ERROR(sample_pipeline().apply(columns), text);
  }
}

TEST(FeaturePipelineTest, RefusesUnusableOutputs) {
  const Hash hash{.num_bins = 9};
  const PipelineOutput good{"a", {"x"}, hash};
  const auto with = [&](const Transform& transform,
                        Texts columns,
                        int64_t max_length = 0) -> std::vector<PipelineOutput> {
    return {{"a", std::move(columns), transform, max_length}};
  };
  expect_refusals<std::vector<PipelineOutput>>(
      {{{good, good}, "[FeaturePipeline 'a'] two outputs have this name"},
       {{good, {.columns = {"x"}, .transform = hash}},
        "the name of outputs[1] must be UTF-8 text, but is empty"},
       {{{"\xff", {"x"}, hash}},
        "the name of outputs[0] must be UTF-8 text, but is not UTF-8"},
       {with(hash, {"\xff"}), "the names of columns must be UTF-8"},
       {with(hash, {}), "Hash takes one column, but got 0"},
       {with(hash, {"x", "y"}), "Hash takes one column, but got 2"},
       {with(Cross{.num_bins = 9}, {"x"}),
        "Cross takes two columns or more, but got 1"},
       {with(Log1p{}, {}), "Log1p takes one column or more, but got 0"},
       {with(hash, {"x"}, -1), "max_length must be >= 0"},
       {with(Log1p{}, {"x"}, 1),
        "and 0 for transforms that give numbers, but got 1"},
       {with(Hash{}, {"x"}), "[FeaturePipeline 'a'] Hash num_bins must be in"},
       {with(Vocabulary{.values = Ids{4, 5, 6, 5}}, {"x"}),
        "[FeaturePipeline 'a'] Vocabulary values must all be different, but 5 "
        "at index 3 repeats an earlier value"}},
      [](const auto& outputs) { FeaturePipeline pipeline(outputs); });
}

Nest<FeatureConfig> sample_configs() {
  const auto config = [](const char* name, int64_t size) {
    return FeatureConfig{
        .table = make_table({.name = name, .vocabulary_size = size, .dim = 2})};
  };
  return {
      {"site", config("sites", 100)},
      {"words", config("words", 4)},
      {"site_x_words", config("crossed", 50)},
      {"band", config("bands", 3)}};
}

TEST(FeaturePipelineTest, KnowsTheSizesOfTables) {
  const FeaturePipeline pipeline = sample_pipeline();
  EXPECT_EQ(pipeline.vocabulary_size("words"), 4);
  EXPECT_EQ(pipeline.vocabulary_size("band"), 3);
  EXPECT_EQ(pipeline.num_dense(), 3);
  EXPECT_EQ(pipeline.num_reserved_ids("words"), 2);
  EXPECT_EQ(pipeline.num_reserved_ids("site"), 1);
  EXPECT_EQ(pipeline.num_reserved_ids("site_x_words"), 0);
  EXPECT_VALUE_ERROR(
      pipeline.num_reserved_ids("counts"), "no feature 'counts'. Known: site");
  EXPECT_VALUE_ERROR(
      pipeline.vocabulary_size("counts"),
      "no feature 'counts'. Known: site, words, site_x_words, band.");
  validate(pipeline, sample_configs());
}

TEST(FeaturePipelineTest, IdsBecomeTextAgain) {
  const FeaturePipeline pipeline(
      {{"word",
        {"W"},
        Vocabulary{.values = Texts{"red", "blue"}, .num_oov_indices = 2}},
       {"number",
        {"N"},
        Vocabulary{
            .values = Ids{7, -8},
            .num_oov_indices = 0,
            .missing = Missing::kError}},
       {"band", {"B"}, Bucketize{.boundaries = {18, 30.5}}},
       {"day", {"D"}, Identity{.num_ids = 7}},
       {"site", {"S"}, Hash{.num_bins = 9}}});
  EXPECT_EQ(
      pipeline.to_text("word", int64s({4, 0, 1, 2, 3})),
      (Texts{"blue", "(missing)", "(unknown)", "(unknown)", "red"}));
  EXPECT_EQ(pipeline.to_text("number", int64s({1, 0})), (Texts{"-8", "7"}));
  EXPECT_EQ(
      pipeline.to_text("band", int64s({0, 1, 2, 3})),
      (Texts{"(missing)", "(-inf, 18)", "[18, 30.5)", "[30.5, inf)"}));
  EXPECT_EQ(pipeline.to_text("day", int64s({6})), (Texts{"6"}));
  EXPECT_INDEX_ERROR(
      pipeline.to_text("word", int64s({5})),
      "[FeaturePipeline 'word'] to_text(): ids must be in [0, 5), but got 5");
  EXPECT_INDEX_ERROR(pipeline.to_text("word", int64s({-1})), "but got -1");
  EXPECT_VALUE_ERROR(
      pipeline.to_text("site", int64s({1})),
      "to_text(): Hash can't be reversed, because several values may have one id");
  EXPECT_TYPE_ERROR(
      pipeline.to_text("word", floats({1})), "expected a dense int64 tensor");
}

TEST(FeaturePipelineTest, ATableBeginsWithZerosForUnknownValues) {
  const FeaturePipeline pipeline(
      {{"words",
        {"W"},
        Vocabulary{.values = Texts{"red", "blue"}, .num_oov_indices = 2}},
       {"key", {"W"}, Hash64{}}});
  const TablePtr table = pipeline.make_table("words", {.dim = 4});
  EXPECT_EQ(
      *table,
      (TableConfig{
          .name = "words", .vocabulary_size = 5, .dim = 4, .zero_rows = 3}));
  EXPECT_EQ(pipeline.make_table("words", {.name = "w", .dim = 4})->name, "w");
  EXPECT_VALUE_ERROR(pipeline.make_table("key", {.dim = 4}), "or set keys");
  const TablePtr keys = pipeline.make_table(
      "key", {.dim = 4, .keys = DynamicKeys{.capacity = 9}});
  EXPECT_EQ(keys->zero_rows, 0);
}

TEST(FeaturePipelineTest, EachFeatureOfALayerGetsATableOfItsOwn) {
  const FeaturePipeline pipeline = sample_pipeline();
  const Nest<FeatureConfig> features =
      pipeline.make_features({.dim = 3, .combiner = Combiner::kSum});
  EXPECT_EQ(features.paths(), (Texts{"site", "words", "site_x_words", "band"}));
  EXPECT_EQ(
      *features.at("words").leaf().table,
      *pipeline.make_table("words", {.dim = 3, .combiner = Combiner::kSum}));
  EXPECT_VALUE_ERROR(
      pipeline.make_features({.name = "t", .dim = 3}),
      "expected a config without a name");
  EXPECT_VALUE_ERROR(
      FeaturePipeline({{"counts", {"I1"}, Log1p{}}}).make_features({.dim = 3}),
      "expected outputs to ids, but all of them are numbers");
}

TEST(FeaturePipelineTest, WarnsAboutRandomRowsOfUnknownValues) {
  Warnings warnings;
  validate(sample_pipeline(), sample_configs());
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_CONTAINS(
      warnings.texts[0], "begin at random: 'site', 'words', 'band'.");
  const FeaturePipeline pipeline = sample_pipeline();
  const auto table = [&](const char* name) {
    return FeatureConfig{.table = pipeline.make_table(name, {.dim = 2})};
  };
  validate(
      pipeline,
      {{"site", table("site")},
       {"words", table("words")},
       {"site_x_words", table("site_x_words")},
       {"band",
        FeatureConfig{
            .table = make_table(
                {.vocabulary_size = 3,
                 .dim = 2,
                 .initializer = initializers::Zeros{}})}}});
  EXPECT_EQ(warnings.texts.size(), 1);
}

TEST(FeaturePipelineTest, NamesAllTablesThatDoNotFitAtOnce) {
  auto entries = sample_configs().entries();
  entries[0].second = FeatureConfig{
      .table = make_table({.name = "few", .vocabulary_size = 99, .dim = 2})};
  entries[1].second = FeatureConfig{};
  entries[2].first = "other";
  entries[3].second = Nest<FeatureConfig>::list({});
  const auto check = [&] {
    validate(sample_pipeline(), Nest<FeatureConfig>::map(entries));
  };
  EXPECT_VALUE_ERROR(
      check(),
      "'site': Hash gives ids in [0, 100), but its table 'few' has "
      "vocabulary_size 99. Set vocabulary_size to 100, or change the transform.");
  EXPECT_VALUE_ERROR(
      check(), "'words': the layer must have a table for it, but has none");
  EXPECT_VALUE_ERROR(check(), "'site_x_words': the pipeline gives it, but");
  EXPECT_VALUE_ERROR(
      check(), "'band': the layer must have a table for it, but has a list");
  EXPECT_VALUE_ERROR(check(), "'other': the layer has it, but the pipeline");
  EXPECT_VALUE_ERROR(
      validate(sample_pipeline(), Nest<FeatureConfig>(FeatureConfig{})),
      "[FeaturePipeline] the features of the layer must be a flat map like those "
      "of a pipeline, but are a value");
}

TEST(FeaturePipelineTest, ThreadsShareOnePipeline) {
  std::vector<int64_t> values(20'000);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<int64_t>(i * 7 % 1000);
  }
  const Columns columns =
      columns_of({{"a", integers(values)}, {"b", integers(values)}});
  const FeaturePipeline pipeline({
      {"a", {"a"}, Vocabulary{.values = Ids{1, 2, 3}}},
      {"b", {"b"}, Hash{.num_bins = 77}},
      {"n", {"a", "b"}, Log1p{}},
  });
  const PipelineBatch expected = pipeline.apply(columns);
  std::vector<int> is_equal(4);
  run_in_threads(is_equal.size(), [&](size_t t) {
    const PipelineBatch batch = FeaturePipeline(pipeline).apply(columns);
    is_equal[t] = at::equal(batch.dense, expected.dense);
    for (const char* name : {"a", "b"}) {
      is_equal[t] &= static_cast<int>(at::equal(
          std::get<at::Tensor>(batch.features[name]),
          std::get<at::Tensor>(expected.features[name])));
    }
  });
  EXPECT_EQ(is_equal, std::vector<int>(4, 1));
}

FeaturePipeline hashing(std::map<std::string, ColumnType> types = {}) {
  return FeaturePipeline(
      {{"user", {"user"}, Hash64{}},
       {"pair", {"user", "hour"}, Cross{.num_bins = 1000}}},
      std::move(types));
}

Columns users(Column user, Column hour) {
  return columns_of({{"user", std::move(user)}, {"hour", std::move(hour)}});
}

TEST(FeaturePipelineTest, AHashedColumnKeepsTheTypeOfTheFirstBatch) {
  const FeaturePipeline pipeline = hashing();
  const FeaturePipeline copy = pipeline;
  EXPECT_TRUE(pipeline.types().empty());
  EXPECT_EQ(pipeline.untyped_columns(), (Texts{"hour", "user"}));
  // An empty batch says nothing about the types.
  pipeline.apply(users(text({}), integers({})));
  EXPECT_TRUE(pipeline.types().empty());
  pipeline.apply(users(integers({1, 2}), text({"a", "b"})));
  const std::map<std::string, ColumnType> expected{
      {"user", ColumnType::kInt64}, {"hour", ColumnType::kText}};
  EXPECT_EQ(pipeline.types(), expected);
  EXPECT_EQ(copy.types(), expected);
  EXPECT_TRUE(pipeline.untyped_columns().empty());

  const auto other = [&] {
    pipeline.apply(users(text({"1", "guest"}), text({"a", "b"})));
  };
  EXPECT_VALUE_ERROR(
      other(),
      "'user': column 'user' has text, but this pipeline takes integers for it, "
      "and the ids of the same values would differ. Read the column as integers");
  EXPECT_VALUE_ERROR(other(), "'pair': column 'user' has text");
  EXPECT_EQ(pipeline.types(), expected);
  pipeline.apply(users(text({}), text({})));
}

TEST(FeaturePipelineTest, TypesCanBeGivenBeforeTheFirstBatch) {
  const FeaturePipeline pipeline =
      hashing({{"user", ColumnType::kText}, {"hour", ColumnType::kUInt64Bits}});
  EXPECT_TRUE(pipeline.untyped_columns().empty());
  EXPECT_VALUE_ERROR(
      pipeline.apply(users(integers({1}), integers({1}))),
      "column 'user' has integers, but this pipeline takes text");
  // The bits of an unsigned integer are read as an integer.
  pipeline.apply(users(text({"1"}), integers({-1})));
  EXPECT_VALUE_ERROR(
      hashing({{"users", ColumnType::kText}}),
      "`types` has the column 'users', which no output reads");
  EXPECT_VALUE_ERROR(
      hashing({{"hour", ColumnType::kFloat32}}),
      "column 'hour' can't have floats: 'pair' takes integers or text");
}

TEST(FeaturePipelineTest, TypesThatTheOutputsNeedAreKnown) {
  using Types = std::map<std::string, ColumnType>;
  EXPECT_EQ(sample_pipeline().types(), (Types{{"W", ColumnType::kText}}));
  // Columns of numbers may be integers or floats.
  const FeaturePipeline pipeline(
      {{"a", {"x"}, Bucketize{{1.0}}}, {"b", {"y"}, Identity{.num_ids = 3}}});
  EXPECT_EQ(pipeline.types(), (Types{{"y", ColumnType::kInt64}}));
  for (const Column& x : {integers({1}), numbers({1.0F})}) {
    pipeline.apply(columns_of({{"x", x}, {"y", integers({1})}}));
  }
  EXPECT_VALUE_ERROR(
      FeaturePipeline(
          {{"a", {"x"}, Log1p{}},
           {"b", {"x"}, Vocabulary{.values = Texts{"u"}}}}),
      "no column 'x' fits all its outputs: 'a' takes integers or floats, one "
      "per example, 'b' takes text.");
}

TEST(FeaturePipelineTest, ThreadsAgreeOnTheTypeOfTheFirstBatch) {
  for (int round = 0; round < 20; ++round) {
    const FeaturePipeline pipeline = hashing();
    std::vector<int> has_failed(4);
    run_in_threads(has_failed.size(), [&](size_t t) {
      try {
        pipeline.apply(
            users(t % 2 == 0 ? integers({1}) : text({"1"}), integers({1})));
      } catch (const c10::ValueError&) {
        has_failed[t] = 1;
      }
    });
    const bool is_integer = pipeline.types().at("user") == ColumnType::kInt64;
    const int other = is_integer ? 1 : 0;
    EXPECT_EQ(
        has_failed, (std::vector<int>{1 - other, other, 1 - other, other}));
  }
}

TEST(FeaturePipelineTest, EqualOutputsMakeEqualPipelines) {
  EXPECT_EQ(sample_pipeline(), sample_pipeline());
  std::vector<PipelineOutput> outputs = sample_pipeline().outputs();
  std::get<Hash>(outputs[1].transform).salt = 2;
  EXPECT_NE(FeaturePipeline(outputs), sample_pipeline());
  EXPECT_EQ(hashing(), hashing());
  EXPECT_NE(hashing({{"user", ColumnType::kText}}), hashing());
}

TEST(FeaturePipelineTest, AMovedFromPipelineStaysUsable) {
  FeaturePipeline from = sample_pipeline();
  const FeaturePipeline to = std::move(from);
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_EQ(from, to);
  EXPECT_EQ(from.num_dense(), 3);
  EXPECT_TRUE(at::equal(
      from.apply(sample_columns()).dense, to.apply(sample_columns()).dense));
  // NOLINTEND(bugprone-use-after-move)
}

}  // namespace tessera::data::feature_pipeline_test
