// SPDX-License-Identifier: Apache-2.0
#include "packages/data/src/arrow/record_batches.h"

#include <tessera/common/profile_scope.h>

#include "packages/data/src/arrow/convert_array.h"
#include "packages/data/src/arrow/input_file.h"
#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"

#include <arrow/type.h>

#include <utility>

namespace tessera::data {

namespace {

class TaskReader : public ExampleReader {
 public:
  TaskReader(
      DecodeTasks::NextTask next_task,
      int64_t threads,
      int64_t queue_examples)
      : tasks_(std::move(next_task), threads, queue_examples) {}

  std::optional<Columns> next() override {
    const ProfileScope scope("tessera::ExampleReader");
    std::optional<DecodedExamples> item = tasks_.next();
    if (!item) {
      return std::nullopt;
    }
    return std::move(item->columns);
  }

 private:
  DecodeTasks tasks_;
};

}  // namespace

RecordFileOptions validated(RecordFileOptions options) {
  constexpr int64_t kDefaultQueue = int64_t{1} << 20;
  constexpr int64_t kMaxQueue = int64_t{1} << 40;
  check_files(options.reader, options.files);
  options.threads = checked_threads(options.reader, options.threads);
  check_option(
      options.reader, "queue_examples", options.queue_examples, 0, kMaxQueue);
  if (options.queue_examples == 0) {
    options.queue_examples = kDefaultQueue;
  }
  return options;
}

std::vector<ColumnRequest> make_requests(
    const RecordFileOptions& options,
    const arrow::Schema& first_schema) {
  const std::string where =
      where_of_file(options.reader, options.files.front());
  const std::vector<std::string> names =
      requested_columns(where, options.columns, first_schema.field_names());
  if (!options.types.may_name_other_columns) {
    check_keys("[" + options.reader + "]", "types", options.types, names);
  }
  const std::vector<int> positions =
      find_columns(where, first_schema.field_names(), names);
  std::vector<ColumnRequest> requests;
  for (size_t i = 0; i < names.size(); ++i) {
    const arrow::DataType& type = *first_schema.field(positions[i])->type();
    const ColumnType own = default_type(where, names[i], type);
    const auto asked = options.types.find(names[i]);
    requests.push_back(
        {.name = names[i],
         .type = asked == options.types.end() ? own : asked->second,
         .unit = unit_of(type),
         .has_unknown_unit = type.id() == arrow::Type::NA});
  }
  return requests;
}

std::map<std::string, std::string> units_of(
    const std::vector<ColumnRequest>& requests) {
  std::map<std::string, std::string> units;
  for (const ColumnRequest& request : requests) {
    if (!request.unit.empty()) {
      units.emplace(request.name, request.unit);
    }
  }
  return units;
}

std::vector<int> find_fields(
    const std::string& where,
    const std::vector<ColumnRequest>& requests,
    const arrow::Schema& schema) {
  std::vector<std::string> names;
  for (const ColumnRequest& request : requests) {
    names.push_back(request.name);
  }
  std::vector<int> positions = find_columns(where, schema.field_names(), names);
  for (size_t i = 0; i < requests.size(); ++i) {
    check_convertible(where, requests[i], *schema.field(positions[i])->type());
  }
  return positions;
}

std::unique_ptr<ExampleReader> make_task_reader(
    DecodeTasks::NextTask next_task,
    const RecordFileOptions& options) {
  return std::make_unique<TaskReader>(
      std::move(next_task), options.threads, options.queue_examples);
}

}  // namespace tessera::data
