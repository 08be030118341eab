// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of include/tessera/data/, which check_docs.cmake
// compares with them.
#include <tessera/tessera.h>

#include "tests/docs/pages_fixture.h"
#include "tests/test_util.h"

namespace tessera::data::reference_data_test {

using test::expect_close;

using Texts = std::vector<std::string>;

/// The files in the working folder have four examples each, and day_1.gz also has a
/// malformed line. Example i has the label i % 2, integers i, and the categories 0xa,
/// 0xa, 0x1a and 0x1a.
class DataReferenceTest : public test::PagesTest {
 protected:
  DataReferenceTest() {
    std::ostringstream examples;
    for (int i = 0; i < 4; ++i) {
      examples << i % 2;
      for (int field = 0; field < kCriteoIntegers; ++field) {
        examples << "\t" << i;
      }
      for (int field = 0; field < kCriteoCategories; ++field) {
        examples << "\t" << i / 2 << "a";
      }
      examples << "\n";
    }
    std::ofstream("day_0.gz") << examples.str();
    std::ofstream("day_1.gz") << examples.str() << "malformed\n";
  }

  /// The ids of one output.
  static at::Tensor ids_of(const PipelineOutput& output, Columns columns) {
    const PipelineBatch batch = FeaturePipeline({output}).apply(columns);
    return std::get<at::Tensor>(batch.features[output.name]);
  }

