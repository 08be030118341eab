// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/csv_source.h>

#include "tests/data/arrow_files.h"
#include "tests/data/criteo_files.h"
#include "tests/data/source_examples.h"
#include "tests/temporary_folder.h"
#include "tests/test_util.h"

#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::data {
namespace csv_source_test {

using test::count_rest;
using test::make_gzip;
using test::show_all;
using test::show_rest;
using test::TemporaryFolder;

using Texts = std::vector<std::string>;

std::string make_zstd(const std::string& text) {
  const auto codec =
      test::value_of(arrow::util::Codec::Create(arrow::Compression::ZSTD));
  const auto size = static_cast<int64_t>(text.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  std::string result(
      static_cast<size_t>(codec->MaxCompressedLen(size, bytes)), '\0');
  result.resize(static_cast<size_t>(test::value_of(codec->Compress(
      size,
      bytes,
      static_cast<int64_t>(result.size()),
      reinterpret_cast<uint8_t*>(result.data())))));
  return result;
}

class CsvSourceTest : public testing::Test {
 protected:
  std::unique_ptr<CsvSource> source_of(
      const std::string& text,
      CsvOptions options = {}) {
    path_ = folder_.write("a.csv", text);
    options.files = {path_};
    return make_csv_source(options);
  }

  std::string path_of(const std::string& name) const {
    return folder_ / name;
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(CsvSourceTest, UnsignedIntegersAreReadByTheirBits) {
  const CsvOptions bits{.types = {{"a", ColumnType::kUInt64Bits}}};
  EXPECT_EQ(
      show_all(*source_of("a\n1\n18446744073709551615\nNA\n", bits)),
      Texts{"a int64: 1 -1 _"});
  for (const char* value :
       {"-1", "18446744073709551616", "9223372036854775808"}) {
    EXPECT_VALUE_ERROR(
        show_all(*source_of(std::string("a\n") + value + "\n", bits)),
        "column 'a' must be an integer from 0 to 2^64 - 1, but not 2^63");
  }
}

TEST_F(CsvSourceTest, InfersTypesFromTheFirstBlock) {
  const auto source = source_of(
      "i,f,t,empty,flag,id,mixed\n"
      "1,1.5,abc,,true,18446744073709551615,1\n"
      "-7,2,NA,,false,1,x\n"
      "NA,nan,,,True,2,2\n"
      " 5 ,-1e-3,\"a,\"\"b\"\"\nc\",,,3,\n");
  EXPECT_EQ(
      show_all(*source),
      (Texts{
          "i int64: 1 -7 _ 5",
          "f float32: 1.5 2 _ -0.001",
          "t text: abc NA _ a,\"b\"\nc",
          "empty text: _ _ _ _",
          "flag int64: 1 0 1 _",
          "id text: 18446744073709551615 1 2 3",
          "mixed text: 1 x 2 _"}));
  EXPECT_EQ(source->size(), std::nullopt);
  EXPECT_EQ(source->report().examples, 4);
}

TEST_F(CsvSourceTest, ReadsTheRequestedColumnsAsTheRequestedTypes) {
  const std::string text = "a,b,c\n1,2,3\n4,5,6\n";
  EXPECT_EQ(
      show_all(*source_of(
          text,
          {.columns = {"c", "a"},
           .types = {{"c", ColumnType::kText}, {"a", ColumnType::kFloat32}}})),
      (Texts{"c text: 3 6", "a float32: 1 4"}));
}

TEST_F(CsvSourceTest, ListsHaveTheirOwnDelimiters) {
  EXPECT_EQ(
      show_all(*source_of(
          "recent,tags,prices\n1|2|3,a b,0.5;1\n,,\n7,c,\n8||9,\"x y\",2;NA\n",
          {.list_delimiters =
               {{"recent", '|'}, {"tags", ' '}, {"prices", ';'}}})),
      (Texts{
          "recent int64: [1 2 3] [] [7] [8 _ 9]",
          "tags text: [a b] [] [c] [x y]",
          "prices float32: [0.5 1] [] [] [2 _]"}));
}

TEST_F(CsvSourceTest, HeaderDelimiterAndQuoteAreOptions) {
  EXPECT_EQ(
      show_all(*source_of(
          "1\t'a\tb'\r\n2\tc\"\r\n",
          {.names = {"x", "y"}, .delimiter = '\t', .quote = '\''})),
      (Texts{"x int64: 1 2", "y text: a\tb c\""}));
  EXPECT_EQ(
      show_all(*source_of("x;y\n1;\"a\n2;b\n", {.delimiter = ';', .quote = 0})),
      (Texts{"x int64: 1 2", "y text: \"a b"}));
  // Empty lines, a byte order mark and a last row without a newline.
  EXPECT_EQ(
      show_all(*source_of("\xef\xbb\xbf\n\"x\",y\n\n1,a\n\n\n2,b")),
      (Texts{"x int64: 1 2", "y text: a b"}));
  // The mark is longer than a block.
  for (const int64_t block_bytes : {1, 2, 3, 4}) {
    EXPECT_EQ(
        show_all(*source_of(
            "\xef\xbb\xbf\"x\"\n1\n2\n", {.block_bytes = block_bytes})),
        (Texts{"x int64: 1 2"}))
        << block_bytes;
  }
}

TEST_F(CsvSourceTest, ReadsGzipAndZstd) {
  std::string text = "x,y\n";
  for (int i = 0; i < 5000; ++i) {
    text += std::to_string(i) + ",\"text " + std::to_string(i % 10) + "\"\n";
  }
  const Texts expected = show_all(*source_of(text));
  EXPECT_EQ(show_all(*source_of(make_gzip(text))), expected);
  EXPECT_EQ(show_all(*source_of(make_zstd(text))), expected);
  const std::string rest = "5000,z\n";
  // Frames and members may follow each other.
  EXPECT_EQ(
      count_rest(*source_of(make_zstd(text) + make_zstd(rest))->open()), 5001);
  EXPECT_EQ(
      count_rest(*source_of(make_gzip(text) + make_gzip(rest))->open()), 5001);
}

TEST_F(CsvSourceTest, RefusesCompressedFilesThatAreCutOff) {
  std::string text = "x,y\n";
  for (int i = 0; i < 20'000; ++i) {
    text += std::to_string(i * 7919 % 10'007) + "," + std::to_string(i) + "\n";
  }
  for (const std::string& bytes : {make_gzip(text), make_zstd(text)}) {
    const auto source =
        source_of(bytes.substr(0, bytes.size() - 10), {.block_bytes = 4096});
    const auto reader = source->open();
    EXPECT_VALUE_ERROR(count_rest(*reader), "[make_csv_source] '" + path_);
    EXPECT_GT(source->report().examples, 1000);
  }
}

TEST_F(CsvSourceTest, ThreadsAndBlocksDoNotChangeTheExamples) {
  std::string text = "id,name,list\n";
  for (int i = 0; i < 500; ++i) {
    text += std::to_string(i) + ",";
    text += i % 3 == 0 ? "\"with, comma\nand \"\"quote\"\"\"" : "plain";
    text += "," + std::string(i % 5 == 0 ? "" : "1|2") + "\n";
    text += i % 50 == 7 ? "bad,row\n" : "";
  }
  Texts expected;
  ReadReport expected_report;
  for (const int64_t threads : {1, 2, 5}) {
    for (const int64_t block_bytes : {1 << 20, 1000, 64}) {
      const auto source = source_of(
          text,
          {.types = {{"id", ColumnType::kInt64}, {"list", ColumnType::kInt64}},
           .list_delimiters = {{"list", '|'}},
           .malformed_lines = MalformedLines::kSkip,
           .threads = threads,
           .block_bytes = block_bytes});
      const Texts shown = show_all(*source);
      const ReadReport report = source->report();
      if (expected.empty()) {
        expected = shown;
        expected_report = report;
        EXPECT_NE(shown[0].find(" 7 8 9 "), std::string::npos);
        EXPECT_EQ(report.examples, 500);
        EXPECT_EQ(report.malformed_lines, 10);
        // Rows 0, 3 and 6 have a line more, and the header is line 1.
        EXPECT_EQ(
            report.first_malformed_lines[0],
            "'" + path_ + "' line 13: expected 3 fields, but got 2");
      }
      EXPECT_EQ(shown, expected);
      EXPECT_EQ(
          report.first_malformed_lines, expected_report.first_malformed_lines);
      EXPECT_EQ(report.bytes, expected_report.bytes);
    }
  }
}

TEST_F(CsvSourceTest, OpensAtAnyExample) {
  const std::string first = folder_.write("a.csv", "x,y\n0,a\n1,b\nbad\n2,c\n");
  const std::string second = folder_.write("b.csv", "y,x\nd,3\ne,4\n");
  const auto source = make_csv_source(
      {.files = {first, second},
       .malformed_lines = MalformedLines::kSkip,
       .threads = 2,
       .block_bytes = 8});
  const Texts xs{"0", "1", "2", "3", "4"};
  const Texts ys{"a", "b", "c", "d", "e"};
  for (size_t start = 0; start < 5; ++start) {
    std::string x = "x int64:";
    std::string y = "y text:";
    for (size_t i = start; i < 5; ++i) {
      x += " " + xs[i];
      y += " " + ys[i];
    }
    EXPECT_EQ(show_all(*source, static_cast<int64_t>(start)), (Texts{x, y}));
  }
  EXPECT_EQ(source->open(5)->next(), std::nullopt);
  EXPECT_EQ(source->open(99)->next(), std::nullopt);
  EXPECT_VALUE_ERROR(source->open(-1), "first must be >= 0");
}

TEST_F(CsvSourceTest, NamesFileLineAndColumn) {
  const struct {
    std::string text;
    std::string problem;
  } cases[] = {
      {"x,y\n1,a\n2,b\nabc,c\n",
       "line 4: column 'x' must be an integer above -2^63 and below 2^63, but "
       "got 'abc'"},
      {"x,y\n\n1,a\n\"2\",b\n1.5,c\n", "line 5: column 'x'"},
      {"x,y\n1,\"a\nb\"\n9223372036854775808,c\n",
       "line 4: column 'x' must be an integer"},
      {"x,y\n1,a\n-9223372036854775808,c\n", "line 3: column 'x'"},
      {"x,y\n1,a\n2\n3,c\n", "line 3: expected 2 fields, but got 1"},
      {"x,y\n1,a\n2,b,c\n", "line 3: expected 2 fields, but got 3"},
      {"x,y\n1,a\n2,\xc3(\n",
       "line 3: column 'y' must be UTF-8, but got '\\xc3('"},
      {"x,y\n1,a\n2,\"b\n3,c\n",
       "line 3: a quote is not closed, so the 2 lines from here to the end"},
      {"x,y\n1,a\n2,\"b\"c\n3,d\n",
       "line 3: text after a closing quote. A quote in this row may not be"},
      {"x,y\n1,a\n2,\"b\n3,c\n4,\"d\n5,e\n",
       "line 3: text after a closing quote"},
  };
  for (const auto& [text, problem] : cases) {
    for (const int64_t block_bytes : {1 << 20, 8}) {
      const auto source = source_of(
          text,
          {.types = {{"x", ColumnType::kInt64}, {"y", ColumnType::kText}},
           .block_bytes = block_bytes});
      const auto reader = source->open();
      EXPECT_VALUE_ERROR(
          count_rest(*reader), "[make_csv_source] '" + path_ + "' " + problem);
      EXPECT_VALUE_ERROR(reader->next(), problem);
      EXPECT_GE(source->report().examples, 1) << text;
    }
  }
  EXPECT_VALUE_ERROR(
      show_all(
          *source_of("x\n1\n1e39\n", {.types = {{"x", ColumnType::kFloat32}}})),
      "line 3: column 'x' must be a number in the range of float32, but got "
      "'1e39'. Correct the line, set another type in `types`, or");
}

TEST_F(CsvSourceTest, AdviceFitsTheProblem) {
  const struct {
    std::string text;
    CsvOptions options;
    std::string message;
  } cases[] = {
      {"x\n1\n1,2\n",
       {},
       "expected 1 field, but got 2. Correct the line, set "
       "CsvOptions::delimiter or names if they do not fit the file, or set "
       "malformed_lines to MalformedLines::kSkip to skip such lines."},
      {"1,2\n", {.names = {"x"}}, "expected 1 field, but got 2. Correct the"},
      {"x\na\n\xff\n", {}, "convert the file to UTF-8, or set malformed_lines"},
      {"x\na\n\"b\n",
       {},
       "set CsvOptions::quote to '\\0' if quotes have no meaning in this file"},
      {"x\na\n\"b\"c\n",
       {},
       "set CsvOptions::quote to '\\0' if quotes have no meaning in this file"},
      {"x\na\n" + std::string(20, 'b') + "\n",
       {.max_row_bytes = 10},
       "increase max_row_bytes, or set malformed_lines"},
  };
  for (const auto& [text, options, message] : cases) {
    EXPECT_VALUE_ERROR(show_all(*source_of(text, options)), message);
  }
}

TEST_F(CsvSourceTest, QuotesInsideAFieldThatIsNotQuotedAreText) {
  EXPECT_EQ(
      show_all(*source_of(
          "x,y\n1,5\" disk\n2,a\"\"b\n3,\"c \"\"d\"\"\"\n",
          {.types = {{"y", ColumnType::kText}}})),
      (Texts{"x int64: 1 2 3", "y text: 5\" disk a\"\"b c \"d\""}));
}

// Without the check, rows 2 to 4 would be one valid row.
TEST_F(CsvSourceTest, SkipsARowThatTwoOpenQuotesMake) {
  for (const int64_t block_bytes : {1 << 20, 4}) {
    const auto source = source_of(
        "x,y\n1,a\n2,\"b\n3,c\n4,\"d\n5,e\nbad\n6,\"f\"\n7,\"g\"h\n8,i\n",
        {.types = {{"x", ColumnType::kInt64}, {"y", ColumnType::kText}},
         .malformed_lines = MalformedLines::kSkip,
         .block_bytes = block_bytes});
    EXPECT_EQ(
        show_all(*source), (Texts{"x int64: 1 3 5 6 8", "y text: a c e f i"}));
    const std::string where = "'" + path_ + "' line ";
    const std::string problem =
        ": text after a closing quote. A quote in this row may not be closed";
    EXPECT_EQ(
        source->report().first_malformed_lines,
        (Texts{
            where + "3" + problem,
            where + "5" + problem,
            where + "7: expected 2 fields, but got 1",
            where + "9" + problem}));
  }
}

TEST_F(CsvSourceTest, AnOpenQuoteHidesOnlyItsLine) {
  std::string text = "x,y\n1,a\n2,\"b\n";
  std::string xs = "x int64: 1";
  std::string ys = "y text: a";
  for (int i = 3; i < 200; ++i) {
    text += std::to_string(i) + (i % 2 == 0 ? ",c\r\n" : ",c\n");
    xs += " " + std::to_string(i);
    ys += " c";
  }
  const std::string where = "'" + path_of("a.csv") + "' line ";
  for (const int64_t block_bytes : {1 << 20, 100, 4, 1}) {
    const CsvOptions options{
        .types = {{"x", ColumnType::kInt64}, {"y", ColumnType::kText}},
        .malformed_lines = MalformedLines::kSkip,
        .block_bytes = block_bytes};
    const auto source = source_of(text, options);
    EXPECT_EQ(show_all(*source), (Texts{xs, ys})) << block_bytes;
    EXPECT_EQ(
        source->report().first_malformed_lines,
        (Texts{where + "3: a quote is not closed"}));
    EXPECT_EQ(source->report().malformed_lines, 1);
    // The rest of the file may be longer than a row.
    CsvOptions limited = options;
    limited.max_row_bytes = 20;
    const auto other = source_of(text, limited);
    EXPECT_EQ(show_all(*other), (Texts{xs, ys})) << block_bytes;
    EXPECT_EQ(
        other->report().first_malformed_lines,
        (Texts{
            where +
            "3: the row is longer than max_row_bytes = 20. A quote may not be "
            "closed"}));
  }
}

TEST_F(CsvSourceTest, BrokenRowsDoNotDependOnBlocks) {
  std::mt19937 random(1);
  const auto pick = [&](std::string_view from) {
    return from[random() % from.size()];
  };
  for (int round = 0; round < 200; ++round) {
    std::string text = "x,y\nhead,row\n";
    for (int i = 0; i < 60; ++i) {
      text += pick("ab,,\"\"\n\n\r");
    }
    Texts expected;
    Texts expected_malformed;
    for (const int64_t block_bytes : {1 << 20, 50, 7, 1}) {
      const auto source = source_of(
          text,
          {.types = {{"x", ColumnType::kText}, {"y", ColumnType::kText}},
           .malformed_lines = MalformedLines::kSkip,
           .block_bytes = block_bytes,
           .max_row_bytes = 15});
      const Texts shown = show_all(*source);
      const Texts malformed = source->report().first_malformed_lines;
      if (expected.empty()) {
        expected = shown;
        expected_malformed = malformed;
      }
      EXPECT_EQ(shown, expected) << text;
      EXPECT_EQ(malformed, expected_malformed) << text;
    }
  }
}

TEST_F(CsvSourceTest, RefusesABrokenHeader) {
  for (const MalformedLines malformed_lines :
       {MalformedLines::kError, MalformedLines::kSkip}) {
    EXPECT_VALUE_ERROR(
        source_of("\n\"x,y\n1,a\n2,b\n", {.malformed_lines = malformed_lines}),
        "line 2: a quote is not closed");
    EXPECT_VALUE_ERROR(
        source_of("\"x\"y,z\n1,a\n", {.malformed_lines = malformed_lines}),
        "line 1: text after a closing quote. A quote in this row may not be "
        "closed. Correct the row with the column names, or set "
        "CsvOptions::quote");
  }
}

TEST_F(CsvSourceTest, SkipsAndCountsMalformedRows) {
  const std::string text =
      "x,y\nbad\n1,a\nz,\xff\n2,\xff\n1,2,3\n3,c\nw,d\n4,\"e";
  const CsvOptions options{
      .types = {{"x", ColumnType::kInt64}, {"y", ColumnType::kText}},
      .malformed_lines = MalformedLines::kSkip};
  for (const int64_t block_bytes : {1 << 20, 4}) {
    CsvOptions changed = options;
    changed.block_bytes = block_bytes;
    const auto source = source_of(text, changed);
    EXPECT_EQ(show_all(*source), (Texts{"x int64: 1 3", "y text: a c"}));
    const ReadReport report = source->report();
    EXPECT_EQ(report.examples, 2);
    EXPECT_EQ(report.malformed_lines, 6);
    const std::string where = "'" + path_ + "' line ";
    EXPECT_EQ(
        report.first_malformed_lines,
        (Texts{
            where + "2: expected 2 fields, but got 1",
            where +
                "4: column 'x' must be an integer above -2^63 and below 2^63, "
                "but got 'z'",
            where + "5: column 'y' must be UTF-8, but got '\\xff'",
            where + "6: expected 2 fields, but got 3",
            where +
                "8: column 'x' must be an integer above -2^63 and below 2^63, "
                "but got 'w'",
            where + "9: a quote is not closed"}));
    changed.max_malformed_lines = 4;
    const auto limited = source_of(text, changed);
    const auto reader = limited->open();
    EXPECT_VALUE_ERROR(
        count_rest(*reader),
        "expected at most 4 malformed lines, but got one more: '" + path_ +
            "' line 8");
    EXPECT_EQ(limited->report().examples, 2);
    changed.max_malformed_lines = 6;
    EXPECT_EQ(count_rest(*source_of(text, changed)->open()), 2);
  }
}

TEST_F(CsvSourceTest, NamesMissingColumns) {
  const std::string text = "user_id,item\n1,a\n";
  EXPECT_VALUE_ERROR(
      source_of(text, {.columns = {"user"}}),
      "has no column 'user'. Similar columns are: user_id. Correct the name, or "
      "set CsvOptions::delimiter if the columns are not split.");
  EXPECT_VALUE_ERROR(
      source_of(text, {.columns = {"itme"}}), "Similar columns are: item.");
  EXPECT_VALUE_ERROR(
      source_of(text, {.types = {{"items", ColumnType::kText}}}),
      "`types` has the column 'items', which is not read. The similar columns "
      "are: item.");
  EXPECT_VALUE_ERROR(
      source_of(text, {.list_delimiters = {{"x", '|'}}}),
      "`list_delimiters` has the column 'x'");
  EXPECT_VALUE_ERROR(source_of("a,a\n1,2\n"), "has several columns 'a'");
  const std::string first = folder_.write("a.csv", text);
  const std::string second = folder_.write("b.csv", "item\nb\n");
  EXPECT_VALUE_ERROR(
      make_csv_source({.files = {first, second}}),
      "b.csv' has no column 'user_id'. Its columns are: item.");
}

TEST_F(CsvSourceTest, AMillionColumnsCanBeChosenFrom) {
  std::string header = "c0";
  std::string row = "0";
  for (int i = 1; i < 1'000'000; ++i) {
    header += ",c" + std::to_string(i);
    row += "," + std::to_string(i % 10);
  }
  const std::string text = header + "\n" + row + "\n" + row + "\n";
  EXPECT_VALUE_ERROR(source_of(text), "would give 1000000 columns");
  EXPECT_EQ(
      show_all(*source_of(text, {.columns = {"c999999", "c12"}})),
      (Texts{"c999999 int64: 9 9", "c12 int64: 2 2"}));
  EXPECT_VALUE_ERROR(
      source_of(text, {.columns = {"no such column"}}),
      "has no column 'no such column'. Its columns are: c0, c1");
}

TEST_F(CsvSourceTest, RefusesFilesThatAreNoText) {
  const std::string path = folder_ / "a.csv";
  EXPECT_VALUE_ERROR(
      make_csv_source({.files = {path}}), "No such file or directory");
  EXPECT_VALUE_ERROR(source_of(""), "it is empty");
  EXPECT_VALUE_ERROR(source_of("\n\n"), "has no row with column names");
  EXPECT_VALUE_ERROR(
      source_of("PAR1xxxx"), "it is a Parquet file. Use make_parquet_source()");
  EXPECT_VALUE_ERROR(source_of("\xff\xfe"), "it is UTF-16 text");
  EXPECT_VALUE_ERROR(
      source_of("a\xff,b\n1,2\n"), "line 1: a column name in the header");
  EXPECT_VALUE_ERROR(source_of(make_gzip("")), "has no row");
}

TEST_F(CsvSourceTest, FilesWithoutRowsHaveNoExamples) {
  EXPECT_EQ(source_of("x,y\n")->open()->next(), std::nullopt);
  const std::string first = folder_.write("a.csv", "x\n");
  const std::string second = folder_.write("b.csv", "x\n1");
  EXPECT_EQ(
      show_all(*make_csv_source({.files = {first, second, first}})),
      Texts{"x int64: 1"});
}

TEST_F(CsvSourceTest, RefusesFilesThatGrow) {
  const auto source = source_of("x\n1\n2\n");
  std::ofstream(path_, std::ios::app) << "3\n";
  EXPECT_VALUE_ERROR(
      source->open()->next(),
      "has changed since the source was made: it had 6 bytes, and now it has "
      "8. Make a new source when the file is complete.");
  // While it is read.
  std::string text = "x\n";
  for (int i = 0; i < 10'000; ++i) {
    text += "12345\n";
  }
  const auto growing = source_of(text, {.threads = 1, .block_bytes = 64});
  const auto reader = growing->open();
  ASSERT_TRUE(reader->next().has_value());
  std::ofstream(path_, std::ios::app) << "6\n";
  EXPECT_VALUE_ERROR(count_rest(*reader), "has changed since the source");
}

TEST_F(CsvSourceTest, RefusesRowsThatAreTooLong) {
  const std::string text =
      "x,y\n1,a\n2,\"" + std::string(1000, 'b') + "\n3,c\n";
  EXPECT_VALUE_ERROR(
      show_all(*source_of(text, {.block_bytes = 64, .max_row_bytes = 100})),
      "a.csv' line 3: the row is longer than max_row_bytes = 100. A quote may "
      "not be closed.");
}

TEST_F(CsvSourceTest, RowsThatAreTooLongDoNotDependOnBlocks) {
  const std::string ten(10, 'b');
  const std::string text = "x\na\n" + ten + "\n" + ten + "b\nc\n\"" + ten +
      "\"\n\"bbbb\nbb\"\n\"bbbb\nbbbbb\"\nd\n" + ten + ten;
  for (const int64_t block_bytes : {1 << 20, 100, 7, 1}) {
    CsvOptions options{
        .types = {{"x", ColumnType::kText}},
        .block_bytes = block_bytes,
        .max_row_bytes = 10};
    EXPECT_VALUE_ERROR(
        show_all(*source_of(text, options)),
        "line 4: the row is longer than max_row_bytes = 10");
    options.malformed_lines = MalformedLines::kSkip;
    const auto source = source_of(text, options);
    EXPECT_EQ(
        show_all(*source),
        (Texts{"x text: a " + ten + " c bbbb\nbb bbbbb\" d"}))
        << block_bytes;
    EXPECT_EQ(source->report().malformed_lines, 4) << block_bytes;
  }
}

TEST_F(CsvSourceTest, RefusesOptionsOutOfRange) {
  EXPECT_VALUE_ERROR(make_csv_source({}), "files is empty");
  EXPECT_VALUE_ERROR(
      source_of("x\n1\n", {.delimiter = '"'}), "different characters");
  EXPECT_VALUE_ERROR(source_of("x\n1\n", {.delimiter = '\n'}), "no newlines");
  EXPECT_VALUE_ERROR(source_of("x\n1\n", {.threads = -1}), "threads must be");
  EXPECT_VALUE_ERROR(
      source_of("x\n1\n", {.block_bytes = 0}), "block_bytes must be in");
  EXPECT_VALUE_ERROR(
      source_of("x\n1\n", {.max_malformed_lines = 3}),
      "Set malformed_lines to MalformedLines::kSkip");
  EXPECT_VALUE_ERROR(
      source_of("x\n1\n", {.list_delimiters = {{"x", '\n'}}}),
      "the list delimiter of the column 'x'");
}

TEST_F(CsvSourceTest, ReadersMayEndEarly) {
  std::string text = "x\n";
  for (int i = 0; i < 10'000; ++i) {
    text += "12345\n";
  }
  auto source = source_of(text, {.threads = 3, .block_bytes = 64});
  source->open()->next();
  const auto reader = source->open();
  source = nullptr;
  EXPECT_EQ(count_rest(*reader), 10'000);
}

}  // namespace csv_source_test
}  // namespace tessera::data
