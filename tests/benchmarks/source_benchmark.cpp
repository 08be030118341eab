// SPDX-License-Identifier: Apache-2.0
// Reads a file of examples once and prints the time as JSON. compare_sources.py runs it
// in turns with pyarrow.
#include <tessera/data/csv_source.h>
#include <tessera/data/parquet_source.h>

#include <c10/util/Exception.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <chrono>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>

namespace {

using tessera::data::ExampleSource;

std::unique_ptr<ExampleSource> make_source(
    const std::string& format,
    const std::string& file,
    int64_t threads) {
  if (format == "parquet") {
    return tessera::data::make_parquet_source(
        {.files = {file}, .threads = threads});
  }
  return tessera::data::make_csv_source({.files = {file}, .threads = threads});
}

void run(const std::string& format, const std::string& file, int64_t threads) {
  const std::clock_t cores_begin = std::clock();
  const auto begin = std::chrono::steady_clock::now();
  const auto source = make_source(format, file, threads);
  const auto reader = source->open();
  int64_t examples = 0;
  while (const auto columns = reader->next()) {
    examples += columns->batch_size();
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  fmt::print(
      "{{\"examples\": {}, \"seconds\": {:.6f}, \"core_seconds\": {:.6f}}}\n",
      examples,
      seconds,
      static_cast<double>(std::clock() - cores_begin) / CLOCKS_PER_SEC);
}

}  // namespace

int main(int argc, char** argv) {
  std::string format = "parquet";
  std::string file;
  int64_t threads = 2;
  CLI::App app("Reads a file of examples once and prints the time as JSON.");
  app.add_option("--format", format, "csv or parquet")
      ->check(CLI::IsMember({"csv", "parquet"}))
      ->capture_default_str();
  app.add_option("--file", file, "the file to read")
      ->required()
      ->check(CLI::ExistingFile);
  app.add_option("--threads", threads, "threads that decode")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(format, file, threads);
  } catch (const std::exception& error) {
    fmt::print(stderr, "source_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