  static Columns one_column(const std::string& name, const Column& column) {
    Columns columns;
    columns.add(name, column);
    return columns;
  }
};

TEST_F(DataReferenceTest, ColumnsHaveOneOrSeveralValuesPerExample) {
  // snippet: Column
  const Column ages{.values = torch::tensor({31.0F, 18.0F})};
  // The tags of two examples: "new" and "red", and "red".
  const Column tags{
      .values = std::vector<std::string>{"new", "red", "red"},
      .row_splits = torch::tensor({0, 2, 3})};
  // end snippet
  validate(ages, "ages");
  validate(tags, "tags");
  EXPECT_EQ(batch_size(ages), 2);
  EXPECT_EQ(batch_size(tags), 2);
}

TEST_F(DataReferenceTest, ColumnsAreABatch) {
  // snippet: Columns
  Columns columns;
  columns.add("age", {.values = torch::tensor({31.0F, 18.0F})});
  columns.add("site", {.values = std::vector<std::string>{"a.org", "b.org"}});
  const Column& ages = columns.at("age");
  // end snippet
  EXPECT_EQ(columns.batch_size(), 2);
  expect_close(std::get<at::Tensor>(ages.values), test::floats({31, 18}));
  EXPECT_VALUE_ERROR(columns.at("name"), "site");
}

TEST_F(DataReferenceTest, AReaderIsARange) {
  std::vector<Columns> read;
  const auto train = [&](const Columns& columns) { read.push_back(columns); };
  // snippet: CriteoReader
  for (CriteoBatch& batch : CriteoReader({.files = {"day_0.gz"}})) {
    train(to_columns(batch));
  }
  // end snippet
  ASSERT_EQ(read.size(), 1);
  expect_close(
      std::get<at::Tensor>(read[0].at("label").values),
      test::floats({0, 1, 0, 1}));
  expect_close(
      std::get<at::Tensor>(read[0].at("C26").values),
      test::int64s({0xa, 0xa, 0x1a, 0x1a}));
}

TEST_F(DataReferenceTest, AReaderReports) {
  std::vector<Columns> read;
  const auto train = [&](const Columns& columns) { read.push_back(columns); };
  // snippet: CriteoReport
  CriteoReader reader(
      {.files = {"day_0.gz", "day_1.gz"},
       .malformed_lines = MalformedLines::kSkip});
  for (CriteoBatch& batch : reader) {
    train(to_columns(batch));
  }
  const CriteoReport& report = reader.report();
  std::cout << report.examples << " examples, " << report.malformed_lines
            << " malformed lines\n";
  // end snippet
  EXPECT_EQ(report.examples, 8);
  EXPECT_EQ(report.malformed_lines, 1);
  ASSERT_EQ(read.size(), 1);
  EXPECT_EQ(read[0].batch_size(), 8);
}

TEST_F(DataReferenceTest, ReadersShareFiles) {
  // snippet: CriteoShard
  // The second of two processes that read the same files.
  CriteoReader reader(
      {.files = {"day_0.gz"},
       .batch_size = 2,
       .shard = {.index = 1, .count = 2}});
  // end snippet
  const auto batch = reader.next();
  ASSERT_TRUE(batch.has_value());
  expect_close(batch->integers.select(1, 0), test::int64s({1, 3}));
}

TEST_F(DataReferenceTest, APipelineGivesFeaturesAndNumbers) {
  CriteoReader reader({.files = {"day_0.gz"}, .batch_size = 4});
  const CriteoBatch batch = *reader.next();
  // snippet: FeaturePipeline
  const FeaturePipeline pipeline(
      {{.name = "counts",
        .columns = {"I1", "I2"},
        .transform = transforms::Log1p{}},
       {.name = "site",
        .columns = {"C3"},
        .transform = transforms::Hash{.num_bins = 100'000}}});
  const PipelineBatch inputs = pipeline.apply(to_columns(batch));
  // inputs.features: the ids of "site"; inputs.dense: [batch, 2]
  // end snippet
  EXPECT_EQ(inputs.dense.sizes(), (at::IntArrayRef{4, 2}));
  expect_close(inputs.dense.select(1, 1), test::floats({0, 1, 2, 3}).log1p());
  EXPECT_EQ(inputs.features.paths(), Texts{"site"});
  EXPECT_EQ(pipeline.vocabulary_size("site"), 100'000);
}

TEST_F(DataReferenceTest, AHashNeedsNoVocabulary) {
  // snippet: Hash
  const PipelineOutput site{
      .name = "site",
      .columns = {"site"},
      .transform = transforms::Hash{.num_bins = 100'000}};
  // end snippet
  const at::Tensor ids = ids_of(
      site,
      one_column("site", {.values = Texts{"a.org", "", "b.org", "a.org"}}));
  EXPECT_TRUE(at::equal(ids[0], ids[3]));
  EXPECT_EQ(ids[1].item<int64_t>(), 0);  // missing
  EXPECT_FALSE(at::equal(ids[0], ids[2]));
  EXPECT_LT(ids.max().item<int64_t>(), 100'000);
}

TEST_F(DataReferenceTest, NumbersHaveBins) {
  // snippet: Bucketize
  // Id 0: unknown, 1: under 18, 2: 18 to 29, 3: 30 to 49, 4: older.
  const PipelineOutput age{
      .name = "age",
      .columns = {"age"},
      .transform = transforms::Bucketize{.boundaries = {18, 30, 50}}};
  // end snippet
  expect_close(
      ids_of(
          age,
          one_column(
              "age", {.values = torch::tensor({17.5F, 18.0F, 49.0F, NAN})})),
      test::int64s({1, 2, 3, 0}));
}

TEST_F(DataReferenceTest, KnownValuesHaveIds) {
  // snippet: Vocabulary
  // Id 0: missing, 1: another country, 2: "de", 3: "fr".
  const PipelineOutput country{
      .name = "country",
      .columns = {"country"},
      .transform = transforms::Vocabulary{
          .values = std::vector<std::string>{"de", "fr"}}};
  // end snippet
  expect_close(
      ids_of(
          country,
          one_column("country", {.values = Texts{"fr", "", "it", "de"}})),
      test::int64s({3, 0, 1, 2}));
}

TEST_F(DataReferenceTest, IdsBecomeTextAgain) {
  const FeaturePipeline pipeline(
      {{.name = "country",
        .columns = {"country"},
        .transform = transforms::Vocabulary{.values = Texts{"de", "fr"}}}});
  const auto ids = torch::tensor({2, 1, 0});
  // snippet: to_text
  // "de", "(unknown)" and "(missing)"
  const std::vector<std::string> names = pipeline.to_text("country", ids);
  // end snippet
  EXPECT_EQ(names, (Texts{"de", "(unknown)", "(missing)"}));
}

TEST_F(DataReferenceTest, VectorsOfAnotherProgramAreRowsOfATable) {
  std::ofstream("glove.txt") << "red 1 2\ngreen 3 4\nblue 5 -6e-1\n";
  const FeaturePipeline pipeline(
      {{.name = "word",
        .columns = {"word"},
        .transform =
            transforms::Vocabulary{.values = Texts{"blue", "black", "red"}}}});
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {
          {"word",
           FeatureConfig{
               .table = pipeline.make_table(
                   "word", {.name = "words", .dim = 2})}}}});
  const at::Tensor before = layer->embedding_tables()["words"].clone();
  // snippet: load_text_vectors
  const TextVectors glove =
      load_text_vectors("glove.txt", {.max_words = 100'000});
  at::Tensor rows = layer->embedding_tables()["words"].clone();
  const int64_t found = copy_vectors(glove, pipeline, "word", rows);
  layer->update_embedding_table("words", rows);
  // end snippet
  EXPECT_EQ(found, 2);
  const at::Tensor after = layer->embedding_tables()["words"];
  expect_close(after.slice(0, 0, 2), at::zeros({2, 2}));
  expect_close(after[2], test::floats({5, -0.6F}));
  EXPECT_TRUE(at::equal(after[3], before[3]));
  expect_close(after[4], test::floats({1, 2}));
}

TEST_F(DataReferenceTest, CombinationsHaveIds) {
  // snippet: Cross
  // Each pair of a site and an hour has an embedding.
  const PipelineOutput site_and_hour{
      .name = "site_and_hour",
      .columns = {"site", "hour"},
      .transform = transforms::Cross{.num_bins = 1'000'000}};
  // end snippet
  Columns columns;
  columns.add("site", {.values = Texts{"a.org", "a.org", "b.org", "a.org"}});
  columns.add("hour", {.values = torch::tensor({7, 8, 7, 7})});
  const at::Tensor ids = ids_of(site_and_hour, columns);
  EXPECT_TRUE(at::equal(ids[0], ids[3]));
  EXPECT_FALSE(at::equal(ids[0], ids[1]));
  EXPECT_FALSE(at::equal(ids[0], ids[2]));
}

TEST_F(DataReferenceTest, ValuesAndCombinationsHaveKeysOf64Bits) {
  // snippet: Hash64
  const PipelineOutput site{
      .name = "site", .columns = {"site"}, .transform = transforms::Hash64{}};
  // end snippet
  // snippet: Cross64
  const PipelineOutput site_and_hour{
      .name = "site_and_hour",
      .columns = {"site", "hour"},
      .transform = transforms::Cross64{}};
  // end snippet
  Columns columns;
  columns.add("site", {.values = Texts{"a.org", "", "b.org", "a.org"}});
  columns.add("hour", {.values = torch::tensor({7, 8, 7, 7})});
  const at::Tensor sites = ids_of(site, columns);
  EXPECT_TRUE(at::equal(sites[0], sites[3]));
  EXPECT_FALSE(at::equal(sites[0], sites[2]));
  EXPECT_EQ(sites[1].item<int64_t>(), 0);
  EXPECT_GT(sites[0].abs().item<double>(), 1e12);
  const at::Tensor pairs = ids_of(site_and_hour, columns);
  EXPECT_TRUE(at::equal(pairs[0], pairs[3]));
  EXPECT_FALSE(at::equal(pairs[0], pairs[2]));
}

TEST_F(DataReferenceTest, IdsForOtherLanguages) {
  const auto check =
      [](const Transform& transform,
         const std::vector<std::variant<int64_t, const char*>>& values,
         int64_t id) {
        PipelineOutput output{.name = "id", .transform = transform};
        Columns columns;
        for (const auto& value : values) {
          output.columns.push_back(c10::str("c", columns.entries().size()));
          const auto* text = std::get_if<const char*>(&value);
          columns.add(
              output.columns.back(),
              text == nullptr
                  ? Column{.values = torch::tensor({std::get<int64_t>(value)})}
                  : Column{.values = Texts{*text}});
        }
        const Feature feature =
            FeaturePipeline({output}).apply(columns).features["id"];
        const auto* ids = std::get_if<at::Tensor>(&feature);
        EXPECT_EQ(
            (ids == nullptr ? std::get<RaggedFeature>(feature).values : *ids)
                .item<int64_t>(),
            id);
      };
  using namespace transforms;  // NOLINT(google-build-using-namespace)
  // snippet: id_vectors
  // A transform, the values of its columns, and their id.
  check(Hash64{}, {1}, 3439722301264460079);
  check(Hash64{}, {"1"}, 7335560060985733465);
  check(Hash64{}, {-1}, 5841669975847748628);
  check(Hash64{}, {"a.org"}, -6744716633279231938);
  check(Hash64{.salt = 42}, {"Zürich"}, -5975701026489771895);
  check(Hash64{.missing = Missing::kDrop}, {1}, 3439722301264460078);
  check(Hash64{}, {""}, 0);
  check(Hash{.num_bins = 1000}, {1}, 270);
  check(Hash{.num_bins = 1000}, {"1"}, 148);
  check(Hash{.num_bins = 1000, .salt = 42}, {"a.org"}, 498);
  check(Cross64{}, {"a.org", 7}, -2892429734552348739);
  check(Cross{.num_bins = 1000}, {"a.org", 7}, 877);
  check(Cross{.num_bins = 1000}, {7, "a.org"}, 989);
  // Id 0: missing, 1 to 3: unknown values, 4: "de", 5: "fr".
  const Vocabulary countries{
      .values = std::vector<std::string>{"de", "fr"}, .num_oov_indices = 3};
  check(countries, {"fr"}, 5);
  check(countries, {"it"}, 3);
  // end snippet
}

TEST_F(DataReferenceTest, IntegersAreIds) {
  // snippet: Identity
  const PipelineOutput weekday{
      .name = "weekday",
      .columns = {"weekday"},
      .transform = transforms::Identity{.num_ids = 7}};
  // end snippet
  const auto ids = torch::tensor({6, 0, 3});
  expect_close(ids_of(weekday, one_column("weekday", {.values = ids})), ids);
  EXPECT_INDEX_ERROR(
      ids_of(weekday, one_column("weekday", {.values = torch::tensor({7})})),
      "weekday");
}

TEST_F(DataReferenceTest, CountsBecomeNumbers) {
  Columns columns;
  columns.add("clicks", {.values = torch::tensor({0, 99})});
  columns.add("views", {.values = torch::tensor({9, -1})});
  // snippet: Log1p
  const PipelineOutput counts{
      .name = "counts",
      .columns = {"clicks", "views"},
      .transform = transforms::Log1p{}};
  // end snippet
  const at::Tensor dense = FeaturePipeline({counts}).apply(columns).dense;
  expect_close(dense, torch::tensor({{1.0F, 10.0F}, {100.0F, 1.0F}}).log());
}

TEST_F(DataReferenceTest, NumbersAreNormalized) {
  // snippet: Normalize
  const PipelineOutput age{
      .name = "age",
      .columns = {"age"},
      .transform = transforms::Normalize{.mean = 40.0, .variance = 100.0}};
  // end snippet
  const Columns columns =
      one_column("age", {.values = torch::tensor({50.0F, 35.0F, NAN})});
  expect_close(
      FeaturePipeline({age}).apply(columns).dense,
      test::floats({1.0F, -0.5F, 0.0F}).view({3, 1}));
}

TEST_F(DataReferenceTest, MeanAndVarianceComeFromTheData) {
  const std::vector<Columns> batches{
      one_column("age", {.values = torch::tensor({30.0F, 50.0F})}),
      one_column("age", {.values = torch::tensor({40.0F})})};
  // snippet: NormalizeBuilder
  NormalizeBuilder builder;
  for (const Columns& batch : batches) {
    builder.add(batch.at("age"));
  }
  const transforms::Normalize age = builder.finish();
  // end snippet
  EXPECT_NEAR(age.mean, 40.0, 1e-9);
  EXPECT_NEAR(age.variance, 200.0 / 3, 1e-9);
}

TEST_F(DataReferenceTest, AVocabularyComesFromTheData) {
  CriteoReader reader({.files = {"day_0.gz"}, .batch_size = 3});
  // snippet: VocabularyBuilder
  VocabularyBuilder builder("C3");
  while (const auto batch = reader.next()) {
    builder.add(to_columns(*batch).at("C3"));
  }
  const transforms::Vocabulary site =
      builder.finish({.min_count = 2, .max_size = 50'000});
  // end snippet
  EXPECT_EQ(
      std::get<std::vector<int64_t>>(site.values),
      (std::vector<int64_t>{0x1a, 0xa}));
}

}  // namespace tessera::data::reference_data_test
