// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/csv_source.h>

#include <tessera/common/profile_scope.h>
#include <tessera/common/shorten.h>

#include "packages/data/src/arrow/csv_blocks.h"
#include "packages/data/src/arrow/csv_parser.h"
#include "packages/data/src/ordered_tasks.h"
#include "packages/data/src/reader_checks.h"
#include "packages/data/src/row_range.h"
#include "src/common/check.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <iostream>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

namespace tessera::data {

namespace {

using ParseTasks = OrderedTasks<ParsedBlock>;

// What a source and its readers share. Readers may live longer than the source.
struct CsvFiles {
  CsvOptions options = {};
  int64_t threads = 0;
  std::vector<ColumnRequest> requests = {};
  std::vector<CsvFile> files = {};
  mutable LastReport last_report;
};

void check_csv(const CsvOptions& options) {
  constexpr int64_t kMaxBytes = int64_t{1} << 30;
  check_files(kCsvReader, options.files, "CsvOptions::files");
  check_option(kCsvReader, "block_bytes", options.block_bytes, 1, kMaxBytes);
  check_option(
      kCsvReader, "max_row_bytes", options.max_row_bytes, 1, kMaxBytes);
  check_malformed_options(
      kCsvReader, options.malformed_lines, options.max_malformed_lines);
  TESSERA_CHECK_VALUE(
      options.delimiter != '\0' && !is_newline(options.delimiter) &&
          !is_newline(options.quote) && options.delimiter != options.quote,
      "[make_csv_source] delimiter and quote must be different characters and no newlines. Correct CsvOptions::delimiter and quote.");
  for (const auto& [name, delimiter] : options.list_delimiters) {
    TESSERA_CHECK_VALUE(
        delimiter != '\0' && !is_newline(delimiter),
        "[make_csv_source] the list delimiter of the column '{}' must be a character and no newline. Correct CsvOptions::list_delimiters.",
        shorten(name));
  }
}

// Opens a file again to read its rows.
std::shared_ptr<CsvBlocks> open_rows(
    const CsvOptions& options,
    const CsvFile& file) {
  auto blocks = std::make_shared<CsvBlocks>(options, file.path, file.stamp);
  if (options.names.empty()) {
    blocks->read_header();
  }
  return blocks;
}

// Reads blocks one after the other, and gives tasks that parse them.
ParseTasks::NextTask read_blocks(std::shared_ptr<const CsvFiles> files) {
  return [files = std::move(files),
          file = size_t{0},
          rows = std::shared_ptr<CsvBlocks>()]() mutable -> ParseTasks::Task {
    for (; file < files->files.size(); ++file, rows = nullptr) {
      if (rows == nullptr) {
        rows = open_rows(files->options, files->files[file]);
      }
      auto block = std::make_shared<CsvBlock>();
      if (rows->next(*block)) {
        return [files,
                block,
                file,
                header_lines = rows->take_header_lines()]() mutable
               -> std::optional<ParsedBlock> {
          if (block == nullptr) {
            return std::nullopt;
          }
          const ProfileScope scope("tessera::parse_csv");
          ParsedBlock parsed = parse_csv_block(
              files->options, files->files[file], files->requests, *block);
          parsed.file = file;
          parsed.header_lines = header_lines;
          block = nullptr;
          return parsed;
        };
      }
    }
    return nullptr;
  };
}

class CsvExampleReader : public ExampleReader {
 public:
  CsvExampleReader(std::shared_ptr<const CsvFiles> files, int64_t first)
      : files_(std::move(files)),
        number_(files_->last_report.begin()),
        skip_(first),
        tasks_(read_blocks(files_), files_->threads, files_->threads + 2) {}

  std::optional<Columns> next() override {
    const ProfileScope scope("tessera::ExampleReader");
    if (error_ != nullptr) {
      std::rethrow_exception(error_);
    }
    while (true) {
      std::optional<ParsedBlock> block = tasks_.next();
      if (!block) {
        return std::nullopt;
      }
      std::optional<Columns> columns = take(std::move(*block));
      files_->last_report.set(number_, report_);
      if (columns) {
        return columns;
      }
      if (error_ != nullptr) {
        std::rethrow_exception(error_);
      }
    }
  }

