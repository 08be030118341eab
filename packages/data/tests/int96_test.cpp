// SPDX-License-Identifier: Apache-2.0
// Times that a Parquet file has as INT96.
#include <tessera/data/file_source.h>
#include <tessera/data/parquet_source.h>

#include "packages/data/tests/arrow_files.h"
#include "packages/data/tests/source_examples.h"
#include "tests/temporary_folder.h"
#include "tests/test_util.h"

#include <parquet/column_writer.h>
#include <parquet/file_writer.h>

namespace tessera::data::int96_test {

using Unit = arrow::TimeUnit;

const std::string kYear9999 = "253402300799000000";  // its last second

class Int96Test : public testing::Test {
 protected:
  // Arrow writes all times as INT96, with or without the types that they had.
  std::string write(
      const std::vector<NamedArray>& columns,
      int64_t row_group = 1 << 20,
      bool has_schema = false) {
    const std::string path = folder_ / "times.parquet";
    const auto file = value_of(arrow::io::FileOutputStream::Open(path));
    parquet::ArrowWriterProperties::Builder builder;
    builder.enable_deprecated_int96_timestamps();
    if (has_schema) {
      builder.store_schema();
    }
    check_arrow(parquet::arrow::WriteTable(
        *table_of(columns),
        arrow::default_memory_pool(),
        file,
        row_group,
        parquet::default_writer_properties(),
        builder.build()));
    check_arrow(file->Close());
    return path;
  }

  // Writes one column of days since 1970 and nanoseconds in them, as Spark does.
  std::string write_days(
      const std::vector<std::pair<int64_t, int64_t>>& times) {
    const std::string path = folder_ / "days.parquet";
    const auto file = value_of(arrow::io::FileOutputStream::Open(path));
    const auto root = parquet::schema::GroupNode::Make(
        "schema",
        parquet::Repetition::REQUIRED,
        {parquet::schema::PrimitiveNode::Make(
            "time", parquet::Repetition::REQUIRED, parquet::Type::INT96)});
    const auto writer = parquet::ParquetFileWriter::Open(
        file, std::static_pointer_cast<parquet::schema::GroupNode>(root));
    std::vector<parquet::Int96> values;
    for (const auto& [days, nanoseconds] : times) {
      parquet::Int96& value = values.emplace_back();
      std::memcpy(&value, &nanoseconds, sizeof(nanoseconds));
      value.value[2] =
          static_cast<uint32_t>(days + parquet::kJulianToUnixEpochDays);
    }
    auto* column = static_cast<parquet::Int96Writer*>(
        writer->AppendRowGroup()->NextColumn());
    column->WriteBatch(
        static_cast<int64_t>(values.size()), nullptr, nullptr, values.data());
    column->Close();
    writer->Close();
    check_arrow(file->Close());
    return path;
  }

  static std::shared_ptr<arrow::Array> micros(const std::string& json) {
    return array_of(arrow::timestamp(Unit::MICRO), json);
  }
  static int64_t read(const ParquetOptions& options) {
    return count_rest(*make_parquet_source(options)->open());
  }
  static Texts show(const ParquetOptions& options) {
    return show_all(*make_parquet_source(options));
  }
  static ParquetOptions in_microseconds(const std::string& path) {
    return {.files = {path}, .int96_unit = Int96Unit::kMicroseconds};
  }

