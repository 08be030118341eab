// SPDX-License-Identifier: Apache-2.0
// Compares training steps of a key table and of a table with a vocabulary of the same
// size: lookup, backward pass and Adagrad. Both get the same ids, which have a Zipf
// distribution, with a new batch in each step, and take turns.
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/tables/instruction_set.h>

#include "src/common/parallel.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace {

using tessera::TPUEmbedding;

struct Options {
  int64_t keys = 10'000'000;
  int64_t dim = 64;
  int64_t batch = 65'536;
  int64_t steps = 40;
  int64_t new_percent = 0;
};

// Spread over all of int64.
int64_t key_of(int64_t id) {
  return static_cast<int64_t>(
      static_cast<uint64_t>(id) * 0xD1342543DE82EF95ULL);
}

TPUEmbedding make_layer(const Options& options, bool with_keys) {
  tessera::TableConfig table{
      .name = "t",
      .vocabulary_size = with_keys ? 0 : options.keys,
      .dim = options.dim,
      .initializer = tessera::initializers::Uniform{}};
  if (with_keys) {
    // A vocabulary takes its memory beforehand, too.
    table.keys =
        tessera::DynamicKeys{.capacity = options.keys, .preallocate = true};
  }
  return TPUEmbedding(tessera::TPUEmbeddingOptions{
      .features =
          {{"id", tessera::FeatureConfig{.table = tessera::make_table(table)}}},
      .optimizer = tessera::optim::Adagrad{.learning_rate = 0.01}});
}

double step_ms(
    TPUEmbedding& layer,
    const at::Tensor& ids,
    const at::Tensor& gradient) {
  const auto start = std::chrono::steady_clock::now();
  layer->forward({{"id", ids}})["id"].backward(gradient);
  return std::chrono::duration<double, std::milli>(
             std::chrono::steady_clock::now() - start)
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void run(const Options& options) {
  TPUEmbedding known = make_layer(options, false);
  TPUEmbedding keyed = make_layer(options, true);
  const at::Tensor gradient =
      at::full({options.batch, options.dim}, 0.001, at::kFloat);
  const at::Tensor ids = at::empty({options.batch}, at::kLong);
  const at::Tensor keys = at::empty({options.batch}, at::kLong);
  auto* id = ids.mutable_data_ptr<int64_t>();
  auto* key = keys.mutable_data_ptr<int64_t>();
  // Gives each id a row.
  for (int64_t begin = 0; begin < options.keys; begin += options.batch) {
    for (int64_t i = 0; i < options.batch; ++i) {
      id[i] = (begin + i) % options.keys;
      key[i] = key_of(id[i]);
    }
    step_ms(known, ids, gradient);
    step_ms(keyed, keys, gradient);
  }
  std::mt19937_64 random(1);
  std::vector<double> known_ms;
  std::vector<double> keyed_ms;
  int64_t next_new = options.keys;
  for (int64_t step = 0; step < options.steps; ++step) {
    for (int64_t i = 0; i < options.batch; ++i) {
      const double u = std::uniform_real_distribution<>(0.0, 1.0)(random);
      // The density of a Zipf distribution with exponent 1. Frequent ids are spread over
      // the table.
      const auto rank =
          static_cast<int64_t>(std::pow(static_cast<double>(options.keys), u));
      id[i] = static_cast<int64_t>(
          static_cast<uint64_t>(rank) * 0x9E3779B97F4A7C15ULL %
          static_cast<uint64_t>(options.keys));
      const bool is_new =
          static_cast<int64_t>(random() % 100) < options.new_percent;
      key[i] = key_of(is_new ? next_new++ : id[i]);
    }
    if (step % 2 == 0) {
      known_ms.push_back(step_ms(known, ids, gradient));
      keyed_ms.push_back(step_ms(keyed, keys, gradient));
    } else {
      keyed_ms.push_back(step_ms(keyed, keys, gradient));
      known_ms.push_back(step_ms(known, ids, gradient));
    }
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < known_ms.size(); ++i) {
    ratios.push_back(keyed_ms[i] / known_ms[i]);
  }
  fmt::print(
      "step with Adagrad, {} rows of {} floats, {} ids per batch, {} % new keys, {} threads, {}\n"
      "  vocabulary {:8.3f} ms\n"
      "  keys       {:8.3f} ms, {:.2f} times as long (median of {} steps)\n",
      options.keys,
      options.dim,
      options.batch,
      options.new_percent,
      at::get_num_threads(),
      tessera::instruction_set(),
      median(known_ms),
      median(keyed_ms),
      median(ratios),
      options.steps);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Compares training steps of a key table and of one with a vocabulary.");
  app.add_option("--keys", options.keys, "rows of the tables")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
      ->capture_default_str();
  app.add_option("--dim", options.dim, "floats per row")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--batch", options.batch, "ids per step")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "steps whose median is printed")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option(
         "--new",
         options.new_percent,
         "percent of new keys, which evict others")
      ->check(CLI::Range(0, 100))
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  run(options);
  return 0;
}
