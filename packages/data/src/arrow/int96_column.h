// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/parquet_source.h>

#include <arrow/type_fwd.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>

#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

/// The times of a column that a Parquet file has as INT96: a day, and nanoseconds in it.
/// Arrow converts them modulo 2^64, so that the year 9999 becomes 1816.
struct Int96Column {
  parquet::ParquetFileReader* file;
  std::vector<int> groups;  // row groups to read
  int leaf;  // the column in the schema of Parquet
  Int96Unit unit;

  size_t next_group = 0;
  std::shared_ptr<parquet::Int96Reader> reader = {};
  std::vector<parquet::Int96> values = {};  // read, and used up to next_value
  size_t next_value = 0;

  /// Converts the next rows. `array` has them as Arrow has converted them, times or lists
  /// of times, and the result has the same nulls. `first_row` is counted from 0.
  /// Errors:  c10::ValueError that begins with `where`, for a time beyond int64.
  std::shared_ptr<arrow::Array> convert(
      const arrow::Array& array,
      const std::string& where,
      const std::string& name,
      int64_t first_row);
  /// Returns false after the last value.
  bool next(parquet::Int96& value);
};

}  // namespace tessera::data
