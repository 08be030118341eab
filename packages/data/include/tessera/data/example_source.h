// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>
#include <tessera/data/columns.h>
#include <tessera/data/malformed_lines.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace tessera::data {

/// Reads the examples of an ExampleSource once, in order. Not thread safe.
class ExampleReader {
 public:
  virtual ~ExampleReader() = default;

  /// The next examples, at least one, or nullopt after the last one. The source chooses
  /// how many.
  /// Errors:  those of the source. After an error, next() raises the same error again.
  virtual std::optional<Columns> next() = 0;
};

/// Examples that can be read any number of times, such as files, or tensors in memory.
/// Several threads may open readers at the same time.
class ExampleSource {
 public:
  virtual ~ExampleSource() = default;

  /// A reader that begins at the example with the number `first`, counted from 0. If there
  /// are no more than `first` examples, next() returns nullopt at once.
  /// Errors:  c10::ValueError if first < 0, and for files that can't be read.
  virtual std::unique_ptr<ExampleReader> open(int64_t first = 0) const = 0;

  /// The number of examples. Unset if it is not known before they are read.
  virtual std::optional<int64_t> size() const = 0;

  /// Returns the unit of each column of times, such as {"time", "microseconds since
  /// 1970"}. The values of such columns are integers. Parquet files name the units.
  virtual std::map<std::string, std::string> units() const {
    return {};
  }

  /// Returns the counts of the reader of text files that was opened last, and the first
  /// lines that it skipped. All zeros for other sources. Several threads may call
  /// report().
  virtual ReadReport report() const {
    return {};
  }

  /// The types of all columns that are read from CSV files. Pass them as
  /// CsvOptions::types. save_column_types() writes them to a file, so that a server reads
  /// its columns as the training did. Empty for other sources.
  virtual std::map<std::string, ColumnType> types() const {
    return {};
  }
};

}  // namespace tessera::data
