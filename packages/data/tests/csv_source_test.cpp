// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/csv_source.h>

#include <tessera/data/column_types_file.h>
#include <tessera/data/criteo_source.h>
#include <tessera/data/dataset.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/data/file_source.h>
#include <tessera/data/parquet_source.h>

#include "packages/data/src/arrow/csv_blocks.h"
#include "packages/data/src/value_hash.h"
#include "packages/data/tests/arrow_files.h"
#include "packages/data/tests/criteo_files.h"
#include "packages/data/tests/source_examples.h"
#include "tests/test_util.h"

#include <sys/stat.h>

namespace tessera::data::csv_source_test {

const std::map<std::string, ColumnType> kIntegerAndText{
    {"x", ColumnType::kInt64},
    {"y", ColumnType::kText}};

std::string make_zstd(const std::string& text) {
  const auto codec =
      value_of(arrow::util::Codec::Create(arrow::Compression::ZSTD));
  const auto size = static_cast<int64_t>(text.size());
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  std::string result(
      static_cast<size_t>(codec->MaxCompressedLen(size, bytes)), '\0');
  result.resize(static_cast<size_t>(value_of(codec->Compress(
      size,
      bytes,
      static_cast<int64_t>(result.size()),
      reinterpret_cast<uint8_t*>(result.data())))));
  return result;
}

// A frame of zstd with a checksum, which Arrow does not write. It has one block of text
// that is not compressed.
std::string make_checked_zstd(const std::string& text) {
  TORCH_CHECK(text.size() < 1 << 17);
  std::string frame("\x28\xb5\x2f\xfd\x04\x58", 6);
  const size_t block = (text.size() << 3) | 1;
  for (int i = 0; i < 3; ++i) {
    frame += static_cast<char>(block >> (8 * i));
  }
  frame += text;
  const uint64_t sum = XXH64(text.data(), text.size(), 0);
  for (int i = 0; i < 4; ++i) {
    frame += static_cast<char>(sum >> (8 * i));
  }
  return frame;
}

class CsvSourceTest : public testing::Test {
 protected:
  std::unique_ptr<ExampleSource> source_of(
      const std::string& text,
      CsvOptions options = {}) {
    path_ = folder_.write("a.csv", text);
    options.files = {path_};
    return make_csv_source(options);
  }
  Texts show(const std::string& text, const CsvOptions& options = {}) {
    return show_all(*source_of(text, options));
  }
  void expect_shown(
      const std::string& text,
      const CsvOptions& options,
      const Texts& expected) {
    EXPECT_EQ(show(text, options), expected);
  }
  int64_t count(const std::string& text, const CsvOptions& options = {}) {
    return count_rest(*source_of(text, options)->open());
  }

  std::string path_of(const std::string& name) const {
    return folder_ / name;
  }

