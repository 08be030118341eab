// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/parquet_source.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "packages/data/src/arrow/column_request.h"
#include "packages/data/src/arrow/convert_array.h"
#include "packages/data/src/arrow/input_file.h"
#include "packages/data/src/ordered_tasks.h"
#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"

#include <arrow/array.h>
#include <arrow/buffer.h>
#include <arrow/memory_pool.h>
#include <arrow/record_batch.h>
#include <arrow/type.h>
#include <arrow/type_fwd.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/metadata.h>
#include <parquet/properties.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <exception>
#include <optional>
#include <utility>

namespace tessera::data {

namespace {

constexpr const char* kReader = "make_parquet_source";
// The number of examples that a thread decodes at once.
constexpr int64_t kBatchExamples = 65'536;

// Converted examples, which wait for the caller.
struct DecodedExamples {
  Columns columns = {};
  int64_t size = 0;
};

using DecodeTasks = OrderedTasks<DecodedExamples>;

// What a source knows about a file from its footer.
struct ParquetFile {
  std::string path = {};
  FileStamp stamp = {};
  std::shared_ptr<parquet::FileMetaData> footer = {};
  std::vector<int> fields = {};  // of the requested columns, in the schema
  std::vector<int> leaves = {};  // columns of Parquet that make up these fields
  std::vector<std::optional<int>> int96 = {};  // leaf of each field of INT96
};

// Row groups of a file that are decoded one after the other.
struct GroupRange {
  const ParquetFile* file = nullptr;
  std::vector<int> groups = {};
  int64_t first_row = 0;  // in the file, counted from 0
  int64_t end_row = 0;
  int64_t skip = 0;  // examples before the first one that the caller wants
};

// Parquet reports some problems by exceptions.
template <class Function>
auto without_exceptions(const std::string& where, Function&& function) {
  try {
    return function();
  } catch (const c10::Error&) {
    throw;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& error) {
    check_status(arrow::Status::IOError(error.what()), where);
    throw;
  }
}

std::unique_ptr<parquet::arrow::FileReader> open_parquet(
    const ParquetFile& file,
    Int96Unit int96_unit,
    bool has_few_groups) {
  const std::string where = where_of_file(kReader, file.path);
  parquet::ReaderProperties properties(arrow::default_memory_pool());
  // Reads pages instead of whole columns of a row group.
  properties.enable_buffered_stream();
  properties.set_buffer_size(int64_t{1} << 18);
  // By default, Arrow ignores checksums, and a flipped bit would give wrong values.
  properties.set_page_checksum_verification(true);
  parquet::ArrowReaderProperties arrow_properties(has_few_groups);
  arrow_properties.set_batch_size(kBatchExamples);
  arrow_properties.set_pre_buffer(false);
  arrow_properties.set_coerce_int96_timestamp_unit(
      int96_unit == Int96Unit::kNanoseconds ? arrow::TimeUnit::NANO
                                            : arrow::TimeUnit::MICRO);
  parquet::arrow::FileReaderBuilder builder;
  check_status(
      builder.Open(
          open_input(kReader, file.path, file.stamp), properties, file.footer),
      where);
  builder.properties(arrow_properties);
  auto reader = builder.Build();
  check_status(reader.status(), where);
  return reader.MoveValueUnsafe();
}

// Collects the columns of Parquet that a field consists of.
void collect_leaves(
    const parquet::arrow::SchemaField& field,
    std::vector<int>& leaves) {
  if (field.is_leaf()) {
    leaves.push_back(field.column_index);
  }
  for (const parquet::arrow::SchemaField& child : field.children) {
    collect_leaves(child, leaves);
  }
}

constexpr int64_t kNanosecondsPerSecond = 1'000'000'000;

// Sets the seconds since 1970, rounded down, and the units since 1970. Returns false if
// the units do not fit into int64, or would be kMissing.
bool count_units(
    const parquet::Int96& value,
    int64_t units_per_second,
    int64_t& seconds,
    int64_t& units) {
  const auto [days, bits] = parquet::DecodeInt96Timestamp(value);
  // Negative where Arrow has written a time before 1970.
  const auto nanoseconds = static_cast<int64_t>(bits);
  const int64_t part = nanoseconds % kNanosecondsPerSecond;
  seconds = static_cast<int64_t>(days) * parquet::kSecondsPerDay +
      nanoseconds / kNanosecondsPerSecond - (part < 0 ? 1 : 0);
  const int64_t rest = (part + kNanosecondsPerSecond) % kNanosecondsPerSecond /
      (kNanosecondsPerSecond / units_per_second);
  // Negative times are counted back from the next second. The smallest time fits into
  // int64, but the full second before it does not.
  const int64_t next = seconds < 0 ? 1 : 0;
  return !__builtin_mul_overflow(seconds + next, units_per_second, &units) &&
      !__builtin_add_overflow(units, rest - next * units_per_second, &units) &&
      units != kMissing;
}

std::string date_of(int64_t seconds) {
  const auto time = static_cast<std::time_t>(seconds);
  std::tm utc = {};
  char text[64] = {};
  if (::gmtime_r(&time, &utc) != nullptr) {
    std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &utc);
  }
  return text;
}

// The range [begin, end) of the values of a row among the values of all rows.
std::pair<int64_t, int64_t> values_of(const arrow::Array& array, int64_t row) {
  const auto of_list = [&](const auto& list) -> std::pair<int64_t, int64_t> {
    return {list.value_offset(row), list.value_offset(row + 1)};
  };
  switch (array.type_id()) {
    case arrow::Type::LIST:
      return of_list(static_cast<const arrow::ListArray&>(array));
    case arrow::Type::LARGE_LIST:
      return of_list(static_cast<const arrow::LargeListArray&>(array));
    case arrow::Type::FIXED_SIZE_LIST:
      return of_list(static_cast<const arrow::FixedSizeListArray&>(array));
    default:
      return {row, row + 1};
  }
}

// The times of a column that a Parquet file has as INT96: a day, and nanoseconds in it.
// Arrow converts them modulo 2^64, so that the year 9999 becomes 1816.
struct Int96Column {
  parquet::ParquetFileReader* file;
  std::vector<int> groups;  // row groups to read
  int leaf;  // the column in the schema of Parquet
  Int96Unit unit;

