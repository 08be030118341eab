// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of the sources in include/tessera/data/, which
// check_docs.cmake compares with them.
#include <tessera/tessera.h>

#include "packages/data/tests/arrow_files.h"
#include "packages/data/tests/source_examples.h"
#include "tests/docs/pages_fixture.h"
#include "tests/test_util.h"

#include <string_view>

namespace tessera::data::reference_sources_test {

using Texts = std::vector<std::string>;

/// The files that the examples read are in the working folder.
class SourcesReferenceTest : public test::PagesTest {
 protected:
  SourcesReferenceTest() {
    std::ofstream("clicks.csv") << "user,item,recent,price\n"
                                   "u1,i3,i5|i8,9.5\n"
                                   "u2,i5,,\n"
                                   "u1,i8,i3,2\n";
    const auto table = test::table_of(
        {{"user", test::array_of(arrow::int64(), "[7, 9, 7]")},
         {"item", test::array_of(arrow::utf8(), R"(["a", "b", "a"])")},
         {"price", test::array_of(arrow::float64(), "[0.5, null, 2]")}});
    test::write_parquet("day_0.parquet", table, 2);
    test::write_parquet("day_1.parquet", table, 2);
    std::ostringstream examples;
    for (int i = 0; i < 4; ++i) {
      examples << i % 2;
      for (int field = 0; field < kCriteoIntegers + kCriteoCategories;
           ++field) {
        examples << "\t" << i;
      }
      examples << "\n";
    }
    std::ofstream("day_0.gz") << examples.str();
  }
};

TEST_F(SourcesReferenceTest, CsvOptions) {
  std::ostringstream output;
  // snippet: CsvOptions
  const auto source = make_csv_source(
      {.files = {"clicks.csv"},
       .columns = {"user", "recent", "price"},
       .types = {{"price", ColumnType::kFloat32}},
       .list_delimiters = {{"recent", '|'}}});
  const auto reader = source->open();
  while (const auto examples = reader->next()) {
    output << examples->batch_size() << " examples\n";
  }
  // end snippet
  EXPECT_EQ(output.str(), "3 examples\n");
  EXPECT_EQ(
      test::show_all(*source),
      (Texts{
          "user text: u1 u2 u1",
          "recent text: [i5 i8] [] [i3]",
          "price float32: 9.5 _ 2"}));
}

TEST_F(SourcesReferenceTest, ColumnTypes) {
  std::ofstream("clicks.csv") << "user,time\n1,2\n";
  const FeaturePipeline pipeline(
      {{.name = "user",
        .columns = {"user"},
        .transform = transforms::Hash{.num_bins = 9}}},
      {{"user", ColumnType::kText}});
  // snippet: ColumnTypes
  ColumnTypes types = pipeline.types();
  types["time"] = ColumnType::kInt64;
  const auto source =
      make_csv_source({.files = {"clicks.csv"}, .types = types});
  // end snippet
  EXPECT_EQ(test::show_all(*source), (Texts{"user text: 1", "time int64: 2"}));
}

TEST_F(SourcesReferenceTest, CsvSource) {
  std::ofstream("clicks.csv", std::ios::app) << "u3,i1\n";
  std::ostringstream output;
  // snippet: make_csv_source
  const auto source = make_csv_source(
      {.files = {"clicks.csv"}, .malformed_lines = MalformedLines::kSkip});
  const auto reader = source->open();
  while (const auto examples = reader->next()) {
  }
  output << source->report().malformed_lines << " malformed line: "
         << source->report().first_malformed_lines.front() << "\n";
  save_column_types(source->types(), "types.json");
  // end snippet
  EXPECT_EQ(
      load_column_types("types.json"),
      (std::map<std::string, ColumnType>{
          {"item", ColumnType::kText},
          {"price", ColumnType::kFloat32},
          {"recent", ColumnType::kText},
          {"user", ColumnType::kText}}));
  EXPECT_EQ(
      output.str(),
      "1 malformed line: 'clicks.csv' line 5: expected 4 fields, but got 2\n");
}

TEST_F(SourcesReferenceTest, ParquetOptions) {
  // snippet: ParquetOptions
  const auto source = make_parquet_source(
      {.files = {"day_0.parquet", "day_1.parquet"},
       .columns = {"user", "price"},
       .types = {{"user", ColumnType::kText}}});
  const auto last_two = source->open(*source->size() - 2);
  // end snippet
  EXPECT_EQ(
      test::show_rest(*last_two),
      (Texts{"user text: 9 7", "price float32: _ 2"}));
}

TEST_F(SourcesReferenceTest, CriteoSource) {
  // snippet: make_criteo_source
  const auto source = make_criteo_source({.files = {"day_0.gz"}});
  const auto from_third = source->open(2);
  const auto examples = from_third->next();
  const Column& labels = examples->at("label");
  // end snippet
  EXPECT_EQ(batch_size(labels), 2);
}

TEST_F(SourcesReferenceTest, FileBytes) {
  std::string text;
  // snippet: FileBytes
  FileBytes bytes("day_0.gz", "MyReader");
  char part[4096];
  while (const size_t count = bytes.read(part, sizeof(part))) {
    text.append(part, count);
  }
  // end snippet
  EXPECT_EQ(text.substr(0, 3), "0\t0");
}

TEST_F(SourcesReferenceTest, LineSource) {
  int64_t lines = 0;
  // snippet: LineSource
  LineSource source({.files = {"day_0.gz"}, .start_line = 1});
  for (LineSource::Block block; source.next(block);) {
    const std::string_view text(
        block.text.data() + block.begin, block.end - block.begin);
    lines += std::count(text.begin(), text.end(), '\n');
  }
  // end snippet
  EXPECT_EQ(lines, 3);
}

TEST_F(SourcesReferenceTest, OwnFiles) {
  // snippet: own_files
  // Lines such as u1,i3,i5|i8,9.5: a user, an item, recent items and a price.
  const auto source = make_csv_source(
      {.files = {"clicks.csv"}, .list_delimiters = {{"recent", '|'}}});

  // "item" and "recent" share one vocabulary, so that they can share one table.
  VocabularyBuilder builder("item");
  const auto reader = source->open();
  while (const auto columns = reader->next()) {
    builder.add(columns->at("item"));
    builder.add(columns->at("recent"));
  }
  const transforms::Vocabulary known_items = builder.finish({.min_count = 1});
  const FeaturePipeline pipeline(
      {{.name = "user",
        .columns = {"user"},
        .transform = transforms::Hash{.num_bins = 1000}},
       {.name = "item", .columns = {"item"}, .transform = known_items},
       {.name = "recent", .columns = {"recent"}, .transform = known_items},
       {.name = "price",
        .columns = {"price"},
        .transform = transforms::Log1p{}}});
  const PipelineBatch inputs = pipeline.apply(*source->open()->next());
  // end snippet
  EXPECT_EQ(inputs.features.size(), 3U);
  EXPECT_EQ(inputs.dense.sizes(), (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(
      pipeline.vocabulary_size("item"), pipeline.vocabulary_size("recent"));
}

TEST_F(SourcesReferenceTest, WriteParquet) {
  const FeaturePipeline pipeline(
      {{.name = "item",
        .columns = {"item"},
        .transform = transforms::Vocabulary{.values = Texts{"i1", "i2"}}}});
  const at::Tensor rows = torch::arange(8).to(torch::kFloat).view({4, 2});
  // snippet: write_parquet
  // An id, its text and its vector in each row.
  const at::Tensor ids = torch::arange(pipeline.vocabulary_size("item"));
  Columns columns;
  columns.add("id", {.values = ids});
  columns.add("item", {.values = pipeline.to_text("item", ids)});
  columns.add("vector", vector_column(rows));
  write_parquet(columns, "items.parquet");
  // end snippet
  EXPECT_EQ(
      test::show_all(*make_parquet_source({.files = {"items.parquet"}})),
      (Texts{
          "id int64: 0 1 2 3",
          "item text: (missing) (unknown) i1 i2",
          "vector float32: [0 1] [2 3] [4 5] [6 7]"}));
}

TEST_F(SourcesReferenceTest, MakeFileSource) {
  for (const std::string file : {"clicks.csv", "day_0.parquet"}) {
    // snippet: make_file_source
    const Dataset clicks(make_file_source(
        {.files = {file},
         .columns = {"user", "item"},
         .types = {{"user", ColumnType::kText}}}));
    // end snippet
    const Columns batch = *clicks.open()->next();
    EXPECT_EQ(batch.batch_size(), 3) << file;
    EXPECT_EQ(
        std::get<Texts>(batch.at("user").values)[0],
        file == "clicks.csv" ? "u1" : "7");
  }
  const auto lists = make_file_source(
      {.files = {"clicks.csv"},
       .columns = {"recent"},
       .list_delimiters = {{"recent", '|'}}});
  EXPECT_EQ(test::show_all(*lists), Texts{"recent text: [i5 i8] [] [i3]"});
  EXPECT_VALUE_ERROR(
      make_file_source({}),
      "[make_file_source] files must have the path of one file or more");
  EXPECT_VALUE_ERROR(
      make_file_source({.files = {"clicks.csv", "day_0.parquet"}}),
      "[make_file_source] all files must have the same format, but "
      "'clicks.csv' is CSV and 'day_0.parquet' is Parquet.");
  EXPECT_VALUE_ERROR(
      make_file_source({.files = {"nowhere.csv"}}), "[make_file_source]");
  std::ofstream("clicks.csv", std::ios::app) << "u3,i1\n";
  EXPECT_VALUE_ERROR(
      test::count_rest(*make_file_source({.files = {"clicks.csv"}})->open()),
      "line 5: expected 4 fields, but got 2");
  const auto skipping = make_file_source(
      {.files = {"clicks.csv"}, .malformed_lines = MalformedLines::kSkip});
  EXPECT_EQ(test::count_rest(*skipping->open()), 3);
}

}  // namespace tessera::data::reference_sources_test