  TemporaryFolder folder_;
  std::string path_;
};

TEST_F(CsvSourceTest, UnsignedIntegersAreReadByTheirBits) {
  const CsvOptions bits{.types = {{"a", ColumnType::kUInt64Bits}}};
  expect_shown("a\n1\n18446744073709551615\nNA\n", bits, {"a int64: 1 -1 _"});
  for (const char* value :
       {"-1", "18446744073709551616", "9223372036854775808"}) {
    EXPECT_VALUE_ERROR(
        show(std::string("a\n") + value + "\n", bits),
        "column 'a' must be an integer from 0 to 2^64 - 1, but not 2^63");
  }
}

TEST_F(CsvSourceTest, InfersTypes) {
  const auto source = source_of(
      "i,f,t,empty,flag,id,mixed\n"
      "1,1.5,abc,,true,18446744073709551615,1\n"
      "-7,2,NA,,false,1,x\n"
      "NA,nan,,,true,2,2\n"
      "5,-0.001,\"a,\"\"b\"\"\nc\",,,3,\n");
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

TEST_F(CsvSourceTest, InferredTypesKeepDifferentTextsApart) {
  const struct {
    Texts values;
    std::string shown;
  } cases[] = {
      {{"007", "7"}, "text: 007 7"},
      {{"\"007\"", "7"}, "text: 007 7"},
      {{"01234", "99999"}, "text: 01234 99999"},
      {{"+5", "5"}, "text: +5 5"},
      {{" 5", "5"}, "text:  5 5"},
      {{"-0", "0"}, "text: -0 0"},
      {{"-0.0", "0.0"}, "text: -0.0 0.0"},
      {{"true", "1"}, "text: true 1"},
      {{"true", "True"}, "text: true True"},
      {{"False", "True"}, "int64: 0 1"},
      {{"1", "1.0"}, "text: 1 1.0"},
      {{"1.1", "1.10"}, "text: 1.1 1.10"},
      {{".5", "0.5"}, "text: .5 0.5"},
      {{"1e5", "100000.5"}, "text: 1e5 100000.5"},
      {{"inf", "infinity"}, "text: inf infinity"},
      {{"NaN", "nan", "1"}, "int64: _ _ 1"},
      {{"NAN", "1"}, "text: NAN 1"},
      {{"16777217.0", "16777216.0"}, "text: 16777217.0 16777216.0"},
      {{"9007199254740993", "1.5"}, "text: 9007199254740993 1.5"},
      {{"18446744073709551616", "1"}, "text: 18446744073709551616 1"},
      {{"-9223372036854775808", "1"}, "text: -9223372036854775808 1"},
      {{"0.8444218515250481", "0.5"}, "text: 0.8444218515250481 0.5"},
      {{"1e39", "1.5"}, "text: 1e39 1.5"},
      {{"1e-50", "1.5"}, "text: 1e-50 1.5"},
      {{"2.50", "10.00"}, "float32: 2.5 10"},
      {{"2.0", "0.5", "1e-05"}, "float32: 2 0.5 1e-05"},
      {{"2", "0.5"}, "float32: 2 0.5"},
      {{"2.5e-01", "1.0e+03"}, "float32: 0.25 1000"},
      {{"1", "NA", "0.25"}, "float32: 1 _ 0.25"},
  };
  for (const auto& [values, shown] : cases) {
    std::string text = "x,y\n";
    for (const std::string& value : values) {
      text += value + ",\n";
    }
    expect_shown(text, {.columns = {"x"}}, {"x " + shown});
  }
  // A type that is set converts all spellings.
  expect_shown(
      "x,y\n007,1.10\n +7 ,16777217.0\ntrue,0.8444218515250481\n",
      {.types = {{"x", ColumnType::kInt64}, {"y", ColumnType::kFloat32}}},
      {"x int64: 7 7 1", "y float32: 1.1 1.67772e+07 0.844422"});
}

// More rows than inference looks at, each with this value.
std::string rows_beyond_the_sample(const std::string& value) {
  const std::string row = value + "," + std::string(1000, 'a') + "\n";
  std::string text;
  for (int i = 0; i < 1100; ++i) {
    text += row;
  }
  return text;
}

TEST_F(CsvSourceTest, ReadsOnUntilEachColumnHasAValue) {
  const std::string missing = "x,y\n" + rows_beyond_the_sample("NA");
  using Types = std::map<std::string, ColumnType>;
  EXPECT_EQ(
      source_of(missing + "3,b\n")->types(),
      (Types{{"x", ColumnType::kInt64}, {"y", ColumnType::kText}}));
  EXPECT_EQ(
      source_of(missing + "3.5,b\n")->types().at("x"), ColumnType::kFloat32);
  EXPECT_EQ(source_of(missing + "03,b\n")->types().at("x"), ColumnType::kText);
  EXPECT_EQ(source_of(missing)->types().at("x"), ColumnType::kText);
  // In another file, and with rows that can't be read.
  const std::string first = folder_.write("a.csv", missing);
  const std::string second = folder_.write("b.csv", "x,y\n3,b\n");
  EXPECT_EQ(
      make_csv_source({.files = {first, second}})->types().at("x"),
      ColumnType::kInt64);
  EXPECT_VALUE_ERROR(
      count(missing + "\"3,b\n4,c\n"), "line 1102: a quote is not closed");
}

TEST_F(CsvSourceTest, TypesDoNotDependOnBlocks) {
  for (const int64_t block_bytes : {1 << 20, 100, 1}) {
    expect_shown(
        "x,y\n1,2\n2.5,3\n007,x\n",
        {.block_bytes = block_bytes},
        {"x text: 1 2.5 007", "y text: 2 3 x"});
  }
}

TEST_F(CsvSourceTest, AnotherSpellingInALaterRowIsAnError) {
  const struct {
    std::string first;
    std::string later;
    std::string problem;
  } cases[] = {
      {"7", "007", "an integer such as 7 or -12"},
      {"7", "1.5", "an integer such as 7 or -12"},
      {"7", "true", "an integer such as 7 or -12"},
      {"true", "1", "true or false"},
      {"2.5", "2.50", "a number such as 2.0, 0.5 or 1e-05 without more digits"},
      {"2", "2.0", "an integer"},
      {"2.50", "2.5", "a number with 2 digits after the point that float32"},
      {"2.50", "1677721.70", "a number with 2 digits after the point that"},
  };
  for (const auto& [first, later, problem] : cases) {
    const std::string text =
        "x,y\n" + rows_beyond_the_sample(first) + later + ",b\n";
    for (const auto malformed_lines :
         {MalformedLines::kError, MalformedLines::kSkip}) {
      EXPECT_VALUE_ERROR(
          count_rest(
              *source_of(text, {.malformed_lines = malformed_lines})->open()),
          "a.csv' line 1102: column 'x' must be " + problem);
    }
    EXPECT_VALUE_ERROR(
        count(text),
        ", as inferred from other rows, but got '" + later +
            "'. Correct the line, or set the column's type in `types`");
  }
  const auto source = source_of(
      "x,y\n" + rows_beyond_the_sample("7") + "seven,b\n8,c\n",
      {.malformed_lines = MalformedLines::kSkip});
  EXPECT_EQ(count_rest(*source->open()), 1101);
  EXPECT_EQ(source->report().malformed_lines, 1);
}

TEST_F(CsvSourceTest, PrintsInferredTypesOnce) {
  const std::string text = "zip,item,none,price\n01234,7,,2.5\n";
  testing::internal::CaptureStderr();
  source_of(text);
  make_csv_source({.files = {path_}});
  EXPECT_EQ(
      testing::internal::GetCapturedStderr(),
      "[make_csv_source] '" + path_ +
          "' Inferred types: zip text, item int64, none text, price float32. "
          "'zip' is text because '01234' as a number could equal another text. "
          "'none' has no values. Set CsvOptions::types to choose others, or to "
          "types() of the source to keep them.\n");
  testing::internal::CaptureStderr();
  const auto types = make_csv_source({.files = {path_}})->types();
  make_csv_source({.files = {path_}, .types = types});
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(CsvSourceTest, TypesAreKeptInAFile) {
  const std::map<std::string, ColumnType> types{
      {"a", ColumnType::kInt64},
      {"b \"c\"", ColumnType::kFloat32},
      {"d", ColumnType::kText},
      {"e", ColumnType::kUInt64Bits}};
  const std::string path = folder_ / "types.json";
  save_column_types(types, path);
  EXPECT_EQ(load_column_types(path), types);
  folder_.write("types.json", R"({"a": "int32"})");
  EXPECT_VALUE_ERROR(
      load_column_types(path),
      "types.json: column 'a': [ColumnType] the type of a column must be one "
      "of int64, float32, text, uint64_bits, but got 'int32'");
  folder_.write("types.json", R"({"a": 1})");
  EXPECT_VALUE_ERROR(
      load_column_types(path), "the type of the column 'a' must be text");
  folder_.write("types.json", "[]");
  EXPECT_VALUE_ERROR(load_column_types(path), "expected an object");
  EXPECT_VALUE_ERROR(
      save_column_types({{"\xff", ColumnType::kText}}, path), "must be UTF-8");
}

TEST_F(CsvSourceTest, NumbersMayStandForMissingOnes) {
  const CsvOptions options{.missing_values = {"", "-999", "0.0"}};
  const std::string text = "x,y\n1,0.5\n-999,0.0\n,2.5\n";
  const Texts expected{"x int64: 1 _ _", "y float32: 0.5 _ 2.5"};
  EXPECT_EQ(show(text, options), expected);
  CsvOptions typed = options;
  typed.types = {{"x", ColumnType::kInt64}, {"y", ColumnType::kFloat32}};
  EXPECT_EQ(show(text, typed), expected);
  expect_shown(
      "x\n1\n0\n",
      {.types = {{"x", ColumnType::kUInt64Bits}}, .missing_values = {"0"}},
      {"x int64: 1 _"});
}

// Compares columns with the texts that they were made from. Two different texts must not
// have the same value, and a text has its own value.
class ExactReference {
 public:
  explicit ExactReference(const std::vector<Texts>& columns)
      : columns_(columns),
        rows_(columns.size()),
        integers_(columns.size()),
        floats_(columns.size()) {}

  void add(const Columns& examples) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      const Column& column = examples.entries()[i].second;
      if (const auto* texts = std::get_if<Texts>(&column.values)) {
        for (const std::string& text : *texts) {
          EXPECT_EQ(text, next(i));
        }
        continue;
      }
      const at::Tensor values = std::get<at::Tensor>(column.values);
      for (int64_t k = 0; k < values.numel(); ++k) {
        if (values.scalar_type() == at::kLong) {
          const auto value = values.const_data_ptr<int64_t>()[k];
          add(i, value, value == kMissing, integers_[i]);
        } else {
          const auto value = values.const_data_ptr<float>()[k];
          add(i, value, std::isnan(value), floats_[i]);
        }
      }
    }
  }

  size_t rows(size_t column) const {
    return rows_[column];
  }

 private:
  const std::string& next(size_t column) {
    return columns_[column].at(rows_[column]++);
  }

  template <class Value>
  void add(
      size_t column,
      Value value,
      bool is_missing,
      std::map<Value, std::string>& seen) {
    const std::string& text = next(column);
    EXPECT_EQ(
        is_missing,
        std::find(missing_.begin(), missing_.end(), text) != missing_.end())
        << text;
    if (is_missing) {
      return;
    }
    EXPECT_EQ(seen.emplace(value, text).first->second, text);
    if constexpr (std::is_same_v<Value, float>) {
      EXPECT_EQ(value, std::strtof(text.c_str(), nullptr)) << text;
    } else if (std::string("tTfF").find(text.front()) == std::string::npos) {
      EXPECT_EQ(value, std::strtoll(text.c_str(), nullptr, 10)) << text;
    }
  }

  std::vector<Texts> columns_;
  std::vector<size_t> rows_;
  std::vector<std::map<int64_t, std::string>> integers_;
  std::vector<std::map<float, std::string>> floats_;
  const Texts missing_ = CsvOptions{}.missing_values;
};

// A random text that looks like a number, or not quite. A kind has similar texts.
constexpr size_t kKinds = 17;
constexpr size_t kMissingKind = 15;
std::string random_value(std::mt19937& random, size_t kind) {
  const auto below = [&](uint32_t count) -> int64_t {
    return static_cast<int64_t>(random() % count);
  };
  const std::string small = std::to_string(below(30) - 10);
  const double number = static_cast<double>(below(100'000) - 30'000) / 1000;
  const int64_t large = (int64_t{1} << 24) + below(4);
  const Texts kinds[kKinds] = {
      {small},
      {"0" + small, "00" + small, "+" + small, " " + small, "-" + small},
      {"true", "false"},
      {"true", "false", "True", "FALSE", "1", "0"},
      {small + ".0"},
      {small + ".5", small + ".25", small + ".50", small + "."},
      {fmt::format("{:.2f}", number)},
      {fmt::format("{:.6g}", number)},
      {fmt::format("{:.17g}", number / 7)},
      {std::to_string(large) + ".0"},
      {std::to_string((int64_t{1} << 53) + below(4))},
      {"9223372036854775" + std::to_string(800 + below(12))},
      {fmt::format("{:.3e}", number)},
      {"1e-05", "1e5", "1E5", "1e16", "1e+16", "2e-46", "1e39"},
      {"inf", "-inf", "Infinity", "NAN", "-nan"},
      {"", "NA", "nan", "NaN", "null"},
      {"a", "NA", "7a", "0x10", "1 2", "--1", "1.2.3"}};
  return kinds[kind][random() % kinds[kind].size()];
}

// The texts of a random column with a few kinds of values.
Texts random_column(std::mt19937& random, size_t rows) {
  std::vector<size_t> kinds(1 + random() % 3);
  for (size_t& kind : kinds) {
    kind = random() % kKinds;
  }
  Texts column;
  for (size_t i = 0; i < rows; ++i) {
    const size_t kind =
        random() % 8 == 0 ? kMissingKind : kinds[random() % kinds.size()];
    column.push_back(random_value(random, kind));
  }
  return column;
}

TEST_F(CsvSourceTest, RandomColumnsKeepDifferentTextsApart) {
  constexpr size_t kColumns = 12;
  std::mt19937 random(1);
  std::map<ColumnType, int64_t> types;
  int64_t refused = 0;
  for (int round = 0; round < 60; ++round) {
    // In some rounds, inference does not see the last rows.
    const bool is_long = round % 6 == 0;
    const size_t rows = is_long ? 1300 : 40;
    std::vector<Texts> columns;
    for (size_t i = 0; i < kColumns; ++i) {
      columns.push_back(random_column(random, rows));
      if (round % 12 == 0 && i > 3) {
        const Texts other = random_column(random, 20);
        for (size_t k = 0; k < rows; ++k) {
          columns.back()[k] = k < 1250 || random() % 4 > 0
              ? columns.back()[k % 1250]
              : other[k % other.size()];
        }
      }
    }
    columns.emplace_back(rows, std::string(is_long ? 1000 : 1, 'x'));
    std::string text;
    for (size_t row = 0; row < rows; ++row) {
      for (size_t i = 0; i <= kColumns; ++i) {
        text += columns[i][row] + (i < kColumns ? "," : "\n");
      }
    }
    CsvOptions options{.threads = 2};
    for (size_t i = 0; i <= kColumns; ++i) {
      options.names.push_back("c" + std::to_string(i));
    }
    const auto source = source_of(text, options);
    for (const auto& [name, type] : source->types()) {
      ++types[type];
    }
    ExactReference reference(columns);
    const auto reader = source->open();
    try {
      while (const auto examples = reader->next()) {
        reference.add(*examples);
      }
      EXPECT_EQ(reference.rows(0), rows);
    } catch (const c10::ValueError& error) {
      EXPECT_CONTAINS(error.what_without_backtrace(), "in `types`");
      EXPECT_TRUE(is_long) << error.what_without_backtrace();
      ++refused;
    }
  }
  EXPECT_GT(types[ColumnType::kInt64], 20);
  EXPECT_GT(types[ColumnType::kFloat32], 20);
  EXPECT_GT(types[ColumnType::kText], 20);
  EXPECT_GT(refused, 0);
}

TEST_F(CsvSourceTest, ReadsTheRequestedColumnsAsTheRequestedTypes) {
  const std::string text = "a,b,c\n1,2,3\n4,5,6\n";
  expect_shown(
      text,
      {.columns = {"c", "a"},
       .types = {{"c", ColumnType::kText}, {"a", ColumnType::kFloat32}}},
      {"c text: 3 6", "a float32: 1 4"});
}

TEST_F(CsvSourceTest, ListsHaveTheirOwnDelimiters) {
  expect_shown(
      "recent,tags,prices\n1|2|3,a b,0.5;1\n,,\n7,c,\n8||9,\"x y\",2;NA\n",
      {.list_delimiters = {{"recent", '|'}, {"tags", ' '}, {"prices", ';'}}},
      {"recent int64: [1 2 3] [] [7] [8 _ 9]",
       "tags text: [a b] [] [c] [x y]",
       "prices float32: [0.5 1] [] [] [2 _]"});
}

TEST_F(CsvSourceTest, HeaderDelimiterAndQuoteAreOptions) {
  expect_shown(
      "1\t'a\tb'\r\n2\tc\"\r\n",
      {.names = {"x", "y"}, .delimiter = '\t', .quote = '\''},
      {"x int64: 1 2", "y text: a\tb c\""});
  expect_shown(
      "x;y\n1;\"a\n2;b\n",
      {.delimiter = ';', .quote = 0},
      {"x int64: 1 2", "y text: \"a b"});
  // Empty lines, a byte order mark and a last row without a newline.
  expect_shown(
      "\xef\xbb\xbf\n\"x\",y\n\n1,a\n\n\n2,b",
      {},
      {"x int64: 1 2", "y text: a b"});
  // The mark is longer than a block.
  for (const int64_t block_bytes : {1, 2, 3, 4}) {
    EXPECT_EQ(
        show("\xef\xbb\xbf\"x\"\n1\n2\n", {.block_bytes = block_bytes}),
        (Texts{"x int64: 1 2"}))
        << block_bytes;
  }
}

TEST_F(CsvSourceTest, ReadsGzipAndZstd) {
  std::string text = "x,y\n";
  for (int i = 0; i < 5000; ++i) {
    text += std::to_string(i) + ",\"text " + std::to_string(i % 10) + "\"\n";
  }
  const Texts expected = show(text);
  EXPECT_EQ(show(make_gzip(text)), expected);
  EXPECT_EQ(show(make_zstd(text)), expected);
  const std::string rest = "5000,z\n";
  // Frames and members may follow each other.
  EXPECT_EQ(count(make_zstd(text) + make_zstd(rest)), 5001);
  EXPECT_EQ(count(make_gzip(text) + make_gzip(rest)), 5001);
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

// A checksum finds each flipped bit of the data. Other bits, such as those of the time in
// a gzip header, change nothing.
TEST_F(CsvSourceTest, ChecksumsOfCompressedFilesAreVerified) {
  std::string text = "x,y\n";
  for (int i = 0; i < 60; ++i) {
    text += std::to_string(i * 7919 % 10'007) + ",a" + std::to_string(i) + "\n";
  }
  const CsvOptions options{
      .types = {{"x", ColumnType::kText}, {"y", ColumnType::kText}},
      .threads = 1};
  const Texts intact = show(text, options);
  for (const std::string& bytes :
       {make_gzip(text),
        make_checked_zstd(text),
        make_gzip("") + make_gzip(text)}) {
    ASSERT_EQ(show(bytes, options), intact);
    int64_t refused = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      std::string damaged = bytes;
      damaged[i] = static_cast<char>(damaged[i] ^ (1 << i % 8));
      try {
        EXPECT_EQ(show(damaged, options), intact) << i;
      } catch (const c10::ValueError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, static_cast<int64_t>(bytes.size()) - 30);
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
        EXPECT_CONTAINS(shown[0], " 7 8 9 ");
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
          text, {.types = kIntegerAndText, .block_bytes = block_bytes});
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
    EXPECT_VALUE_ERROR(show(text, options), message);
  }
}

TEST_F(CsvSourceTest, QuotesInsideAFieldThatIsNotQuotedAreText) {
  expect_shown(
      "x,y\n1,5\" disk\n2,a\"\"b\n3,\"c \"\"d\"\"\"\n",
      {.types = {{"y", ColumnType::kText}}},
      {"x int64: 1 2 3", "y text: 5\" disk a\"\"b c \"d\""});
}

// Without the check, rows 2 to 4 would be one valid row.
TEST_F(CsvSourceTest, SkipsARowThatTwoOpenQuotesMake) {
  for (const int64_t block_bytes : {1 << 20, 4}) {
    const auto source = source_of(
        "x,y\n1,a\n2,\"b\n3,c\n4,\"d\n5,e\nbad\n6,\"f\"\n7,\"g\"h\n8,i\n",
        {.types = kIntegerAndText,
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
        .types = kIntegerAndText,
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

// Returns the number of rows of a text, whole and broken, by the rule of
// CsvOptions::malformed_lines. It scans each row from the beginning of the row, and never
// continues an earlier scan.
int64_t count_rows_slowly(std::string_view text, size_t max_row_bytes) {
  using enum RowPhase;
  int64_t rows = 0;
  size_t begin = 0;
  while (begin < text.size()) {
    if (is_newline(text[begin])) {
      ++begin;
      continue;
    }
    const std::string_view row = text.substr(begin, max_row_bytes + 1);
    const RowScan scan = scan_row(row, ',', '"');
    const bool is_broken = scan.phase == kTextAfterQuote ||
        scan.phase == kInQuotes ||
        (scan.phase != kComplete && row.size() > max_row_bytes);
    begin = is_broken ? find_newline(text, begin) : begin + scan.end;
    ++rows;
  }
  return rows;
}

TEST_F(CsvSourceTest, BrokenRowsAreThoseOfASlowScan) {
  std::mt19937 random(1);
  const Texts parts{
      "a", ",", "\"", "\"\"", "\n", "\r", "x\",y,\"z\n", "\",\"\n"};
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      text += parts[random() % parts.size()];
    }
    text += "a";
    const auto max_row_bytes = static_cast<int64_t>(1 + random() % 60);
    const int64_t expected =
        count_rows_slowly(text, static_cast<size_t>(max_row_bytes));
    Texts expected_shown;
    Texts expected_malformed;
    for (const int64_t block_bytes : {1 << 20, 30, 5, 1}) {
      const auto source = source_of(
          text,
          {.types = {{"x", ColumnType::kText}},
           .names = {"x"},
           .malformed_lines = MalformedLines::kSkip,
           .threads = 1,
           .block_bytes = block_bytes,
           .max_row_bytes = max_row_bytes});
      const Texts shown = show_all(*source);
      const ReadReport report = source->report();
      SCOPED_TRACE(c10::str(text, "\n", block_bytes, " ", max_row_bytes));
      EXPECT_EQ(report.examples + report.malformed_lines, expected);
      // The rows do not depend on the blocks.
      if (block_bytes == 1 << 20) {
        expected_shown = shown;
        expected_malformed = report.first_malformed_lines;
      }
      EXPECT_EQ(shown, expected_shown);
      EXPECT_EQ(report.first_malformed_lines, expected_malformed);
      EXPECT_EQ(report.bytes, static_cast<int64_t>(text.size()));
    }
  }
}

// Each line opens a quote that ends in the last line, or never. Scanning all of them from
// their begin would take minutes.
TEST_F(CsvSourceTest, OpenQuotesTakeTimeProportionalToTheFile) {
  std::string text = "x,y,z\n1,2,3\n";
  for (int i = 0; i < 300'000; ++i) {
    text += "x\",y,\"z\n";
  }
  for (const char* end : {"", "\"\n", "\"a\n"}) {
    for (const auto malformed_lines :
         {MalformedLines::kError, MalformedLines::kSkip}) {
      const auto begin = std::chrono::steady_clock::now();
      const auto source = source_of(
          text + end,
          {.names = {"x", "y", "z"},
           .malformed_lines = malformed_lines,
           .block_bytes = 1 << 14});
      const auto reader = source->open();
      if (malformed_lines == MalformedLines::kError) {
        EXPECT_VALUE_ERROR(count_rest(*reader), "a.csv' line 3: ");
      } else {
        EXPECT_GE(count_rest(*reader), 2);
      }
      EXPECT_LT(
          std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
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
      .types = kIntegerAndText, .malformed_lines = MalformedLines::kSkip};
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
    EXPECT_EQ(count(text, changed), 2);
  }
}

TEST_F(CsvSourceTest, TinyNumbersAreZero) {
  const CsvOptions floats{.types = {{"x", ColumnType::kFloat32}}};
  const std::string zeros = "0." + std::string(400, '0') + "1";
  const std::string ones = "1" + std::string(400, '0') + "e-800";
  expect_shown(
      "x\n1e-300\n1e-400\n-1E-400\n+1e-99999999999999999999\n" + zeros + "\n" +
          ones + "\n",
      floats,
      {"x float32: 0 0 -0 0 0 0"});
  for (const std::string& huge :
       {std::string("1e39"),
        std::string("1e400"),
        std::string("-1e+99999999999999999999"),
        "1" + std::string(400, '0') + "e-1",
        "0." + std::string(400, '0') + "1e900"}) {
    EXPECT_VALUE_ERROR(count("x\n" + huge + "\n", floats), "'");
  }
}

TEST_F(CsvSourceTest, TypesOfAPipelineMayNameColumnsThatAreMadeLater) {
  const FeaturePipeline pipeline(
      {{"day", {"day"}, transforms::Hash{.num_bins = 100}},
       {"item", {"item"}, transforms::Hash{.num_bins = 100}}},
      {{"day", ColumnType::kInt64}, {"item", ColumnType::kText}});
  const std::string path = folder_.write("clicks.csv", "item,time\n7,90000\n");
  const std::shared_ptr<const ExampleSource> source =
      make_csv_source({.files = {path}, .types = pipeline.types()});
  const Dataset clicks = Dataset(source).map([](Columns columns) {
    columns.add("day", {.values = columns.tensor("time").floor_divide(86400)});
    return columns;
  });
  const PipelineBatch batch = pipeline.apply(clicks.head());
  EXPECT_EQ(batch.features.paths(), (Texts{"day", "item"}));
  EXPECT_EQ(
      show_all(*make_file_source({.files = {path}, .types = pipeline.types()})),
      (Texts{"item text: 7", "time int64: 90000"}));
  const std::string parquet = path_of("clicks.parquet");
  test::write_parquet(
      parquet, table_of({{"item", array_of(arrow::int64(), "[7]")}}));
  EXPECT_EQ(
      show_all(*make_parquet_source(
          {.files = {parquet}, .types = pipeline.types()})),
      Texts{"item text: 7"});
}

// A pipe without a writer would block whoever opens it.
TEST_F(CsvSourceTest, PipesAreRefused) {
  const std::string pipe = path_of("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const std::string problem = "] '" + pipe + "' is not a regular file";
  EXPECT_VALUE_ERROR(
      make_file_source({.files = {pipe}}), "[make_file_source" + problem);
  EXPECT_VALUE_ERROR(
      make_criteo_source({.files = {pipe}}), "[make_criteo_source" + problem);
  EXPECT_VALUE_ERROR(
      make_csv_source({.files = {pipe}}), "[make_csv_source" + problem);
}

TEST_F(CsvSourceTest, NamesMissingColumns) {
  const std::string text = "user_id,item\n1,a\n";
  expect_refusals<CsvOptions>(
      {{{.columns = {"user"}},
        "has no column 'user'. Similar columns are: user_id. Correct the name, "
        "or set CsvOptions::delimiter if the columns are not split."},
       {{.columns = {"itme"}}, "Similar columns are: item."},
       {{.types = {{"items", ColumnType::kText}}},
        "`types` has the column 'items', which is not read. The similar "
        "columns are: item."},
       {{.list_delimiters = {{"x", '|'}}},
        "`list_delimiters` has the column 'x'"}},
      [&](const CsvOptions& options) { source_of(text, options); });
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
  expect_shown(
      text,
      {.columns = {"c999999", "c12"}},
      {"c999999 int64: 9 9", "c12 int64: 2 2"});
  EXPECT_VALUE_ERROR(
      source_of(text, {.columns = {"no such column"}}),
      "has no column 'no such column'. Its columns are: c0, c1");
}

TEST_F(CsvSourceTest, RefusesFilesThatAreNoText) {
  EXPECT_VALUE_ERROR(
      make_csv_source({.files = {folder_ / "a.csv"}}),
      "No such file or directory");
  const std::string unpacked = "what it unpacks to is ";
  const std::string twice = unpacked + "compressed with gzip. Unpack it first.";
  std::vector<Refusal<std::string>> cases{
      {"", "it is empty"},
      {"\n\n", "has no row with column names"},
      {"PAR1xxxx", "it is a Parquet file. Use make_parquet_source()"},
      {"\xff\xfe", "it is UTF-16 text"},
      {"a\xff,b\n1,2\n", "line 1: a column name in the header"},
      {"\n\na\xff,b", "line 3: a column name in the"},
      {make_gzip(make_gzip("x\n1\n")), twice},
      {make_zstd(make_gzip("x\n1\n")), twice},
      {make_gzip(make_zstd("x\n1\n")), unpacked + "compressed with zstd"},
      {std::string("\xff\xff\xff\xff\x78\0\0\0", 8),
       "a.csv' must be a text file, but it is an Arrow stream. Write it as a "
       "Parquet file"},
      {make_gzip(""), "has no row"}};
  for (const std::string_view magic : kTarMagics) {
    const std::string tar = make_tar(magic);
    const std::string begin = "a.csv' must be a text file, but ";
    const std::string end = "a tar file. Unpack it first.";
    cases.push_back({tar, begin + "it is " + end});
    cases.push_back({make_gzip(tar), begin + unpacked + end});
    cases.push_back({make_zstd(tar), begin + unpacked + end});
  }
  expect_refusals(cases, [&](const std::string& text) { source_of(text); });
}

// A tar file has a zero byte behind this word.
TEST_F(CsvSourceTest, ReadsTextWithTheMagicOfTar) {
  for (const char* rest : {"ustard", "ustar d", "ustar  d", "ustar\n"}) {
    const std::string text = "x\n" + std::string(255, 'm') + rest;
    expect_shown(
        text, {}, {"x text: " + text.substr(2, text.find('\n', 2) - 2)});
  }
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
        show(text, options),
        "a.csv' line 4: the row is longer than max_row_bytes = 10. A quote may not "
        "be closed.");
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
  expect_refusals<CsvOptions>(
      {{{.delimiter = '"'}, "different characters"},
       {{.delimiter = '\n'}, "no newlines"},
       {{.threads = -1}, "threads must be"},
       {{.block_bytes = 0}, "block_bytes must be in"},
       {{.max_malformed_lines = 3}, "malformed_lines to MalformedLines::kSkip"},
       {{.list_delimiters = {{"x", '\n'}}},
        "list delimiter of the column 'x'"}},
      [&](const CsvOptions& options) { source_of("x\n1\n", options); });
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

}  // namespace tessera::data::csv_source_test
