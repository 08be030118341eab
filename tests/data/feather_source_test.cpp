// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feather_source.h>

#include <tessera/data/file_source.h>
#include <tessera/data/parquet_source.h>

#include "tests/data/arrow_files.h"
#include "tests/data/criteo_files.h"
#include "tests/data/source_examples.h"
#include "tests/temporary_folder.h"
#include "tests/test_util.h"

#include <string>
#include <vector>

namespace tessera::data {
namespace feather_source_test {

using test::array_of;
using test::count_rest;
using test::numbered_table;
using test::show_all;
using test::table_of;
using test::TemporaryFolder;
using test::write_feather;

using Texts = std::vector<std::string>;

TEST(FeatherSourceTest, ReadsTypesListsAndDictionaries) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.feather";
  const auto dictionary = test::value_of(arrow::json::DictArrayFromJSONString(
      arrow::dictionary(arrow::int32(), arrow::utf8()),
      "[1, 0, null]",
      R"(["x", "y"])"));
  write_feather(
      path,
      table_of(
          {{"a", array_of(arrow::int16(), "[1, null, 3]")},
           {"kind", dictionary},
           {"unused", array_of(arrow::utf8(), R"(["p", "q", "r"])")},
           {"half", array_of(arrow::float16(), "[0.5, 1.5, null]")},
           {"nothing", array_of(arrow::null(), "[null, null, null]")},
           {"tags",
            array_of(arrow::list(arrow::utf8()), R"([["p"], null, []])")}}));
  const auto source = make_feather_source(
      {.files = {path},
       .columns = {"tags", "kind", "half", "a", "nothing"},
       .types = {{"nothing", ColumnType::kFloat32}}});
  const Texts expected{
      "tags text: [p] [] []",
      "kind text: y x _",
      "half float32: 0.5 1.5 _",
      "a int64: 1 _ 3",
      "nothing float32: _ _ _"};
  EXPECT_EQ(show_all(*source), expected);
  EXPECT_EQ(source->size(), 3);
}

TEST(FeatherSourceTest, ThreadsAndBatchesDoNotChangeTheExamples) {
  const TemporaryFolder folder;
  Texts expected;
  for (const auto compression :
       {arrow::Compression::UNCOMPRESSED,
        arrow::Compression::LZ4_FRAME,
        arrow::Compression::ZSTD}) {
    for (const int64_t batch_rows : {1000, 7}) {
      const std::string first = folder / "a.feather";
      const std::string second = folder / "b.feather";
      write_feather(first, numbered_table(100), batch_rows, compression);
      write_feather(second, numbered_table(9), 4, compression);
      for (const int64_t threads : {1, 4}) {
        const auto source = make_feather_source(
            {.files = {first, second},
             .threads = threads,
             .queue_examples = 1});
        const Texts shown = show_all(*source);
        if (expected.empty()) {
          expected = shown;
          EXPECT_NE(shown[0].find(" 98 99 0 1"), std::string::npos);
        }
        EXPECT_EQ(shown, expected);
      }
    }
  }
}

TEST(FeatherSourceTest, OpensAtAnyExample) {
  const TemporaryFolder folder;
  const std::string first = folder / "a.feather";
  const std::string second = folder / "b.feather";
  write_feather(first, numbered_table(20), 6);
  write_feather(second, numbered_table(9), 4);
  const auto source = make_feather_source(
      {.files = {first, second}, .columns = {"id"}, .threads = 2});
  EXPECT_EQ(source->size(), 29);
  for (int64_t start = 0; start < 29; ++start) {
    std::string expected = "id int64:";
    for (int64_t i = start; i < 29; ++i) {
      expected += " " + std::to_string(i < 20 ? i : i - 20);
    }
    EXPECT_EQ(show_all(*source, start), Texts{expected});
  }
  EXPECT_EQ(source->open(29)->next(), std::nullopt);
  EXPECT_VALUE_ERROR(source->open(-1), "first must be >= 0");
}

TEST(FeatherSourceTest, LargeBatchesAreConvertedInParts) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.feather";
  write_feather(path, numbered_table(150'000), 150'000);
  const auto source = make_feather_source({.files = {path}});
  EXPECT_LE(source->open()->next()->batch_size(), 65'536);
  EXPECT_EQ(count_rest(*source->open()), 150'000);
  EXPECT_EQ(count_rest(*source->open(100'000)), 50'000);
}

// The advice must not lead from one function to another that refuses the file, too.
TEST(FeatherSourceTest, NamesOtherFormats) {
  const TemporaryFolder folder;
  const struct {
    std::string bytes;
    std::string problem;
  } cases[] = {
      {std::string("\xff\xff\xff\xff\x78\0\0\0", 8),
       "it is an Arrow stream. Write it as an Arrow IPC file, and use "
       "make_file_source()."},
      {"FEA1----FEA1",
       "it is a Feather file of version 1. Write it as version 2, and use "
       "make_file_source()."},
      {"PK\x03\x04----", "it is a zip file. Unpack it first."},
      {"BZh9----", "it is compressed with bzip2. Unpack it, "}};
  for (const auto& [bytes, problem] : cases) {
    const std::string path = folder.write("a.feather", bytes);
    const std::string here = "'" + path + "' must be ";
    EXPECT_VALUE_ERROR(
        make_feather_source({.files = {path}}),
        "[make_feather_source] " + here + "a Feather version 2 file, but " +
            problem);
    EXPECT_VALUE_ERROR(
        make_parquet_source({.files = {path}}),
        "[make_parquet_source] " + here + "a Parquet file, but " + problem);
    EXPECT_VALUE_ERROR(
        make_file_source({.files = {path}}),
        "[make_file_source] " + here +
            "a CSV, Parquet or Arrow IPC file, but " + problem);
  }
  const std::string path = folder.write("a.feather", test::make_gzip("ARROW1"));
  EXPECT_VALUE_ERROR(
      make_file_source({.files = {path}}),
      "it is compressed with gzip. Unpack it first.");
}

TEST(FeatherSourceTest, RefusesDamagedFiles) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.feather";
  folder.write("a.feather", "a,b\n1,2\n");
  EXPECT_VALUE_ERROR(
      make_feather_source({.files = {path}}),
      "[make_feather_source] '" + path +
          "' must be a Feather version 2 file, but it does not begin with "
          "'ARROW1'. Use make_csv_source() for text");
  write_feather(
      path, numbered_table(5000), 1000, arrow::Compression::UNCOMPRESSED);
  const std::string bytes = test::read_text(path);
  for (size_t size = 1; size < bytes.size(); size += bytes.size() / 20) {
    folder.write("b.feather", bytes.substr(0, size));
    EXPECT_VALUE_ERROR(
        make_feather_source({.files = {folder / "b.feather"}}),
        "b.feather' can't be read: ");
  }
  // Offsets are not checked by a sum, so a reader must not trust them.
  for (size_t i = 8; i < bytes.size(); i += bytes.size() / 500) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 0xff);
    folder.write("b.feather", damaged);
    try {
      count_rest(
          *make_feather_source({.files = {folder / "b.feather"}})->open());
    } catch (const c10::ValueError&) {
      // Some damage can't be seen.
    }
  }
}

TEST(FeatherSourceTest, RefusesFilesThatChange) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.feather";
  write_feather(path, numbered_table(100), 10);
  const auto source = make_feather_source({.files = {path}});
  write_feather(path, numbered_table(101), 10);
  EXPECT_VALUE_ERROR(source->open()->next(), "has changed since the source");
}

TEST(FeatherSourceTest, NamesMissingColumns) {
  const TemporaryFolder folder;
  const std::string path = folder / "a.feather";
  write_feather(path, numbered_table(3));
  EXPECT_VALUE_ERROR(
      make_feather_source({.files = {path}, .columns = {"Score"}}),
      "has no column 'Score'. Similar columns are: score.");
}

}  // namespace feather_source_test
}  // namespace tessera::data