  size_t next_group = 0;
  std::shared_ptr<parquet::Int96Reader> reader = {};
  std::vector<parquet::Int96> values = {};  // read, and used up to next_value
  size_t next_value = 0;

  // Converts the next rows. `array` is Arrow's conversion of these rows, which has times
  // or lists of times. The result has the same nulls. `first_row` is counted from 0.
  // Errors:  c10::ValueError that begins with `where`, for a time beyond int64.
  std::shared_ptr<arrow::Array> convert(
      const arrow::Array& array,
      const std::string& where,
      const std::string& name,
      int64_t first_row) {
    const bool is_nanoseconds = unit == Int96Unit::kNanoseconds;
    auto data = array.data()->Copy();
    const bool has_lists = !data->child_data.empty();
    auto times = has_lists ? data->child_data[0]->Copy() : data;
    const auto nulls = arrow::MakeArray(times->Copy());
    auto buffer = arrow::AllocateBuffer(
        (times->offset + times->length) *
        static_cast<int64_t>(sizeof(int64_t)));
    check_status(buffer.status(), where);
    auto* to = (*buffer)->mutable_data_as<int64_t>() + times->offset;
    std::memset((*buffer)->mutable_data(), 0, (*buffer)->size());
    for (int64_t row = 0; row < array.length(); ++row) {
      const auto [begin, end] = values_of(array, row);
      for (int64_t i = begin; i < end; ++i) {
        parquet::Int96 value = {};
        int64_t seconds = 0;
        if (nulls->IsNull(i)) {
          continue;
        }
        TESSERA_CHECK_VALUE(
            next(value),
            "{} lacks times in column '{}'.",
            where,
            shorten(name));
        TESSERA_CHECK_VALUE(
            count_units(
                value,
                is_nanoseconds ? kNanosecondsPerSecond : 1'000'000,
                seconds,
                to[i]),
            "{} row {}: column '{}' is {}, which int64 can't count in {}. {}",
            where,
            first_row + row + 1,
            shorten(name),
            date_of(seconds),
            is_nanoseconds ? "nanoseconds" : "microseconds",
            is_nanoseconds
                ? "Set `int96_unit` of the source to Int96Unit::kMicroseconds, or correct the file."
                : "Correct the file.");
      }
    }
    times->buffers[1] = std::move(*buffer);
    if (has_lists) {
      data->child_data[0] = std::move(times);
    }
    return arrow::MakeArray(std::move(data));
  }

