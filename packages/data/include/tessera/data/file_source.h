// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>
#include <tessera/data/example_source.h>
#include <tessera/data/malformed_lines.h>
#include <tessera/data/parquet_source.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

/// The options of make_file_source(). CsvOptions and ParquetOptions have more.
struct FileOptions {
  /// CSV or Parquet files, all of the same format.
  std::vector<std::string> files = {};
  /// The columns to read, in this order. If empty, all of them.
  std::vector<std::string> columns = {};
  /// The types of columns that should not have the default type.
  ColumnTypes types = {};
  /// The columns of a CSV file that have lists, such as 1|2|3, with the delimiter of their
  /// values. Parquet files have lists of their own, and this option is ignored for them.
  std::map<std::string, char> list_delimiters = {};
  /// The unit of times that a Parquet file stores as INT96. A time that does not fit into
  /// int64 in this unit is an error.
  Int96Unit int96_unit = Int96Unit::kNanoseconds;
  /// The reader fails at a malformed row of a CSV file, or skips it. report() of the
  /// source counts the skipped rows.
  MalformedLines malformed_lines = MalformedLines::kError;

  bool operator==(const FileOptions&) const = default;
};

// snippet: tests/docs/reference_sources_test.cpp make_file_source
/// Examples in files. The format is recognised by the first bytes of a file: Parquet
/// files begin with PAR1, and text is read as CSV, plain or compressed.
///
///   const Dataset clicks(make_file_source(
///       {.files = {file},
///        .columns = {"user", "item"},
///        .types = {{"user", ColumnType::kText}}}));
///
/// Errors:  c10::ValueError if there are no files, if a file can't be read or is neither
///          CSV nor Parquet, and if the formats of the files differ; for a pipe, because
///          files are read several times; those of make_csv_source() and
///          make_parquet_source().
std::unique_ptr<ExampleSource> make_file_source(const FileOptions& options);

}  // namespace tessera::data
