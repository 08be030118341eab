// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/criteo_source.h>

#include <tessera/data/line_source.h>

#include "packages/data/src/reader_checks.h"
#include "src/common/check.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace tessera::data {

namespace {

// The line of an example of the shard, counted from 0 over all files.
int64_t line_of_example(const CriteoReaderOptions& options, int64_t example) {
  const CriteoReaderOptions::Shard& shard = options.shard;
  const int64_t in_group = options.start_line % shard.count;
  return options.start_line +
      (shard.index - in_group + shard.count) % shard.count +
      example * shard.count;
}

CriteoReaderOptions starting_at(CriteoReaderOptions options, int64_t first) {
  if (first > 0 && options.malformed_lines == MalformedLines::kError) {
    options.start_line = line_of_example(options, first);
  }
  return options;
}

class CriteoExampleReader : public ExampleReader {
 public:
  CriteoExampleReader(
      const CriteoReaderOptions& options,
      int64_t first,
      std::shared_ptr<LastReport> report)
      : reader_(starting_at(options, first)),
        to_skip_(options.malformed_lines == MalformedLines::kError ? 0 : first),
        first_(first),
        report_(std::move(report)),
        number_(report_->begin()) {}

  std::optional<Columns> next() override {
    while (!is_ended_) {
      std::optional<CriteoBatch> batch = read();
      report_->set(number_, reader_.report());
      if (!batch) {
        is_ended_ = true;
        break;
      }
      const int64_t size = batch->labels.numel();
      const int64_t skipped = std::min(size, to_skip_);
      to_skip_ -= skipped;
      if (skipped < size) {
        return to_columns(
            {.labels = batch->labels.slice(0, skipped),
             .integers = batch->integers.slice(0, skipped),
             .categories = batch->categories.slice(0, skipped)});
      }
    }
    return std::nullopt;
  }

 private:
  std::optional<CriteoBatch> read() {
    try {
      return reader_.next();
    } catch (const LineSource::StartAfterEnd&) {
      if (first_ == 0) {
        throw;  // the start_line of the user is too large
      }
      return std::nullopt;
    }
  }

  CriteoReader reader_;
  int64_t to_skip_;
  int64_t first_;
  bool is_ended_ = false;
  std::shared_ptr<LastReport> report_;
  int64_t number_;  // of this reader
};

class CriteoFiles : public ExampleSource {
 public:
  explicit CriteoFiles(CriteoReaderOptions options)
      : options_(std::move(options)) {}

  std::unique_ptr<ExampleReader> open(int64_t first) const override {
    check_first("make_criteo_source", first);
    return std::make_unique<CriteoExampleReader>(options_, first, report_);
  }

  std::optional<int64_t> size() const override {
    return std::nullopt;
  }

  ReadReport report() const override {
    return report_->get();
  }

 private:
  CriteoReaderOptions options_;
  std::shared_ptr<LastReport> report_ = std::make_shared<LastReport>();
};

}  // namespace

std::unique_ptr<ExampleSource> make_criteo_source(
    const CriteoReaderOptions& options) {
  TESSERA_CHECK_VALUE(
      !options.drop_last,
      "[make_criteo_source] drop_last must be false, because a source gives all examples. Drop the last examples when you make batches.");
  validate(options);
  for (const std::string& file : options.files) {
    check_regular_file("make_criteo_source", file);
  }
  return std::make_unique<CriteoFiles>(options);
}

}  // namespace tessera::data
