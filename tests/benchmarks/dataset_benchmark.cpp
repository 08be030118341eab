// SPDX-License-Identifier: Apache-2.0
// Measures how fast a Dataset in memory gives batches: ten numeric columns and one with
// lists, in order, shuffled, and with negatives.
#include <tessera/data/dataset.h>
#include <tessera/data/negative_sampling.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace {

using tessera::data::Batches;
using tessera::data::Columns;
using tessera::data::Dataset;

struct Options {
  int64_t examples = 4'000'000;
  int64_t batch = 4096;
  int64_t buffer = 1'000'000;
  int64_t reps = 5;
};

Columns make_columns(int64_t examples) {
  auto generator = at::detail::createCPUGenerator(1);
  Columns columns;
  for (int i = 0; i < 5; ++i) {
    columns.add(
        fmt::format("float {}", i),
        {.values = at::rand({examples}, generator, at::kFloat)});
    columns.add(
        fmt::format("integer {}", i),
        {.values = at::randint(0, 100'000, {examples}, generator, at::kLong)});
  }
  // Three values on average.
  at::Tensor splits = at::zeros({examples + 1}, at::kLong);
  const at::Tensor lengths =
      at::randint(0, 7, {examples}, generator, at::kLong);
  splits.narrow(0, 1, examples).copy_(lengths.cumsum(0));
  columns.add(
      "list",
      {.values = at::randint(
           0,
           100'000,
           {splits[examples].item<int64_t>()},
           generator,
           at::kLong),
       .row_splits = splits});
  return columns;
}

// Prints the median speed of an epoch.
void measure(
    const Options& options,
    const std::string& what,
    const Batches& batches) {
  std::vector<double> speeds;
  for (int64_t epoch = 0; epoch < options.reps; ++epoch) {
    const auto begin = std::chrono::steady_clock::now();
    int64_t examples = 0;
    for (const Columns& batch : batches(epoch)) {
      examples += batch.batch_size();
    }
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
            .count();
    speeds.push_back(static_cast<double>(examples) / seconds);
  }
  std::sort(speeds.begin(), speeds.end());
  fmt::print("{:32} {:12.0f} examples/s\n", what, speeds[speeds.size() / 2]);
}

void run(const Options& options) {
  const Dataset dataset(make_columns(options.examples));
  const auto batches = [&](const Dataset& examples) {
    return examples.batch({.size = options.batch});
  };
  const Dataset all = dataset.shuffle({.buffer = options.examples});
  const Dataset blocks = dataset.shuffle({.buffer = options.buffer});
  fmt::print(
      "{} examples of 11 columns, batches of {}, median of {}\n",
      options.examples,
      options.batch,
      options.reps);
  measure(options, "in order", batches(dataset));
  measure(options, "shuffle", batches(all));
  measure(options, "shuffle, prefetch", batches(all).prefetch(2));
  measure(
      options, fmt::format("shuffle of {}", options.buffer), batches(blocks));
  const tessera::data::NegativeSampler negatives(
      dataset,
      {.item = "integer 0",
       .distribution = tessera::data::NegativeDistribution::kPopularity,
       .num_negatives = 4});
  measure(options, "shuffle, 4 negatives", batches(all).map(negatives));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures how fast a Dataset in memory gives batches.");
  app.add_option("--examples", options.examples, "number of examples")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "examples per batch")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--buffer", options.buffer, "examples in a smaller buffer")
      ->check(CLI::Range(1, 1'000'000'000))
      ->capture_default_str();
  app.add_option("--reps", options.reps, "epochs; the median is shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "dataset_benchmark: {}\n", error.what());
    return 1;
  }
  return 0;
}
