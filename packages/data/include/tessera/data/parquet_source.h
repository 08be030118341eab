// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>
#include <tessera/data/example_source.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

/// The unit of times that a Parquet file stores as INT96.
enum class Int96Unit {
  kNanoseconds,  // 1677-09-21 to 2262-04-11
  kMicroseconds  // 290,000 years before and after 1970
};

// snippet: tests/docs/reference_sources_test.cpp ParquetOptions
/// The options of make_parquet_source().
///
///   const auto source = make_parquet_source(
///       {.files = {"day_0.parquet", "day_1.parquet"},
///        .columns = {"user", "price"},
///        .types = {{"user", ColumnType::kText}}});
///   const auto last_two = source->open(*source->size() - 2);
struct ParquetOptions {
  /// Parquet files, which are read one after the other.
  std::vector<std::string> files = {};
  /// The columns to read, in this order. If empty, all columns of the first file are
  /// read. The other files must have them, too, in any order.
  std::vector<std::string> columns = {};
  /// The types of columns that should not have their default type, which the table at
  /// make_parquet_source() lists. Integers can become floats, text or kUInt64Bits, which
  /// is for integers beyond int64. No other conversions are possible.
  ColumnTypes types = {};
  /// The unit of the times that Spark and others write as INT96. A time that does not fit
  /// into int64 is an error. With kMicroseconds, even the year 9999 fits, and times are
  /// rounded down.
  Int96Unit int96_unit = Int96Unit::kNanoseconds;
  /// The number of threads that decode. 0 means one per core, but at most four.
  int64_t threads = 0;
  /// The number of decoded examples that may wait for the caller. Each thread may have
  /// 65,536 more. 0 means 2^20.
  int64_t queue_examples = 0;

  bool operator==(const ParquetOptions&) const = default;
};

/// Examples in Parquet files. Row groups are decoded in parallel, and the number of
/// threads does not change the result. open() skips row groups before the first example.
///
/// | type in the file                       | default type | value                    |
/// |----------------------------------------|--------------|--------------------------|
/// | bool, integers of all widths           | kInt64       | the number               |
/// | date, time, timestamp, duration        | kInt64       | the count of its unit    |
/// | float16, float32, float64              | kFloat32     | rounded to float32       |
/// | string, binary                         | kText        | the text, as UTF-8       |
/// | dictionary                             | that of its values | the value              |
/// | list of the above                      | that of its values | row_splits             |
///
/// Nulls become kMissing, NaN or the empty text, and a null list is empty. units() of the
/// source says what the integers of times count, such as "milliseconds since 1970". If a
/// column has different units in two files, it is an error.
///
/// If a page has a checksum, it is verified. pyarrow writes checksums with
/// write_page_checksum=True. Without checksums, damaged values may go unnoticed. This
/// also holds for page headers and footers, which have no checksums in any file.
///
/// Memory:  queue_examples plus 65,536 examples per thread, and the pages that they are
///          decoded from.
/// Errors:  c10::ValueError for options out of range; for files that are missing, empty,
///          damaged, cut off or changed since this call; for columns that are missing
///          or have other types; for the integer -2^63, which stands for a missing
///          value; for integers above 2^63 - 1; for times beyond int96_unit; for finite
///          numbers beyond float32; for text that is not UTF-8. The message names file,
///          row and column. Rows are counted from 1.
///          c10::NotImplementedError if Tessera was built without Arrow.
std::unique_ptr<ExampleSource> make_parquet_source(
    const ParquetOptions& options);

}  // namespace tessera::data