 private:
  std::optional<Columns> take(ParsedBlock block) {
    if (block.file != file_) {
      file_ = block.file;
      line_ = 1;
    }
    line_ += block.header_lines;
    report_.bytes += block.bytes;
    int64_t end = block.columns.batch_size();
    for (const MalformedRow& row : block.malformed) {
      if (!may_skip(row)) {
        end = row.example;
        break;
      }
    }
    line_ += block.lines;
    const int64_t begin = std::min(skip_, end);
    skip_ -= begin;
    if (begin == end) {
      return std::nullopt;
    }
    report_.examples += end - begin;
    return take_rows(
        part_of(owned_range(std::move(block.columns)), begin, end - begin));
  }

  // Returns false if the row is an error, which is then in error_.
  bool may_skip(const MalformedRow& row) {
    const CsvOptions& options = files_->options;
    const auto describe = [&] {
      return fmt::format(
          "'{}' line {}: {}",
          shorten(files_->files[file_].path),
          line_ + row.line,
          row.problem.text);
    };
    try {
      TESSERA_CHECK_VALUE(
          row.problem.can_be_skipped,
          "[make_csv_source] {}. Correct the line, or {}.",
          describe(),
          row.problem.advice);
      count_malformed(
          kCsvReader,
          options.malformed_lines,
          options.max_malformed_lines,
          describe,
          report_,
          row.problem.advice);
    } catch (...) {
      error_ = std::current_exception();
      return false;
    }
    return true;
  }

  std::shared_ptr<const CsvFiles> files_;
  int64_t number_;  // of this reader
  int64_t skip_;
  ReadReport report_;
  size_t file_ = std::numeric_limits<size_t>::max();
  int64_t line_ = 1;  // of the next block in its file
  std::exception_ptr error_;
  ParseTasks tasks_;
};

class CsvFileSource : public ExampleSource {
 public:
  explicit CsvFileSource(const CsvOptions& options)
      : files_(std::make_shared<CsvFiles>()) {
    check_csv(options);
    files_->options = options;
    files_->threads = checked_threads(kCsvReader, options.threads);
    for (const std::string& path : options.files) {
      add_file(path);
    }
    set_types();
  }

  std::unique_ptr<ExampleReader> open(int64_t first) const override {
    check_first(kCsvReader, first);
    return std::make_unique<CsvExampleReader>(files_, first);
  }

  std::optional<int64_t> size() const override {
    return std::nullopt;
  }

  ReadReport report() const override {
    return files_->last_report.get();
  }

  std::map<std::string, ColumnType> types() const override {
    std::map<std::string, ColumnType> types;
    for (const ColumnRequest& request : files_->requests) {
      types[request.name] = request.type;
    }
    return types;
  }

 private:
  void add_file(const std::string& path) {
    const CsvOptions& options = files_->options;
    const std::string where = where_of_file(kCsvReader, path);
    CsvFile file{
        .path = path,
        .stamp = stamp_of(kCsvReader, path),
        .names = options.names};
    if (options.names.empty()) {
      file.names = CsvBlocks(options, path, file.stamp).read_header();
    }
    if (files_->files.empty()) {
      make_requests_of(where, file.names);
    }
    file.positions = find_columns(
        where,
        file.names,
        names_of(files_->requests),
        "Correct the name, or set CsvOptions::delimiter if the columns are not split.");
    files_->files.push_back(std::move(file));
  }

  void make_requests_of(
      const std::string& where,
      const std::vector<std::string>& names) {
    const CsvOptions& options = files_->options;
    const std::vector<std::string> requested =
        requested_columns(where, options.columns, names);
    const std::string option = "[make_csv_source]";
    if (!options.types.may_name_other_columns) {
      check_keys(option, "types", options.types, requested);
    }
    check_keys(option, "list_delimiters", options.list_delimiters, requested);
    for (const std::string& name : requested) {
      const auto delimiter = options.list_delimiters.find(name);
      files_->requests.push_back(
          {.name = name,
           .list_delimiter = delimiter == options.list_delimiters.end()
               ? '\0'
               : delimiter->second});
    }
  }

