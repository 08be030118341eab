// SPDX-License-Identifier: Apache-2.0
// Measures the speed of the reader of click logs: the parser alone, plain files and gzip
// files, in wall time and in the CPU time of all threads.
#include "examples/click_logs/criteo_generator.h"
#include "packages/data/src/criteo_line.h"
#include "tests/benchmarks/torch_benchmark.h"
#include "tests/temporary_folder.h"

#include <tessera/data/criteo_reader.h>

namespace {

namespace fs = std::filesystem;

struct Options : BenchmarkOptions {
  std::string& file = text(
      "--file",
      "click log to read; without it, one is generated",
      "",
      CLI::ExistingFile);
  int64_t& examples = integer("--examples", 1'000'000, "examples to generate");
  int64_t& batch = integer("--batch", 4096, "examples per batch");
  std::vector<int64_t>& threads = option<std::vector<int64_t>>(
      "--threads",
      {1, 2},
      "numbers of parsing threads; one more reads and inflates",
      up_to(1024));
  int64_t& reps = integer("--reps", 5, "repetitions; the median is shown");
};

struct Measurement {
  double seconds = 0.0;
  double core_seconds = 0.0;  // sum over all threads
  int64_t bytes = 0;
  int64_t examples = 0;
};

// Times `work`, which returns the numbers of bytes and examples.
Measurement measure(int64_t reps, const auto& work) {
  std::vector<double> seconds;
  std::vector<double> core_seconds;
  Measurement result;
  for (int64_t i = 0; i < reps; ++i) {
    const Stopwatch watch;
    work(result);
    seconds.push_back(watch.seconds());
    core_seconds.push_back(watch.core_seconds());
  }
  result.seconds = median(seconds);
  result.core_seconds = median(core_seconds);
  return result;
}

void report(const std::string& what, const Measurement& measured) {
  const double megabytes = static_cast<double>(measured.bytes) / 1e6;
  fmt::print(
      "{:24} {:8.1f} MB/s {:10.0f} examples/s {:8.2f} ms of a core per MB\n",
      what,
      megabytes / measured.seconds,
      static_cast<double>(measured.examples) / measured.seconds,
      1e3 * measured.core_seconds / megabytes);
}

// Parses the text on this thread, always into the same few rows.
void parse_text(const std::string& text, Measurement& result) {
  constexpr int64_t kRows = 1000;
  constexpr int64_t kStride = 1032;
  std::vector<float> labels(kStride);
  std::vector<int64_t> integers(tessera::data::kCriteoIntegers * kStride);
  std::vector<int64_t> categories(tessera::data::kCriteoCategories * kStride);
  const tessera::data::CriteoRows rows{
      .labels = labels.data(),
      .integers = integers.data(),
      .categories = categories.data(),
      .stride = kStride};
  result.bytes =
      static_cast<int64_t>(text.size() - tessera::data::kCriteoPadding);
  result.examples = 0;
  const char* end = text.data() + result.bytes;
  for (const char* line = text.data(); line < end; ++result.examples) {
    line =
        tessera::data::parse_criteo_line(line, result.examples % kRows, rows);
    TORCH_CHECK(line != nullptr, "malformed line ", result.examples + 1);
  }
}

void read_file(
    const Options& options,
    const std::string& file,
    int64_t threads,
    Measurement& result) {
  tessera::data::CriteoReader reader(
      {.files = {file}, .batch_size = options.batch, .threads = threads});
  while (reader.next().has_value()) {
  }
  result.bytes = reader.report().bytes;
  result.examples = reader.report().examples;
}

void measure_reader(
    const Options& options,
    const std::string& file,
    const std::string& what) {
  for (const int64_t threads : options.threads) {
    report(
        fmt::format("{}, {} parsing", what, threads),
        measure(options.reps, [&](Measurement& result) {
          read_file(options, file, threads, result);
        }));
  }
}

void run(const Options& options) {
  if (!options.file.empty()) {
    measure_reader(options, options.file, "file");
    return;
  }
  const tessera::test::TemporaryFolder folder;
  const std::string plain = folder / "clicks";
  const std::string gzip = plain + ".gz";
  const click_logs::CriteoGenerator generator({.examples = options.examples});
  generator.write(plain);
  generator.write(gzip);
  fmt::print(
      "{} examples, {} MB, gzip {} MB, batches of {}, median of {}\n",
      options.examples,
      fs::file_size(plain) / 1'000'000,
      fs::file_size(gzip) / 1'000'000,
      options.batch,
      options.reps);
  {
    std::string text = tessera::test::read_text(plain);
    text.append(tessera::data::kCriteoPadding, '\0');
    report("parser alone", measure(options.reps, [&](Measurement& result) {
             parse_text(text, result);
           }));
  }
  measure_reader(options, plain, "plain");
  measure_reader(options, gzip, "gzip");
}

}  // namespace

TESSERA_BENCHMARK("Measures how fast click logs are read.", run)
