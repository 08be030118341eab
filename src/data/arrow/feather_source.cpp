// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/feather_source.h>

#include "src/common/check.h"
#include "src/data/arrow/convert_array.h"
#include "src/data/arrow/input_file.h"
#include "src/data/arrow/record_batches.h"

#include <arrow/io/file.h>
#include <arrow/ipc/options.h>
#include <arrow/ipc/reader.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>

#include <algorithm>
#include <mutex>
#include <numeric>
#include <utility>

namespace tessera::data {

namespace {

constexpr const char* kFeatherReader = "make_feather_source";

using BatchFile = std::shared_ptr<arrow::ipc::RecordBatchFileReader>;

struct FeatherFile {
  std::string path = {};
  FileStamp stamp = {};
  std::vector<int> fields = {};  // of the requested columns, in the schema
  int64_t rows = 0;
  int batches = 0;
};

// Opens a file that gives only these fields, in the order of the schema.
BatchFile open_feather(const FeatherFile& file, std::vector<int> fields) {
  auto options = arrow::ipc::IpcReadOptions::Defaults();
  std::sort(fields.begin(), fields.end());
  options.included_fields = std::move(fields);
  options.use_threads = false;
  auto reader = arrow::ipc::RecordBatchFileReader::Open(
      open_input(kFeatherReader, file.path, file.stamp), options);
  check_status(reader.status(), where_of_file(kFeatherReader, file.path));
  return reader.MoveValueUnsafe();
}

std::shared_ptr<arrow::RecordBatch> read_batch(
    const FeatherFile& file,
    arrow::ipc::RecordBatchFileReader& reader,
    int batch) {
  auto result = reader.ReadRecordBatch(batch);
  check_status(result.status(), where_of_file(kFeatherReader, file.path));
  return result.MoveValueUnsafe();
}

// Open readers of a file. A reader reads the dictionaries of a file once, so it is used
// for several batches.
class OpenFiles {
 public:
  explicit OpenFiles(const FeatherFile& file) : file_(file) {}

  BatchFile take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        BatchFile file = std::move(free_.back());
        free_.pop_back();
        return file;
      }
    }
    return open_feather(file_, file_.fields);
  }

  void give_back(BatchFile file) {
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(file));
  }

 private:
  const FeatherFile& file_;
  std::mutex mutex_;
  std::vector<BatchFile> free_;
};

class FeatherSource : public ExampleSource {
 public:
  explicit FeatherSource(RecordFileOptions options)
      : files_(std::make_shared<Files>()) {
    files_->options = validated(std::move(options));
    for (const std::string& path : files_->options.files) {
      add_file(path);
    }
  }

  std::unique_ptr<ExampleReader> open(int64_t first) const override {
    check_first(kFeatherReader, first);
    return make_task_reader(
        [position = find(first)]() mutable { return next_task(position); },
        files_->options);
  }

  std::map<std::string, std::string> units() const override {
    return units_of(files_->requests);
  }
  std::optional<int64_t> size() const override {
    int64_t size = 0;
    for (const FeatherFile& file : files_->files) {
      size += file.rows;
    }
    return size;
  }

 private:
  // Readers may live longer than the source.
  struct Files {
    RecordFileOptions options = {};
    std::vector<ColumnRequest> requests = {};
    std::vector<FeatherFile> files = {};
  };

  // The next batch to read.
  struct Position {
    std::shared_ptr<const Files> files = {};
    size_t file = 0;
    int batch = 0;
    int64_t skip = 0;  // examples to skip in the batch
    std::shared_ptr<OpenFiles> open = {};
  };

  void add_file(const std::string& path) {
    FeatherFile file{.path = path, .stamp = stamp_of(kFeatherReader, path)};
    const std::string where = where_of_file(kFeatherReader, path);
    check_format(kFeatherReader, path, "Feather version 2", "ARROW1");
    const BatchFile reader = open_feather(file, {});
    if (files_->files.empty()) {
      files_->requests = make_requests(files_->options, *reader->schema());
    }
    file.fields = find_fields(where, files_->requests, *reader->schema());
    file.batches = reader->num_record_batches();
    const auto rows = reader->CountRows();
    check_status(rows.status(), where);
    file.rows = *rows;
    files_->files.push_back(std::move(file));
  }

  Position find(int64_t first) const {
    Position position{.files = files_, .skip = first};
    const auto& files = files_->files;
    while (position.file < files.size() &&
           position.skip >= files[position.file].rows) {
      position.skip -= files[position.file++].rows;
    }
    if (position.file == files.size() || position.skip == 0) {
      return position;
    }
    // Only one column of the batches before is read, to count their rows.
    const FeatherFile& file = files[position.file];
    const BatchFile reader = open_feather(file, {file.fields.front()});
    while (position.batch < file.batches) {
      const int64_t rows =
          read_batch(file, *reader, position.batch)->num_rows();
      if (rows > position.skip) {
        break;
      }
      position.skip -= rows;
      ++position.batch;
    }
    return position;
  }

  static DecodeTasks::Task next_task(Position& position) {
    const auto& files = position.files->files;
    while (position.file < files.size() &&
           position.batch == files[position.file].batches) {
      ++position.file;
      position.batch = 0;
      position.open = nullptr;
    }
    if (position.file == files.size()) {
      return nullptr;
    }
    if (position.open == nullptr) {
      position.open = std::make_shared<OpenFiles>(files[position.file]);
    }
    Position here = position;
    ++position.batch;
    position.skip = 0;
    return [here,
            batch = std::shared_ptr<arrow::RecordBatch>(),
            row = int64_t{0}]() mutable -> std::optional<DecodedExamples> {
      const FeatherFile& file = here.files->files[here.file];
      if (batch == nullptr) {
        BatchFile reader = here.open->take();
        batch = read_batch(file, *reader, here.batch);
        here.open->give_back(std::move(reader));
        check_unchanged(
            where_of_file(kFeatherReader, file.path),
            file.stamp,
            stamp_of(kFeatherReader, file.path));
        row = here.skip;
      }
      if (row >= batch->num_rows()) {
        return std::nullopt;
      }
      return convert_slice(here, *batch, row);
    };
  }

  // Converts the rows from `row` on, and moves `row` behind them.
  static DecodedExamples convert_slice(
      const Position& here,
      const arrow::RecordBatch& batch,
      int64_t& row) {
    const FeatherFile& file = here.files->files[here.file];
    std::vector<int> sorted = file.fields;
    std::sort(sorted.begin(), sorted.end());
    std::vector<int> positions;
    for (const int field : file.fields) {
      positions.push_back(static_cast<int>(
          std::lower_bound(sorted.begin(), sorted.end(), field) -
          sorted.begin()));
    }
    const auto slice = batch.Slice(row, kBatchExamples);
    DecodedExamples examples{
        .columns = convert_batch(
            c10::str(
                where_of_file(kFeatherReader, file.path),
                " record batch ",
                here.batch + 1),
            *slice,
            here.files->requests,
            positions,
            row),
        .size = slice->num_rows()};
    row += slice->num_rows();
    return examples;
  }

  std::shared_ptr<Files> files_;
};

}  // namespace

std::unique_ptr<ExampleSource> make_feather_source(
    const FeatherOptions& options) {
  return std::make_unique<FeatherSource>(RecordFileOptions{
      .reader = kFeatherReader,
      .files = options.files,
      .columns = options.columns,
      .types = options.types,
      .threads = options.threads,
      .queue_examples = options.queue_examples});
}

}  // namespace tessera::data
