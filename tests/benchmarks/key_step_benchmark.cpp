// SPDX-License-Identifier: Apache-2.0
// Compares training steps of a key table and of a table with a vocabulary of the same
// size: lookup, backward pass and Adagrad. Both get the same ids, which have a Zipf
// distribution, with a new batch in each step, and take turns.
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "tests/benchmarks/torch_benchmark.h"

namespace {

using tessera::TPUEmbedding;

struct Options : BenchmarkOptions {
  int64_t& keys = integer(
      "--keys",
      10'000'000,
      "rows of the tables",
      up_to(int64_t{1} << 31));
  int64_t& dim = integer("--dim", 64, "floats per row");
  int64_t& batch = integer("--batch", 65'536, "ids per step");
  int64_t& steps = integer("--steps", 40, "steps whose median is printed");
  int64_t& new_percent = integer(
      "--new",
      0,
      "percent of new keys, which evict others",
      up_to(100, 0));
  std::string& eviction = text(
      "--eviction",
      "lfu: the least frequent keys lose their rows, lru: the oldest",
      "lfu",
      CLI::IsMember({"lfu", "lru"}));
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
    if (options.eviction == "lru") {
      table.keys->eviction = tessera::eviction::LeastRecentlyUsed{};
    } else {
      table.keys->eviction = tessera::eviction::LeastFrequentlyUsed{};
    }
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
  const Stopwatch watch;
  layer->forward({{"id", ids}})["id"].backward(gradient);
  return watch.ms();
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
    for (const size_t side : turns(step, 2)) {
      if (side == 0) {
        known_ms.push_back(step_ms(known, ids, gradient));
      } else {
        keyed_ms.push_back(step_ms(keyed, keys, gradient));
      }
    }
  }
  std::vector<double> ratios;
  for (size_t i = 0; i < known_ms.size(); ++i) {
    ratios.push_back(keyed_ms[i] / known_ms[i]);
  }
  fmt::print(
      "step with Adagrad, {} rows of {} floats, {} ids per batch, {} % new keys, {}, {}\n"
      "  vocabulary {:8.3f} ms\n"
      "  keys       {:8.3f} ms, {:.2f} times as long (median of {} steps)\n",
      options.keys,
      options.dim,
      options.batch,
      options.new_percent,
      options.eviction,
      machine(),
      median(known_ms),
      median(keyed_ms),
      median(ratios),
      options.steps);
}

}  // namespace

TESSERA_BENCHMARK(
    "Compares training steps of a key table and of one with a vocabulary.",
    run)