  // Returns false after the last value.
  bool next(parquet::Int96& value) {
    constexpr int64_t kLevels = 4096;
    while (next_value == values.size()) {
      if (reader != nullptr && reader->HasNext()) {
        std::vector<int16_t> levels(2 * kLevels);  // of nulls and lists
        int64_t count = 0;
        values.resize(kLevels);
        reader->ReadBatch(
            kLevels, &levels[0], &levels[kLevels], values.data(), &count);
        values.resize(count);
        next_value = 0;
      } else if (next_group < groups.size()) {
        reader = std::static_pointer_cast<parquet::Int96Reader>(
            file->RowGroup(groups[next_group++])->Column(leaf));
      } else {
        return false;
      }
    }
    value = values[next_value++];
    return true;
  }
};

class GroupDecoder {
 public:
  GroupDecoder(
      GroupRange range,
      const std::vector<ColumnRequest>& requests,
      Int96Unit int96_unit,
      bool has_few_groups)
      : range_(std::move(range)),
        requests_(requests),
        where_(where_of_file(kReader, range_.file->path)) {
    const ParquetFile& file = *range_.file;
    without_exceptions(where_, [&] {
      reader_ = open_parquet(file, int96_unit, has_few_groups);
      auto batches = reader_->GetRecordBatchReader(range_.groups, file.leaves);
      check_status(batches.status(), where_);
      batches_ = batches.MoveValueUnsafe();
    });
    // The batches have only the requested fields, in the order of the schema.
    std::vector<int> sorted = file.fields;
    std::ranges::sort(sorted);
    for (const int field : file.fields) {
      positions_.push_back(static_cast<int>(
          std::ranges::lower_bound(sorted, field) - sorted.begin()));
    }
    for (const std::optional<int>& leaf : file.int96) {
      int96_.emplace_back();
      if (leaf) {
        int96_.back().emplace(Int96Column{
            reader_->parquet_reader(), range_.groups, *leaf, int96_unit});
      }
    }
  }

  std::optional<DecodedExamples> next() {
    return without_exceptions(where_, [&] { return decode(); });
  }

 private:
  std::optional<DecodedExamples> decode() {
    while (true) {
      std::shared_ptr<arrow::RecordBatch> batch;
      check_status(batches_->ReadNext(&batch), where_);
      if (batch == nullptr) {
        check_unchanged(kReader, range_.file->path, range_.file->stamp);
        // Arrow skips a page whose damaged header has an unknown type.
        TESSERA_CHECK_VALUE(
            range_.first_row == range_.end_row,
            "{} must have {} rows up to the end of row group {}, as its footer says, but has {}. The file is damaged. Write or download it again.",
            where_,
            range_.end_row,
            range_.groups.back() + 1,
            range_.first_row);
        return std::nullopt;
      }
      for (size_t i = 0; i < int96_.size(); ++i) {
        if (int96_[i]) {
          const int position = positions_[i];
          auto times = batch->SetColumn(
              position,
              batch->schema()->field(position),
              int96_[i]->convert(
                  *batch->column(position),
                  where_,
                  requests_[i].name,
                  range_.first_row));
          check_status(times.status(), where_);
          batch = times.MoveValueUnsafe();
        }
      }
      const int64_t skipped = std::min(range_.skip, batch->num_rows());
      const int64_t first_row = range_.first_row + skipped;
      range_.first_row += batch->num_rows();
      range_.skip -= skipped;
      if (skipped < batch->num_rows()) {
        batch = batch->Slice(skipped);
        return DecodedExamples{
            .columns =
                convert_batch(where_, *batch, requests_, positions_, first_row),
            .size = batch->num_rows()};
      }
    }
  }

