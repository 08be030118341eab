// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/column_type.h>
#include <tessera/data/example_source.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tessera::data {

// snippet: tests/docs/reference_sources_test.cpp FeatherOptions
/// The options of make_feather_source().
///
///   const auto source = make_feather_source({.files = {"day_0.arrow"}});
///   const auto examples = source->open()->next();
///   const Column& items = examples->at("item");
struct FeatherOptions {
  /// Arrow or Feather files, which are read one after the other.
  std::vector<std::string> files = {};
  /// The columns to read, in this order. If empty, all columns of the first file are
  /// read. The other files must have them, too, in any order.
  std::vector<std::string> columns = {};
  /// The types of columns that should not have their default type. Integers can
  /// become floats or text, and those beyond int64 kUInt64Bits. No other conversions are
  /// possible.
  std::map<std::string, ColumnType> types = {};
  /// The number of threads that decode. 0 means one per core, but at most four.
  int64_t threads = 0;
  /// The number of decoded examples that may wait for the caller. 0 means 2^20.
  int64_t queue_examples = 0;

  bool operator==(const FeatherOptions&) const = default;
};

/// Examples in Arrow IPC files, which are also called Feather files (version 2), plain or
/// compressed with LZ4 or zstd. Record batches are decoded in parallel, and threads do not
/// change the result. The types of columns are those of make_parquet_source().
///
/// The format has no checksums, so that damaged values may be read without an error.
///
/// Memory:  queue_examples plus one record batch per thread.
/// Errors:  those of make_parquet_source().
std::unique_ptr<ExampleSource> make_feather_source(
    const FeatherOptions& options);

}  // namespace tessera::data
