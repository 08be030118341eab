// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/example_source.h>

#include "packages/data/src/arrow/column_request.h"
#include "packages/data/src/ordered_tasks.h"

#include <arrow/type_fwd.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace tessera::data {

/// The number of examples that a thread decodes at once.
inline constexpr int64_t kBatchExamples = 65'536;

/// Converted examples, which wait for the caller.
struct DecodedExamples {
  Columns columns = {};
  int64_t size = 0;
};

using DecodeTasks = OrderedTasks<DecodedExamples>;

/// The options that files of record batches have in common.
struct RecordFileOptions {
  std::string reader = {};  // the name in messages
  std::vector<std::string> files = {};
  std::vector<std::string> columns = {};
  ColumnTypes types = {};
  int64_t threads = 0;
  int64_t queue_examples = 0;
};

/// Checks the options and replaces zeros by the values that they stand for.
RecordFileOptions validated(RecordFileOptions options);

/// Returns the requested columns. Types that the options do not set are those of the first
/// file.
std::vector<ColumnRequest> make_requests(
    const RecordFileOptions& options,
    const arrow::Schema& first_schema);

/// The units of the requested columns of times.
std::map<std::string, std::string> units_of(
    const std::vector<ColumnRequest>& requests);

/// The positions of the requested columns in a file.
/// Errors:  c10::ValueError for missing columns and those of other types.
std::vector<int> find_fields(
    const std::string& where,
    const std::vector<ColumnRequest>& requests,
    const arrow::Schema& schema);

/// Makes a reader whose next() returns the items of the tasks.
std::unique_ptr<ExampleReader> make_task_reader(
    DecodeTasks::NextTask next_task,
    const RecordFileOptions& options);

}  // namespace tessera::data
