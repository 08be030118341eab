// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/file_source.h>
#include <tessera/data/parquet_source.h>
#include <tessera/data/write_parquet.h>

#include "packages/data/tests/arrow_files.h"
#include "packages/data/tests/criteo_files.h"
#include "packages/data/tests/source_examples.h"
#include "tests/test_util.h"

#include <arrow/io/memory.h>
#include <parquet/column_page.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>

namespace tessera::data::parquet_source_test {

using test::write_parquet;

// A page of a Parquet file: its header in [begin, body) and its data in [body, end).
struct PageRange {
  size_t begin = 0;
  size_t body = 0;
  size_t end = 0;
};

// A number as Thrift's compact protocol writes it.
std::string thrift_integer(int32_t value) {
  const auto bits = static_cast<uint32_t>(value);
  uint32_t zigzag = (bits << 1) ^ (value < 0 ? ~0U : 0U);
  std::string text;
  for (; zigzag > 0x7f; zigzag >>= 7) {
    text += static_cast<char>(zigzag | 0x80);
  }
  return text + static_cast<char>(zigzag);
}

// The size of the header of a page, which has the checksum of what follows.
size_t header_size(const std::string& page) {
  for (size_t size = 1; size < page.size(); ++size) {
    const auto sum = static_cast<int32_t>(::crc32(
        0,
        reinterpret_cast<const Bytef*>(page.data() + size),
        static_cast<uInt>(page.size() - size)));
    if (page.substr(0, size).find(thrift_integer(sum)) != std::string::npos) {
      return size;
    }
  }
  ADD_FAILURE() << "a page has no checksum";
  return 0;
}

std::vector<PageRange> pages_of(
    const std::string& path,
    const std::string& bytes) {
  std::vector<PageRange> pages;
  const auto file = parquet::ParquetFileReader::OpenFile(path);
  const auto footer = file->metadata();
  for (int group = 0; group < footer->num_row_groups(); ++group) {
    for (int column = 0; column < footer->num_columns(); ++column) {
      const auto chunk = footer->RowGroup(group)->ColumnChunk(column);
      const int64_t first = chunk->has_dictionary_page()
          ? chunk->dictionary_page_offset()
          : chunk->data_page_offset();
      const auto stream =
          std::make_shared<arrow::io::BufferReader>(arrow::Buffer::FromString(
              bytes.substr(first, chunk->total_compressed_size())));
      const auto reader = parquet::PageReader::Open(
          stream,
          chunk->num_values(),
          chunk->compression(),
          parquet::ReaderProperties(),
          *footer->schema()->Column(column));
      auto begin = static_cast<size_t>(first);
      while (reader->NextPage() != nullptr) {
        const auto end = static_cast<size_t>(first + value_of(stream->Tell()));
        const size_t header = header_size(bytes.substr(begin, end - begin));
        pages.push_back({.begin = begin, .body = begin + header, .end = end});
        begin = end;
      }
    }
  }
  return pages;
}

class ParquetSourceTest : public testing::Test {
 protected:
  // A source of a file with these columns.
  std::unique_ptr<ExampleSource> source_of(
      const std::vector<NamedArray>& columns,
      ParquetOptions options = {}) {
    path_ = folder_ / "a.parquet";
    write_parquet(path_, table_of(columns));
    options.files = {path_};
    return make_parquet_source(options);
  }
  Texts show(
      const std::vector<NamedArray>& columns,
      const ParquetOptions& options = {}) {
    return show_all(*source_of(columns, options));
  }
  void expect_shown(
      const std::vector<NamedArray>& columns,
      const ParquetOptions& options,
      const Texts& expected) {
    EXPECT_EQ(show(columns, options), expected);
  }
  static Texts show_file(const std::string& path) {
    return show_all(*make_parquet_source({.files = {path}}));
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(ParquetSourceTest, EveryTypeBecomesAColumn) {
  const struct {
    std::string name;
    std::shared_ptr<arrow::DataType> type;
    std::string json;
    std::string shown;
  } rows[] = {
      {"bool", arrow::boolean(), "true, false", "int64: 1 0"},
      {"int8", arrow::int8(), "-128, 127", "int64: -128 127"},
      {"uint8", arrow::uint8(), "0, 255", "int64: 0 255"},
      {"int16", arrow::int16(), "-32768, 1", "int64: -32768 1"},
      {"uint16", arrow::uint16(), "65535, 1", "int64: 65535 1"},
      {"int32", arrow::int32(), "-2147483648, 1", "int64: -2147483648 1"},
      {"uint32", arrow::uint32(), "4294967295, 1", "int64: 4294967295 1"},
      {"int64",
       arrow::int64(),
       "-9223372036854775807, 1",
       "int64: -9223372036854775807 1"},
      {"uint64",
       arrow::uint64(),
       "9223372036854775807, 1",
       "int64: 9223372036854775807 1"},
      {"date", arrow::date32(), "1, 20000", "int64: 1 20000"},
      {"time", arrow::timestamp(arrow::TimeUnit::MILLI), "5, 6", "int64: 5 6"},
      {"float", arrow::float32(), "0.5, 1e38", "float32: 0.5 1e+38"},
      {"double", arrow::float64(), "0.25, -1.5", "float32: 0.25 -1.5"},
      {"text", arrow::utf8(), R"("a", "")", "text: a _"},
      {"large", arrow::large_utf8(), R"("a", "b\u00e9")", "text: a b\xc3\xa9"},
      {"binary", arrow::binary(), R"("a", "b")", "text: a b"}};
  std::vector<NamedArray> columns;
  Texts expected;
  for (const auto& [name, type, json, shown] : rows) {
    columns.emplace_back(name, array_of(type, "[" + json + ", null]"));
    expected.push_back(name + " " + shown + " _");
  }
  const auto source = source_of(columns);
  EXPECT_EQ(show_all(*source), expected);
  EXPECT_EQ(source->size(), 3);
}

TEST_F(ParquetSourceTest, ListsAndDictionariesBecomeTheirValues) {
  const auto dictionary = value_of(arrow::json::DictArrayFromJSONString(
      arrow::dictionary(arrow::int8(), arrow::utf8()),
      "[1, 0, null, 1]",
      R"(["x", "y"])"));
  const auto source = source_of(
      {{"ids",
        array_of(arrow::list(arrow::int32()), "[[1, null], [], null, [4]]")},
       {"large",
        array_of(
            arrow::large_list(arrow::float64()), "[[1.5], [2, 3], [], null]")},
       {"pair",
        array_of(
            arrow::fixed_size_list(arrow::int64(), 2),
            "[[1, 2], [3, 4], [5, 6], [7, 8]]")},
       {"words",
        array_of(arrow::list(arrow::utf8()), R"([["a", "b"], [], [""], []])")},
       {"kind", dictionary}});
  EXPECT_EQ(
      show_all(*source),
      (Texts{
          "ids int64: [1 _] [] [] [4]",
          "large float32: [1.5] [2 3] [] []",
          "pair int64: [1 2] [3 4] [5 6] [7 8]",
          "words text: [a b] [] [_] []",
          "kind text: y x _ y"}));
}

TEST_F(ParquetSourceTest, ReadsTheRequestedColumnsAsTheRequestedTypes) {
  const std::vector<NamedArray> columns{
      {"a", array_of(arrow::int64(), "[1, null]")},
      {"b", array_of(arrow::list(arrow::utf8()), R"([["x"], []])")},
      {"c", array_of(arrow::uint64(), "[18446744073709551615, 1]")},
      {"d", array_of(arrow::boolean(), "[true, null]")}};
  const auto source = source_of(
      columns,
      {.columns = {"d", "c", "a"},
       .types = {
           {"c", ColumnType::kText},
           {"d", ColumnType::kFloat32},
           {"a", ColumnType::kText}}});
  EXPECT_EQ(
      show_all(*source),
      (Texts{
          "d float32: 1 _", "c text: 18446744073709551615 1", "a text: 1 _"}));
}

TEST_F(ParquetSourceTest, ThreadsAndRowGroupsDoNotChangeTheExamples) {
  const auto table = numbered_table(1000);
  Texts expected;
  for (const int64_t row_group : {1000, 1, 7, 333}) {
    const std::string path = folder_ / "a.parquet";
    const std::string second = folder_ / "b.parquet";
    write_parquet(path, table, row_group);
    write_parquet(second, numbered_table(10), 3);
    for (const int64_t threads : {1, 2, 5}) {
      for (const int64_t queue_examples : {1, 100, 0}) {
        const auto source = make_parquet_source(
            {.files = {path, second},
             .threads = threads,
             .queue_examples = queue_examples});
        const Texts shown = show_all(*source);
        if (expected.empty()) {
          expected = shown;
          EXPECT_CONTAINS(shown[0], " 998 999 0 1 2");
          EXPECT_EQ(
              shown[1].substr(0, 40),
              "score float32: _ 0.25 0.5 0.75 1 _ 1.5 1");
        }
        EXPECT_EQ(shown, expected) << row_group << " " << threads;
        EXPECT_EQ(source->size(), 1010);
      }
    }
  }
}

TEST_F(ParquetSourceTest, LargeRowGroupsAreDecodedInParts) {
  const std::string path = folder_ / "a.parquet";
  write_parquet(path, numbered_table(200'000), 150'000);
  const auto source = make_parquet_source(
      {.files = {path}, .columns = {"id", "tags"}, .queue_examples = 1});
  for (const int64_t first : {0, 65'535, 65'536, 149'999, 150'001, 199'999}) {
    const auto reader = source->open(first);
    int64_t next = first;
    while (const auto examples = reader->next()) {
      EXPECT_LE(examples->batch_size(), 65'536);
      const auto& ids = std::get<at::Tensor>(examples->at("id").values);
      const auto& tags = examples->at("tags").row_splits;
      for (int64_t i = 0; i < ids.numel(); ++i, ++next) {
        ASSERT_EQ(ids.const_data_ptr<int64_t>()[i], next);
        const auto* splits = tags.const_data_ptr<int64_t>();
        ASSERT_EQ(splits[i + 1] - splits[i], next % 4);
      }
    }
    EXPECT_EQ(next, 200'000);
  }
}

TEST_F(ParquetSourceTest, OpensAtAnyExample) {
  const std::string first = folder_ / "a.parquet";
  const std::string second = folder_ / "b.parquet";
  write_parquet(first, numbered_table(20), 6);
  write_parquet(second, numbered_table(9), 4);
  const auto source = make_parquet_source(
      {.files = {first, second}, .columns = {"id"}, .threads = 2});
  Texts ids;
  for (int i = 0; i < 29; ++i) {
    ids.push_back(" " + std::to_string(i < 20 ? i : i - 20));
  }
  for (int64_t start = 0; start < 29; ++start) {
    std::string expected = "id int64:";
    for (size_t i = start; i < ids.size(); ++i) {
      expected += ids[i];
    }
    EXPECT_EQ(show_all(*source, start), Texts{expected});
  }
  EXPECT_EQ(source->open(29)->next(), std::nullopt);
  EXPECT_EQ(source->open(1000)->next(), std::nullopt);
  EXPECT_VALUE_ERROR(source->open(-1), "first must be >= 0, but got -1");
}

TEST_F(ParquetSourceTest, ReadersMayLiveLongerThanTheSource) {
  const std::string path = folder_ / "a.parquet";
  write_parquet(path, numbered_table(1000), 10);
  auto source = make_parquet_source({.files = {path}, .queue_examples = 1});
  const auto reader = source->open();
  source = nullptr;
  EXPECT_EQ(count_rest(*reader), 1000);
  // A reader may be dropped before its end.
  make_parquet_source({.files = {path}, .queue_examples = 1})->open()->next();
}

TEST_F(ParquetSourceTest, FilesMayHaveOtherOrdersOfColumns) {
  const std::string first = folder_ / "a.parquet";
  const std::string second = folder_ / "b.parquet";
  write_parquet(
      first,
      table_of(
          {{"a", array_of(arrow::int64(), "[1]")},
           {"b", array_of(arrow::float64(), "[0.5]")}}));
  write_parquet(
      second,
      table_of(
          {{"c", array_of(arrow::utf8(), R"(["x"])")},
           {"b", array_of(arrow::int8(), "[2]")},
           {"a", array_of(arrow::int32(), "[3]")}}));
  EXPECT_EQ(
      show_all(*make_parquet_source({.files = {first, second}})),
      (Texts{"a int64: 1 3", "b float32: 0.5 2"}));
  EXPECT_VALUE_ERROR(
      make_parquet_source({.files = {second, first}}),
      "a.parquet' has no column 'c'. Its columns are: a, b.");
  EXPECT_VALUE_ERROR(
      make_parquet_source({.files = {second, first}, .columns = {"b"}}),
      "a.parquet' column 'b' is of the type double, which can't be read as "
      "int64. Set its type to float32 in `types`");
}

TEST_F(ParquetSourceTest, NamesMissingColumnsAndOtherTypes) {
  const std::vector<NamedArray> columns{
      {"user_id", array_of(arrow::int64(), "[1]")},
      {"item", array_of(arrow::utf8(), R"(["x"])")},
      {"money", array_of(arrow::decimal128(5, 2), R"(["1.25"])")},
      {"pair",
       array_of(
           arrow::struct_({arrow::field("x", arrow::int8())}),
           R"([{"x": 1}])")}};
  expect_refusals<ParquetOptions>(
      {{{.columns = {"userid"}},
        "a.parquet' has no column 'userid'. Similar columns are: user_id. "
        "Correct the name."},
       {{.columns = {"price"}}, "Its columns are: user_id, item, money, pair."},
       {{},
        "column 'money' is of the type decimal128(5, 2), which a column can't "
        "have. Leave it out of `columns`"},
       {{.columns = {"pair"}}, "the type struct<x: int8>"},
       {{.columns = {"item"}, .types = {{"item", ColumnType::kInt64}}},
        "column 'item' is of the type string, which can't be read as int64"},
       {{.columns = {"item"}, .types = {{"user_id", ColumnType::kText}}},
        "`types` has the column 'user_id', which is not read"},
       {{.columns = {"item", "item"}}, "'item' twice"}},
      [&](const ParquetOptions& options) { source_of(columns, options); });
  EXPECT_VALUE_ERROR(
      source_of({{"a", columns[0].second}, {"a", columns[0].second}}),
      "has several columns 'a'");
}

TEST_F(ParquetSourceTest, UnsignedIntegersAreReadByTheirBits) {
  const ParquetOptions bits{.types = {{"a", ColumnType::kUInt64Bits}}};
  expect_shown(
      {{"a",
        array_of(
            arrow::uint64(),
            "[1, 18446744073709551615, null, 9223372036854775809]")}},
      bits,
      {"a int64: 1 -1 _ -9223372036854775807"});
  expect_shown(
      {{"a", array_of(arrow::int64(), "[1, -1]")}}, bits, {"a int64: 1 -1"});
  EXPECT_VALUE_ERROR(
      show({{"a", array_of(arrow::uint64(), "[9223372036854775808]")}}, bits),
      "row 1: column 'a' is 9223372036854775808, whose bits stand for a missing "
      "integer. Set the column's type in `types` to kText.");
  EXPECT_VALUE_ERROR(
      source_of({{"a", array_of(arrow::float64(), "[1]")}}, bits),
      "can't be read as uint64_bits");
}

TEST_F(ParquetSourceTest, TimesHaveUnits) {
  using Unit = arrow::TimeUnit;
  const auto source = source_of(
      {{"id", array_of(arrow::int64(), "[1]")},
       {"day", array_of(arrow::date32(), "[1]")},
       {"time", array_of(arrow::timestamp(Unit::MICRO), "[1]")},
       {"seen", array_of(arrow::list(arrow::timestamp(Unit::MILLI)), "[[1]]")},
       {"clock", array_of(arrow::time32(Unit::MILLI), "[1]")},
       {"length", array_of(arrow::duration(Unit::NANO), "[1]")}});
  EXPECT_EQ(
      source->units(),
      (std::map<std::string, std::string>{
          {"day", "days since 1970"},
          {"time", "microseconds since 1970"},
          {"seen", "milliseconds since 1970"},
          {"clock", "milliseconds since midnight"},
          {"length", "nanoseconds"}}));
}

TEST_F(ParquetSourceTest, AColumnHasTheSameUnitInAllFiles) {
  const auto write = [&](const char* name,
                         const std::shared_ptr<arrow::DataType>& type) {
    const std::string path = folder_ / name;
    write_parquet(path, table_of({{"time", array_of(type, "[1]")}}));
    return path;
  };
  const auto micro =
      write("b.parquet", arrow::timestamp(arrow::TimeUnit::MICRO));
  const auto milli =
      write("c.parquet", arrow::timestamp(arrow::TimeUnit::MILLI));
  const auto plain = write("d.parquet", arrow::int64());
  EXPECT_VALUE_ERROR(
      make_parquet_source({.files = {micro, milli}}),
      "c.parquet' column 'time' has milliseconds since 1970, but microseconds "
      "since 1970 in the first file");
  EXPECT_VALUE_ERROR(
      make_parquet_source({.files = {micro, plain}}),
      "d.parquet' column 'time' has plain numbers, but microseconds");
  EXPECT_EQ(
      count_rest(*make_parquet_source({.files = {milli, milli}})->open()), 2);
}

TEST_F(ParquetSourceTest, WrittenColumnsAreReadAgain) {
  Columns columns;
  columns.add("id", {.values = at::tensor({int64_t{3}, kMissing}, at::kLong)});
  columns.add("price", {.values = at::tensor({0.5F, NAN}, at::kFloat)});
  columns.add("name", {.values = Texts{"a", "b\xc3\xa9"}});
  columns.add(
      "tags",
      {.values = Texts{"x", "y"},
       .row_splits = at::tensor({0, 2, 2}, at::kLong)});
  columns.add(
      "vector",
      vector_column(at::tensor({1, 2, 3, 4, 5, 6}, at::kDouble)
                        .view({3, 2})
                        .t()
                        .slice(1, 1)));
  const std::string path = folder_ / "written.parquet";
  data::write_parquet(columns, path);
  const auto source = make_parquet_source({.files = {path}});
  EXPECT_EQ(
      show_all(*source),
      (Texts{
          "id int64: 3 _",
          "price float32: 0.5 _",
          "name text: a b\xc3\xa9",
          "tags text: [x y] []",
          "vector float32: [3 5] [4 6]"}));
  const auto dense = [&](const at::Tensor& rows) { vector_column(rows); };
  EXPECT_VALUE_ERROR(dense(at::zeros({2})), "expected a dense tensor [n, dim]");
  EXPECT_TYPE_ERROR(
      dense(at::zeros({2, 2}, at::kLong)), "[vector_column] expected floats");
  EXPECT_VALUE_ERROR(
      data::write_parquet({}, path), "expected at least one column");
  EXPECT_TORCH_ERROR(
      data::write_parquet(columns, folder_ / "none/a.parquet"),
      "[write_parquet]");
  EXPECT_EQ(make_parquet_source({.files = {path}})->size(), 2);
}

TEST_F(ParquetSourceTest, NamesTheRowOfAValueThatDoesNotFit) {
  arrow::BinaryBuilder builder;
  check_arrow(builder.Append("good"));
  check_arrow(builder.Append("\xc3("));
  const auto list = arrow::list(arrow::float64());
  expect_refusals<std::shared_ptr<arrow::Array>>(
      {{array_of(arrow::uint64(), "[1, 9223372036854775808]"),
        "a.parquet' row 2: column 'a' is 9223372036854775808, which does not "
        "fit into int64. Set the column's type in `types` to kUInt64Bits for "
        "keys of 64 bits, or to kText."},
       {array_of(arrow::int64(), "[1, -9223372036854775808]"),
        "row 2: column 'a' is -2^63, which stands for a missing integer"},
       {array_of(arrow::float64(), "[1, 1e39]"),
        "row 2: column 'a' is 1e+39, which is too large for float32"},
       {value_of(builder.Finish()), "row 2: column 'a' is not UTF-8"},
       {array_of(list, "[[], [1, 2], null, [3, 1e39]]"),
        "row 4: column 'a' is 1e+39"}},
      [&](const auto& array) {
        show({{"a", array}});
      });
  const auto lists =
      source_of({{"a", array_of(list, "[[], [1, 2], null, [3, 1e39]]")}});
  EXPECT_VALUE_ERROR(show_all(*lists, 3), "row 4: column 'a' is 1e+39");
}

TEST_F(ParquetSourceTest, ReturnsTheExamplesBeforeAnError) {
  const std::string good = folder_ / "a.parquet";
  const std::string bad = folder_ / "b.parquet";
  write_parquet(good, table_of({{"a", array_of(arrow::float64(), "[1, 2]")}}));
  write_parquet(bad, table_of({{"a", array_of(arrow::float64(), "[1e39]")}}));
  const auto source = make_parquet_source({.files = {good, bad}, .threads = 3});
  const auto reader = source->open();
  EXPECT_EQ(reader->next()->batch_size(), 2);
  EXPECT_VALUE_ERROR(reader->next(), "b.parquet' row 1");
  EXPECT_VALUE_ERROR(reader->next(), "b.parquet' row 1");
}

TEST_F(ParquetSourceTest, RefusesDamagedFiles) {
  const std::string path = folder_ / "a.parquet";
  EXPECT_VALUE_ERROR(
      make_parquet_source({.files = {path}}),
      "[make_parquet_source] expected a file with examples, but got '" + path +
          "': No such file or directory");
  EXPECT_VALUE_ERROR(
      make_parquet_source({.files = {folder_.path()}}), "it is a folder");
  folder_.write("a.parquet", "");
  EXPECT_VALUE_ERROR(make_parquet_source({.files = {path}}), "it is empty");
  folder_.write("a.parquet", "a,b\n1,2\n");
  EXPECT_VALUE_ERROR(
      make_parquet_source({.files = {path}}),
      "[make_parquet_source] '" + path +
          "' must be a Parquet file, but it does not begin with 'PAR'. Use "
          "make_csv_source() for text, or make_file_source(), which");
  write_parquet(path, numbered_table(5000), 1000);
  const std::string bytes = read_text(path);
  // Every truncated file is refused, and damaged bytes never crash the reader.
  for (size_t size = 1; size < bytes.size(); size += bytes.size() / 20) {
    folder_.write("b.parquet", bytes.substr(0, size));
    EXPECT_VALUE_ERROR(
        make_parquet_source({.files = {folder_ / "b.parquet"}}),
        "b.parquet' can't be read: ");
  }
  int64_t refused = 0;
  for (size_t i = 4; i < bytes.size(); i += bytes.size() / 100) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x55);
    folder_.write("b.parquet", damaged);
    try {
      count_rest(
          *make_parquet_source({.files = {folder_ / "b.parquet"}})->open());
    } catch (const c10::ValueError&) {
      ++refused;
    }
  }
  // Without checksums of pages, changed values can't be told from right ones.
  EXPECT_GT(refused, 10);
}

TEST_F(ParquetSourceTest, ChecksumsOfPagesAreVerified) {
  const std::string path = folder_ / "a.parquet";
  std::mt19937 random(1);
  for (const auto compression :
       {arrow::Compression::UNCOMPRESSED, arrow::Compression::ZSTD}) {
    write_parquet(path, numbered_table(600), 250, compression, true);
    const std::string bytes = read_text(path);
    const std::vector<PageRange> pages = pages_of(path, bytes);
    ASSERT_GE(pages.size(), 12U);
    const Texts intact = show_file(path);
    int64_t in_bodies = 0;
    for (int round = 0; round < 400; ++round) {
      const size_t i = random() % bytes.size();
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << random() % 8));
      folder_.write("b.parquet", damaged);
      const bool is_in_body =
          std::any_of(pages.begin(), pages.end(), [&](const PageRange& page) {
            return page.body <= i && i < page.end;
          });
      in_bodies += is_in_body ? 1 : 0;
      Texts shown;
      try {
        shown = show_file(folder_ / "b.parquet");
      } catch (const c10::ValueError& error) {
        EXPECT_CONTAINS(error.what(), "b.parquet");
        continue;
      }
      // Headers and footers have no checksums.
      EXPECT_FALSE(is_in_body) << "byte " << i << " of " << bytes.size();
    }
    EXPECT_GT(in_bodies, 100);
  }
}

// Arrow skips pages of unknown types, so that the rows after them would move up.
TEST_F(ParquetSourceTest, RefusesAPageOfAnUnknownType) {
  const std::string path = folder_ / "a.parquet";
  arrow::Int64Builder builder;
  for (int64_t i = 0; i < 70'000; ++i) {
    check_arrow(builder.Append(i));
  }
  write_parquet(
      path,
      table_of({{"a", value_of(builder.Finish())}}),
      1 << 20,
      arrow::Compression::ZSTD,
      true);
  std::string bytes = read_text(path);
  const std::vector<PageRange> pages = pages_of(path, bytes);
  ASSERT_GE(pages.size(), 3U);
  // The header begins with the field 1, the type.
  ASSERT_EQ(bytes.substr(pages.back().begin, 2), (std::string{0x15, 0x00}));
  bytes[pages.back().begin + 1] = 0x1e;
  folder_.write("b.parquet", bytes);
  const auto source = make_parquet_source({.files = {folder_ / "b.parquet"}});
  EXPECT_VALUE_ERROR(count_rest(*source->open()), "b.parquet' must have 70000");
}

TEST_F(ParquetSourceTest, RefusesFilesThatChange) {
  const std::string path = folder_ / "a.parquet";
  write_parquet(path, numbered_table(100), 10);
  const auto source = make_parquet_source({.files = {path}});
  write_parquet(path, numbered_table(101), 10);
  EXPECT_VALUE_ERROR(
      source->open()->next(),
      "a.parquet' has changed since the source was made");
  std::filesystem::remove(path);
  EXPECT_VALUE_ERROR(source->open()->next(), "No such file or directory");
}

TEST_F(ParquetSourceTest, FilesWithoutRowsHaveNoExamples) {
  const auto source =
      source_of({{"a", array_of(arrow::int64(), "[]")}}, {.threads = 2});
  EXPECT_EQ(source->size(), 0);
  EXPECT_EQ(source->open()->next(), std::nullopt);
}

TEST_F(ParquetSourceTest, RefusesOptionsOutOfRange) {
  EXPECT_VALUE_ERROR(make_parquet_source({}), "files is empty");
  expect_refusals<ParquetOptions>(
      {{{.threads = -1}, "threads must be in [0, 1024], but got -1"},
       {{.queue_examples = -1}, "queue_examples must be in"}},
      [&](const ParquetOptions& options) {
        source_of({{"a", array_of(arrow::int8(), "[1]")}}, options);
      });
}

TEST_F(ParquetSourceTest, TooManyColumnsMustBeChosen) {
  std::vector<NamedArray> columns;
  const auto array = array_of(arrow::int8(), "[7]");
  for (int i = 0; i < 20'000; ++i) {
    columns.emplace_back("c" + std::to_string(i), array);
  }
  EXPECT_VALUE_ERROR(
      source_of(columns),
      "would give 20000 columns, but a reader can handle 10000. Name those "
      "that you need in `columns`.");
  EXPECT_EQ(
      show_all(*make_parquet_source(
          {.files = {path_}, .columns = {"c19999", "c3"}})),
      (Texts{"c19999 int64: 7", "c3 int64: 7"}));
}

// The advice must not lead from one function to another that refuses the file, too.
TEST(FileSourceTest, NamesOtherFormats) {
  const TemporaryFolder folder;
  const struct {
    std::string bytes;
    std::string problem;
  } cases[] = {
      {std::string("\xff\xff\xff\xff\x78\0\0\0", 8),
       "it is an Arrow stream. Write it as a Parquet file"},
      {"ARROW1--",
       "it is an Arrow file, also called Feather. Write it as a Parquet file"},
      {std::string("FEA1\0\0\0\0", 8),
       "it is a Feather file of version 1. Write it as a Parquet file"},
      {"PK\x03\x04----", "it is a zip file. Unpack it first."},
      {"BZh9----", "it is compressed with bzip2. Unpack it, "}};
  for (const auto& [bytes, problem] : cases) {
    const std::string path = folder.write("a.parquet", bytes);
    const std::string here = "'" + path + "' must be ";
    EXPECT_VALUE_ERROR(
        make_parquet_source({.files = {path}}),
        "[make_parquet_source] " + here + "a Parquet file, but " + problem);
    EXPECT_VALUE_ERROR(
        make_file_source({.files = {path}}),
        "[make_file_source] " + here + "a CSV or Parquet file, but " + problem);
  }
  const std::string path = folder.write("a.parquet", make_gzip("ARROW1"));
  EXPECT_VALUE_ERROR(
      make_file_source({.files = {path}}),
      "what it unpacks to is an Arrow file, also called Feather. Write it");
  folder.write("a.parquet", make_gzip("PAR1"));
  EXPECT_VALUE_ERROR(
      make_file_source({.files = {path}}),
      "it is compressed with gzip. Unpack it first.");
}

}  // namespace tessera::data::parquet_source_test