  GroupRange range_;
  const std::vector<ColumnRequest>& requests_;
  std::string where_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::vector<int> positions_;
  std::vector<std::optional<Int96Column>> int96_;  // of each request
};

class TaskReader : public ExampleReader {
 public:
  TaskReader(DecodeTasks::NextTask next_task, const ParquetOptions& options)
      : tasks_(std::move(next_task), options.threads, options.queue_examples) {}

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

// Checks the options and replaces zeros by the values that they stand for.
ParquetOptions validated(ParquetOptions options) {
  constexpr int64_t kDefaultQueue = int64_t{1} << 20;
  constexpr int64_t kMaxQueue = int64_t{1} << 40;
  check_files(kReader, options.files);
  options.threads = checked_threads(kReader, options.threads);
  check_option(kReader, "queue_examples", options.queue_examples, 0, kMaxQueue);
  if (options.queue_examples == 0) {
    options.queue_examples = kDefaultQueue;
  }
  return options;
}

// Returns the requested columns. Types that the options do not set are those of the first
// file.
std::vector<ColumnRequest> make_requests(
    const ParquetOptions& options,
    const arrow::Schema& first_schema) {
  const std::string where = where_of_file(kReader, options.files.front());
  const std::vector<std::string> names =
      requested_columns(where, options.columns, first_schema.field_names());
  if (!options.types.may_name_other_columns) {
    check_keys(c10::str("[", kReader, "]"), "types", options.types, names);
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

class ParquetSource : public ExampleSource {
 public:
  explicit ParquetSource(const ParquetOptions& options)
      : files_(std::make_shared<Files>()) {
    files_->options = validated(options);
    for (const std::string& path : files_->options.files) {
      add_file(path);
    }
  }

  std::unique_ptr<ExampleReader> open(int64_t first) const override {
    check_first(kReader, first);
    auto ranges = std::make_shared<std::vector<GroupRange>>(plan(first));
    int64_t groups = 0;
    for (const GroupRange& range : *ranges) {
      groups += std::ssize(range.groups);
    }
    // With fewer row groups than threads, Arrow's threads decode columns in parallel.
    const bool has_few_groups =
        files_->options.threads > 1 && groups < files_->options.threads;
    return std::make_unique<TaskReader>(
        [files = files_, ranges, has_few_groups, i = size_t{0}]() mutable
        -> DecodeTasks::Task {
          if (i == ranges->size()) {
            return nullptr;
          }
          // The thread that runs the task opens the file.
          return [files,
                  has_few_groups,
                  range = std::move((*ranges)[i++]),
                  decoder = std::shared_ptr<GroupDecoder>()]() mutable {
            if (decoder == nullptr) {
              decoder = std::make_shared<GroupDecoder>(
                  std::move(range),
                  files->requests,
                  files->options.int96_unit,
                  has_few_groups);
            }
            return decoder->next();
          };
        },
        files_->options);
  }

  std::optional<int64_t> size() const override {
    return files_->size;
  }
  std::map<std::string, std::string> units() const override {
    std::map<std::string, std::string> units;
    for (const ColumnRequest& request : files_->requests) {
      if (!request.unit.empty()) {
        units.emplace(request.name, request.unit);
      }
    }
    return units;
  }

 private:
  // Readers may live longer than the source.
  struct Files {
    ParquetOptions options = {};
    std::vector<ColumnRequest> requests = {};
    std::vector<ParquetFile> files = {};
    int64_t size = 0;
  };

  void add_file(const std::string& path) {
    ParquetFile file{.path = path, .stamp = stamp_of(kReader, path)};
    const std::string where = where_of_file(kReader, path);
    check_format(
        kReader, path, "Parquet", "PAR");  // PAR1, or PARE if encrypted
    without_exceptions(where, [&] {
      const auto reader = open_parquet(file, files_->options.int96_unit, false);
      file.footer = reader->parquet_reader()->metadata();
      std::shared_ptr<arrow::Schema> schema;
      check_status(reader->GetSchema(&schema), where);
      if (files_->files.empty()) {
        files_->requests = make_requests(files_->options, *schema);
      }
      const std::vector<ColumnRequest>& requests = files_->requests;
      file.fields =
          find_columns(where, schema->field_names(), names_of(requests));
      for (size_t i = 0; i < requests.size(); ++i) {
        const int field = file.fields[i];
        check_convertible(where, requests[i], *schema->field(field)->type());
        const size_t first = file.leaves.size();
        collect_leaves(reader->manifest().schema_fields.at(field), file.leaves);
        const int leaf = file.leaves.at(first);
        const bool is_int96 =
            file.footer->schema()->Column(leaf)->physical_type() ==
            parquet::Type::INT96;
        file.int96.push_back(is_int96 ? std::optional(leaf) : std::nullopt);
      }
      std::ranges::sort(file.leaves);
    });
    files_->size += file.footer->num_rows();
    files_->files.push_back(std::move(file));
  }

  // The row groups from the example `first` on. Small ones are decoded together.
  std::vector<GroupRange> plan(int64_t first) const {
    std::vector<GroupRange> ranges;
    int64_t skip = first;
    for (const ParquetFile& file : files_->files) {
      int64_t row = 0;
      int64_t rows_in_range = kBatchExamples;
      for (int group = 0; group < file.footer->num_row_groups(); ++group) {
        const int64_t rows = file.footer->RowGroup(group)->num_rows();
        if (rows <= skip) {
          skip -= rows;
        } else {
          if (rows_in_range + rows > kBatchExamples) {
            ranges.push_back({.file = &file, .first_row = row, .skip = skip});
            rows_in_range = 0;
            skip = 0;
          }
          ranges.back().groups.push_back(group);
          ranges.back().end_row = row + rows;
          rows_in_range += rows;
        }
        row += rows;
      }
    }
    return ranges;
  }

  std::shared_ptr<Files> files_;
};

}  // namespace

std::unique_ptr<ExampleSource> make_parquet_source(
    const ParquetOptions& options) {
  return std::make_unique<ParquetSource>(options);
}

}  // namespace tessera::data
