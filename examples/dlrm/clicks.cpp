// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/clicks.h"

#include <tessera/data/criteo_source.h>
#include <tessera/data/csv_source.h>
#include <tessera/data/file_bytes.h>

#include <c10/util/StringUtil.h>

#include <iostream>
#include <string_view>

namespace data = tessera::data;

namespace {

ClickLogs logs_of(std::shared_ptr<const data::ExampleSource> source) {
  return {.examples = source, .report = [source] { return source->report(); }};
}

// The columns of Criteo_x1 in the order of to_columns(CriteoBatch), and their types.
data::CsvOptions criteo_x1_options() {
  using data::ColumnType;
  data::CsvOptions csv;
  const auto add = [&](const std::string& name, ColumnType type) {
    csv.columns.push_back(name);
    csv.types[name] = type;
  };
  add("label", ColumnType::kFloat32);
  for (int64_t i = 1; i <= data::kCriteoIntegers; ++i) {
    add(c10::str("I", i), ColumnType::kFloat32);
  }
  for (int64_t i = 1; i <= data::kCriteoCategories; ++i) {
    add(c10::str("C", i), ColumnType::kInt64);
  }
  return csv;
}

}  // namespace

bool is_criteo_x1(const std::string& file) {
  constexpr std::string_view kBegin = "label,I1,";
  char begin[kBegin.size()] = {};
  data::FileBytes bytes(file, "dlrm_criteo");
  size_t size = 0;
  while (size_t count = bytes.read(begin + size, sizeof(begin) - size)) {
    size += count;
  }
  return std::string_view(begin, size) == kBegin;
}

ClickLogs open_files(
    const std::vector<std::string>& files,
    const Options& options) {
  const auto malformed_lines = options.malformed == "skip"
      ? data::MalformedLines::kSkip
      : data::MalformedLines::kError;
  if (!files.empty() && is_criteo_x1(files.front())) {
    data::CsvOptions csv = criteo_x1_options();
    csv.files = files;
    csv.malformed_lines = malformed_lines;
    csv.max_malformed_lines = options.max_malformed;
    return logs_of(data::make_csv_source(csv));
  }
  return logs_of(data::make_criteo_source(
      {.files = files,
       .batch_size = options.batch,
       .malformed_lines = malformed_lines,
       .max_malformed_lines = options.max_malformed}));
}

void report_skipped(const data::ReadReport& report) {
  for (const std::string& line : report.first_malformed_lines) {
    std::cerr << "skipped " << line << "\n";
  }
  if (report.malformed_lines > 0) {
    std::cerr << report.malformed_lines << " lines skipped\n";
  }
}
