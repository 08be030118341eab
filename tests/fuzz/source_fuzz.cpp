// SPDX-License-Identifier: Apache-2.0
// Fuzzes the readers of CSV and Parquet files. Whatever the bytes are, a reader
// must return examples or throw a c10::Error, and the blocks in which CSV is parsed must
// not change the result.
#include "packages/data/tests/arrow_files.h"
#include "packages/data/tests/source_examples.h"
#include "tests/fuzz/fuzz_util.h"

#include <tessera/data/csv_source.h>
#include <tessera/data/parquet_source.h>

#include <c10/util/StringUtil.h>

#include <sstream>

namespace tessera::test {
namespace {

// All examples before the end or the error, and the number of skipped rows.
struct CsvResult {
  std::vector<std::string> columns = {};
  bool is_complete = false;
  int64_t malformed = 0;

  bool operator==(const CsvResult&) const = default;

  std::string text() const {
    std::string text = c10::str(
        is_complete ? "complete" : "an error after",
        ", ",
        malformed,
        " malformed\n");
    for (const std::string& column : columns) {
      text += column + "\n";
    }
    return text;
  }
};

CsvResult read_csv(const data::CsvOptions& options) {
  CsvResult result;
  result.is_complete = succeeds([&] {
    const auto source = data::make_csv_source(options);
    const auto reader = source->open();
    std::vector<test::ShownColumn> columns;
    const bool is_complete =
        succeeds([&] { test::add_rest(*reader, columns); });
    for (const test::ShownColumn& column : columns) {
      result.columns.push_back(column.text());
    }
    result.malformed = source->report().malformed_lines;
    TORCH_CHECK(is_complete);
  });
  return result;
}

void fuzz_csv(FuzzedDataProvider& data) {
  constexpr data::ColumnType kTypes[] = {
      data::ColumnType::kInt64,
      data::ColumnType::kFloat32,
      data::ColumnType::kText,
      data::ColumnType::kUInt64Bits};
  data::CsvOptions options{.threads = 1};
  for (const char* name : {"a", "b"}) {
    options.names.push_back(name);
    options.types[name] = kTypes[data.ConsumeIntegralInRange(0, 2)];
    if (data.ConsumeBool()) {
      options.list_delimiters[name] = '|';
    }
  }
  if (data.ConsumeBool()) {
    options.malformed_lines = data::MalformedLines::kSkip;
  }
  if (data.ConsumeBool()) {
    options.quote = '\0';
  }
  if (data.ConsumeBool()) {
    options.max_row_bytes = data.ConsumeIntegralInRange(1, 64);
  }
  data::CsvOptions blocks = options;
  blocks.threads = data.ConsumeIntegralInRange(1, 3);
  blocks.block_bytes = data.ConsumeIntegralInRange(1, 64);
  const ScratchFile file(data.ConsumeRemainingBytesAsString());
  options.files = {file.path()};
  blocks.files = {file.path()};
  const CsvResult whole = read_csv(options);
  const CsvResult split = read_csv(blocks);
  require(
      whole == split,
      c10::str(
          "blocks of ",
          blocks.block_bytes,
          " bytes change a CSV file from\n",
          whole.text(),
          "to\n",
          split.text()));
}

std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// Changes some bytes of an intact file, or cuts it off.
std::string damaged(FuzzedDataProvider& data, std::string bytes) {
  if (data.ConsumeBool()) {
    bytes.resize(data.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1));
  }
  for (int i = data.ConsumeIntegralInRange(0, 8); i > 0 && !bytes.empty();
       --i) {
    const size_t index =
        data.ConsumeIntegralInRange<size_t>(0, bytes.size() - 1);
    bytes[index] =
        static_cast<char>(bytes[index] ^ data.ConsumeIntegral<uint8_t>());
  }
  return bytes;
}

void fuzz_parquet(FuzzedDataProvider& data) {
  static const std::string intact = [] {
    const ScratchFile file("");
    test::write_parquet(file.path(), test::numbered_table(100), 30);
    return bytes_of(file.path());
  }();
  const ScratchFile file(damaged(data, intact));
  succeeds([&] {
    test::show_all(*data::make_parquet_source({.files = {file.path()}}));
  });
}

}  // namespace
}  // namespace tessera::test

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  FuzzedDataProvider data(bytes, size);
  switch (data.ConsumeIntegralInRange(0, 2)) {
    case 0:
      tessera::test::fuzz_parquet(data);
      break;
    default:
      tessera::test::fuzz_csv(data);
  }
  return 0;
}
