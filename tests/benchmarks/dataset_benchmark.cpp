// SPDX-License-Identifier: Apache-2.0
// Measures how fast a Dataset in memory gives batches: ten numeric columns and one with
// lists, in order, shuffled, and with negatives.
#include <tessera/data/dataset.h>
#include <tessera/data/negative_sampling.h>

#include "tests/benchmarks/torch_benchmark.h"

namespace {

using tessera::data::Batches;
using tessera::data::Columns;
using tessera::data::Dataset;

struct Options : BenchmarkOptions {
  int64_t& examples = integer("--examples", 4'000'000, "number of examples");
  int64_t& batch = integer("--batch", 4096, "examples per batch");
  int64_t& buffer =
      integer("--buffer", 1'000'000, "examples in a smaller buffer");
  int64_t& reps = integer("--reps", 5, "epochs; the median is shown");
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
    const Stopwatch watch;
    int64_t examples = 0;
    for (const Columns& batch : batches(epoch)) {
      examples += batch.batch_size();
    }
    speeds.push_back(static_cast<double>(examples) / watch.seconds());
  }
  fmt::print("{:32} {:12.0f} examples/s\n", what, median(speeds));
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

TESSERA_BENCHMARK("Measures how fast a Dataset in memory gives batches.", run)
