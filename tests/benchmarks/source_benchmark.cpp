// SPDX-License-Identifier: Apache-2.0
// Reads a file of examples once and prints the time as JSON. compare_sources.py runs it
// in turns with pyarrow.
#include <tessera/data/csv_source.h>
#include <tessera/data/parquet_source.h>

#include "tests/benchmarks/torch_benchmark.h"

namespace {

using tessera::data::ExampleSource;

struct Options : BenchmarkOptions {
  std::string& format = text(
      "--format",
      "csv or parquet",
      "parquet",
      CLI::IsMember({"csv", "parquet"}));
  std::string& file = text("--file", "the file to read", "", CLI::ExistingFile);
  int64_t& threads =
      integer("--threads", 2, "threads that decode", up_to(1024));

  Options() {
    get_option("--file")->required();
  }
};

std::unique_ptr<ExampleSource> make_source(const Options& options) {
  if (options.format == "parquet") {
    return tessera::data::make_parquet_source(
        {.files = {options.file}, .threads = options.threads});
  }
  return tessera::data::make_csv_source(
      {.files = {options.file}, .threads = options.threads});
}

void run(const Options& options) {
  const Stopwatch watch;
  const auto source = make_source(options);
  const auto reader = source->open();
  int64_t examples = 0;
  while (const auto columns = reader->next()) {
    examples += columns->batch_size();
  }
  fmt::print(
      "{{\"examples\": {}, \"seconds\": {:.6f}, \"core_seconds\": {:.6f}}}\n",
      examples,
      watch.seconds(),
      watch.core_seconds());
}

}  // namespace

TESSERA_BENCHMARK(
    "Reads a file of examples once and prints the time as JSON.",
    run)