  TemporaryFolder folder_;
};

TEST_F(Int96Test, TimesBeyondNanosecondsAreErrors) {
  for (const bool has_schema : {false, true}) {
    const std::string path = write(
        {{"id", array_of(arrow::int64(), "[0, 1, 2, 3]")},
         {"end", micros("[0, null, 1, " + kYear9999 + "]")}},
        2,
        has_schema);
    EXPECT_VALUE_ERROR(
        read({.files = {path}}),
        "times.parquet' row 4: column 'end' is 9999-12-31 23:59:59, which int64 "
        "can't count in nanoseconds. Set `int96_unit` of the source to "
        "Int96Unit::kMicroseconds, or correct the file.");
    EXPECT_VALUE_ERROR(
        read({.files = {path}, .types = {{"end", ColumnType::kText}}}),
        "row 4: column 'end'");
    const auto source = make_parquet_source(in_microseconds(path));
    EXPECT_EQ(
        show_all(*source),
        (Texts{"id int64: 0 1 2 3", "end int64: 0 _ 1 " + kYear9999}));
    EXPECT_EQ(
        source->units(),
        (std::map<std::string, std::string>{
            {"end", "microseconds since 1970"}}));
    EXPECT_EQ(
        show_rest(*source->open(3)),
        (Texts{"id int64: 3", "end int64: " + kYear9999}));
    EXPECT_EQ(
        show_all(*make_file_source(
            {.files = {path},
             .columns = {"end"},
             .int96_unit = Int96Unit::kMicroseconds})),
        Texts{"end int64: 0 _ 1 " + kYear9999});
  }
}

TEST_F(Int96Test, ListsAreChecked) {
  for (const auto& type :
       {arrow::list(arrow::timestamp(Unit::MICRO)),
        arrow::large_list(arrow::timestamp(Unit::MICRO))}) {
    const std::string json =
        "[[1, null], null, [], [2, 3], [4, " + kYear9999 + "]]";
    for (const bool has_schema : {false, true}) {
      const std::string path = write(
          {{"times", array_of(type, json)},
           {"id", array_of(arrow::int64(), "[0, 1, 2, 3, 4]")}},
          2,
          has_schema);
      EXPECT_VALUE_ERROR(
          read({.files = {path}}),
          "row 5: column 'times' is 9999-12-31 23:59:59");
      const auto source = make_parquet_source(in_microseconds(path));
      EXPECT_EQ(
          show_rest(*source->open(1)),
          (Texts{
              "times int64: [] [] [2 3] [4 " + kYear9999 + "]",
              "id int64: 1 2 3 4"}));
    }
  }
}

TEST_F(Int96Test, FirstAndLastNanosecondsFit) {
  // The first and the last time of pandas. One less would be a missing value.
  const std::vector<std::pair<int64_t, int64_t>> ends{
      {-106752, 763145224193}, {106751, 85636854775807}};
  EXPECT_EQ(
      show({.files = {write_days(ends)}}),
      Texts{"time int64: -9223372036854775807 9223372036854775807"});
  for (const auto& [first, text] :
       {std::pair(std::pair<int64_t, int64_t>(-106752, 763145224192), "1677"),
        std::pair(std::pair<int64_t, int64_t>(106751, 85636854775808), "2262"),
        std::pair(std::pair<int64_t, int64_t>(193607, 0), "2500-01-29")}) {
    const std::string path = write_days({{0, 0}, first});
    EXPECT_VALUE_ERROR(
        read({.files = {path}}),
        std::string("row 2: column 'time' is ") + text);
  }
  // Days beyond any calendar do not fit into microseconds either.
  EXPECT_VALUE_ERROR(
      count_rest(*make_parquet_source(
                      in_microseconds(write_days({{0, 0}, {200'000'000, 0}})))
                      ->open()),
      "which int64 can't count in microseconds. Correct the file.");
}

// Arrow writes times before 1970 with negative nanoseconds of a day, and Spark does not.
TEST_F(Int96Test, TimesBefore1970AreExact) {
  const std::string path = write(
      {{"time",
        array_of(
            arrow::timestamp(Unit::NANO), "[-1, -1001, -86400000000001]")}});
  EXPECT_EQ(
      show({.files = {path}}), Texts{"time int64: -1 -1001 -86400000000001"});
  EXPECT_EQ(
      show(in_microseconds(path)), Texts{"time int64: -1 -2 -86400000001"});
  const std::string days = write_days({{-1, 86'399'999'999'999}});
  EXPECT_EQ(show({.files = {days}}), Texts{"time int64: -1"});
  EXPECT_EQ(show(in_microseconds(days)), Texts{"time int64: -1"});
}

TEST_F(Int96Test, ManyRowsKeepTheirTimes) {
  arrow::TimestampBuilder builder(
      arrow::timestamp(Unit::MICRO), arrow::default_memory_pool());
  constexpr int64_t kRows = 200'000;
  for (int64_t i = 0; i < kRows; ++i) {
    check_arrow(
        i % 7 == 0 ? builder.AppendNull() : builder.Append(i * 3'600'000'123));
  }
  const std::string path =
      write({{"time", value_of(builder.Finish())}}, 70'000);
  for (const int64_t first : {0, 69'999, 150'001}) {
    int64_t row = first;
    const auto reader = make_parquet_source(in_microseconds(path))->open(first);
    while (const auto examples = reader->next()) {
      const at::Tensor times = examples->tensor("time");
      const auto* values = times.const_data_ptr<int64_t>();
      for (int64_t i = 0; i < times.numel(); ++i, ++row) {
        ASSERT_EQ(values[i], row % 7 == 0 ? kMissing : row * 3'600'000'123);
      }
    }
    EXPECT_EQ(row, kRows);
  }
}

}  // namespace tessera::data::int96_test
