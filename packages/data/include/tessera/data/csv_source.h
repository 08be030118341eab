// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>
#include <tessera/data/example_source.h>
#include <tessera/data/malformed_lines.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::data {

// snippet: tests/docs/reference_sources_test.cpp CsvOptions
/// The options of make_csv_source().
///
///   const auto source = make_csv_source(
///       {.files = {"clicks.csv"},
///        .columns = {"user", "recent", "price"},
///        .types = {{"price", ColumnType::kFloat32}},
///        .list_delimiters = {{"recent", '|'}}});
///   const auto reader = source->open();
///   while (const auto examples = reader->next()) {
///     output << examples->batch_size() << " examples\n";
///   }
struct CsvOptions {
  /// Text, gzip or zstd files, recognised by their first bytes. They are read one after
  /// the other.
  std::vector<std::string> files = {};
  /// The columns to read, in this order. If empty, all columns of the first file are
  /// read. The other files must have them, too, in any order.
  std::vector<std::string> columns = {};
  /// The types of columns. In these columns, numbers may have any spelling: 007 and +7
  /// are the integer 7, true is 1, and floats are rounded to float32. The source infers
  /// the types of the other columns from the first MiB of rows, and reads on until each
  /// column has a value. It prints the inferred types once. With an inferred type, two
  /// different texts never become the same value, unless both are in missing_values. The
  /// inferred type is:
  ///
  ///   - kInt64 if all values are written like 7 or -12, or all as true and false
  ///   - kFloat32 if all are written in the same way, such as 2 and 0.5, 2.0 and 0.5, or
  ///     2.50 and 0.50, and float32 can tell them apart
  ///   - kText otherwise, for example for 01234 and for 16777217.0
  ///
  /// If a number in later rows is written in another way, it is an error, even with
  /// MalformedLines::kSkip. Numbers with more digits than float32 has, such as
  /// 0.8444218515250481, are inferred as kText. Set their type to kFloat32. Write times
  /// as integers: kFloat32 rounds a time such as 881252142.0 to a multiple of 64, and
  /// split() refuses such times.
  ColumnTypes types = {};
  /// The columns that have lists, such as 1|2|3, with the delimiter of their values. An
  /// empty field is an empty list. The type of such a column is that of its values.
  std::map<std::string, char> list_delimiters = {};
  /// The names of all columns, if the files have no header. If empty, the first row of
  /// each file has the names.
  std::vector<std::string> names = {};
  char delimiter = ',';
  /// The character around fields that contain delimiters or newlines. A quote in such a
  /// field is written twice. '\0' means that there are no quotes.
  char quote = '"';
  /// Fields that stand for a missing number, such as -999. In text columns, only an empty
  /// field is a missing value, because NA can be a word.
  std::vector<std::string> missing_values =
      {"", "NA", "N/A", "NaN", "nan", "null", "NULL"};
  /// The reader fails at a malformed row, or skips it. A row is malformed if it has too
  /// many or too few fields, values of another type, text that is not UTF-8, text after
  /// a closing quote, a quote that is not closed, or more than max_row_bytes. In the
  /// last three cases, the cause is usually a quote that is not closed, so kSkip skips
  /// only the first line of the row. The next row begins in the next line.
  MalformedLines malformed_lines = MalformedLines::kError;
  /// The number of malformed rows that kSkip allows. One more is an error. If unset,
  /// there is no limit.
  std::optional<int64_t> max_malformed_lines = {};
  /// The number of threads that read and parse. 0 means one per core, but at most four.
  int64_t threads = 0;
  /// The size of the text that a thread parses at once, in bytes.
  int64_t block_bytes = int64_t{1} << 20;
  /// Longer rows are malformed. The newline at the end of a row does not count.
  int64_t max_row_bytes = int64_t{1} << 24;

  bool operator==(const CsvOptions&) const = default;
};

// snippet: tests/docs/reference_sources_test.cpp make_csv_source
/// Examples in CSV files. Blocks of rows are parsed in parallel, and the number of threads
/// does not change the result. Empty lines are skipped. open(first) reads all rows before
/// `first`. size() is unset, because the number of rows is unknown.
///
///   const auto source = make_csv_source(
///       {.files = {"clicks.csv"}, .malformed_lines = MalformedLines::kSkip});
///   const auto reader = source->open();
///   while (const auto examples = reader->next()) {
///   }
///   output << source->report().malformed_lines << " malformed line: "
///          << source->report().first_malformed_lines.front() << "\n";
///   save_column_types(source->types(), "types.json");
///
/// Memory:  at most 2 * threads + 2 parsed blocks.
/// Errors:  c10::ValueError for options out of range; for files that are missing, empty,
///          damaged, cut off or changed since this call; for missing columns; for
///          malformed rows see `malformed_lines`. The message names file, line and
///          column. next() first returns the examples before the error.
///          c10::NotImplementedError if Tessera was built without Arrow.
std::unique_ptr<ExampleSource> make_csv_source(const CsvOptions& options);

/// Returns true if this Tessera was built with Arrow, which make_csv_source() and
/// make_parquet_source() need.
bool has_arrow();

}  // namespace tessera::data
