// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/parquet_source.h>

#include <arrow/type_fwd.h>
#include <parquet/file_reader.h>
#include <parquet/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace parquet {
template <typename DType>
class TypedColumnReader;
}

namespace tessera::data {

/// The times of a column that a Parquet file has as INT96: a day, and nanoseconds in it.
/// Arrow converts them modulo 2^64, so that the year 9999 becomes 1816. Not thread safe.
class Int96Column {
 public:
  /// Begins at the first of the row groups. `leaf` is the column in the schema of Parquet.
  Int96Column(
      parquet::ParquetFileReader* file,
      std::vector<int> groups,
      int leaf,
      Int96Unit unit);

  /// The next rows. `array` has them as Arrow has converted them, times or lists of times,
  /// and the result has the same nulls. `first_row` is the number of the first row in the
  /// file, counted from 0.
  /// Errors:  c10::ValueError that begins with `where`, for a time that does not fit into
  ///          int64.
  std::shared_ptr<arrow::Array> convert(
      const arrow::Array& array,
      const std::string& where,
      const std::string& name,
      int64_t first_row);

 private:
  bool next(parquet::Int96& value);

  parquet::ParquetFileReader* file_;
  std::vector<int> groups_;
  int leaf_;
  Int96Unit unit_;
  size_t group_ = 0;  // the next one
  std::shared_ptr<parquet::TypedColumnReader<parquet::Int96Type>> reader_;
  std::vector<parquet::Int96> values_;
  size_t used_ = 0;  // of values_
};

}  // namespace tessera::data