  // Sets the types of all columns. Types that CsvOptions::types does not have are
  // inferred.
  void set_types() {
    std::vector<size_t> inferred;
    for (size_t i = 0; i < files_->requests.size(); ++i) {
      ColumnRequest& request = files_->requests[i];
      const auto asked = files_->options.types.find(request.name);
      if (asked == files_->options.types.end()) {
        inferred.push_back(i);
      } else {
        request.type = asked->second;
      }
    }
    if (inferred.empty()) {
      return;
    }
    const std::vector<TypeInference> inferences = infer(inferred);
    for (const size_t i : inferred) {
      files_->requests[i].type = inferences[i].type();
      files_->requests[i].style = inferences[i].style();
    }
    print_types(inferred, inferences);
  }

  // Reads about kSampleBytes of rows, and more until each column has a value. Blocks have
  // a fixed size, so that CsvOptions::block_bytes does not change the inferred types.
  std::vector<TypeInference> infer(std::vector<size_t> columns) const {
    constexpr int64_t kSampleBytes = int64_t{1} << 20;
    CsvOptions options = files_->options;
    options.block_bytes = kSampleBytes;
    std::vector<TypeInference> inferences(files_->requests.size());
    int64_t sampled = 0;
    try {
      for (size_t i = 0; i < files_->files.size() && !columns.empty(); ++i) {
        const auto rows = open_rows(options, files_->files[i]);
        CsvBlock block;
        while (!columns.empty() && rows->next(block)) {
          infer_types(
              options,
              files_->files[i],
              files_->requests,
              columns,
              block,
              inferences);
          sampled += static_cast<int64_t>(block.text.size() - block.begin);
          if (sampled >= kSampleBytes / 2) {
            std::erase_if(columns, [&](size_t column) {
              return inferences[column].has_values();
            });
          }
          if (!block.broken.empty() &&
              options.malformed_lines == MalformedLines::kError) {
            columns.clear();  // a reader fails here
          }
        }
      }
    } catch (const c10::Error&) {
      // A reader will raise this error, after the examples before it.
    }
    return inferences;
  }

  // Prints the inferred types. The same text is printed only once.
  void print_types(
      const std::vector<size_t>& inferred,
      const std::vector<TypeInference>& inferences) const {
    static std::mutex mutex;
    static std::set<std::string> printed;
    std::vector<std::string> types;
    std::vector<std::string> remarks;
    for (const size_t i : inferred) {
      const std::string name = shorten(files_->requests[i].name);
      types.push_back(name + " " + to_string(inferences[i].type()));
      if (!inferences[i].has_values()) {
        remarks.push_back("'" + name + "' has no values");
      } else if (!inferences[i].ambiguous_number().empty()) {
        remarks.push_back(fmt::format(
            "'{}' is text because '{}' as a number could equal another text",
            name,
            shorten(inferences[i].ambiguous_number())));
      }
    }
    constexpr size_t kMaxRemarks = 10;
    remarks.resize(std::min(remarks.size(), kMaxRemarks));
    std::string text = fmt::format(
        "{} Inferred types: {}.",
        where_of_file(kCsvReader, files_->files.front().path),
        shorten_all(types));
    for (const std::string& remark : remarks) {
      text += " " + remark + ".";
    }
    text +=
        " Set CsvOptions::types to choose others, or to types() of the source to keep them.\n";
    const std::lock_guard<std::mutex> lock(mutex);
    if (printed.insert(text).second) {
      std::cerr << text;
    }
  }

  std::shared_ptr<CsvFiles> files_;
};

}  // namespace

std::unique_ptr<ExampleSource> make_csv_source(const CsvOptions& options) {
  return std::make_unique<CsvFileSource>(options);
}

bool has_arrow() {
  return true;
}

}  // namespace tessera::data
