// SPDX-License-Identifier: Apache-2.0
// Measures how much of a lookup can be hidden behind dense work that takes as long: a
// step with Pipelining::kOn, and a training step with prefetch(). Both are compared with
// the same steps without overlap, with the threads of one side and of both. Prints one
// JSON line each.
#include <tessera/engine/embedding_engine.h>
#include <tessera/layers/prefetch.h>
#include <tessera/optim/optimizers/sgd.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

namespace {

using namespace tessera;

struct Options {
  int64_t tables = 4;
  int64_t rows = 2'000'000;  // 2 GB in total, more than any last-level cache
  int64_t dim = 64;
  int64_t batch = 4096;
  int64_t bag = 20;
  int64_t threads =
      std::max<int64_t>(1, std::thread::hardware_concurrency() / 2);
  int steps = 30;
};

double seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

// Returns the median of `count` runs in ms, after two runs that are not counted.
double median_ms(int count, const std::function<void()>& run) {
  std::vector<double> times;
  for (int i = 0; i < count + 2; ++i) {
    const double start = seconds();
    run();
    times.push_back(1e3 * (seconds() - start));
  }
  times.erase(times.begin(), times.begin() + 2);
  std::nth_element(times.begin(), times.begin() + count / 2, times.end());
  return times[count / 2];
}

// A matrix product of the size that takes `ms`.
class DenseWork {
 public:
  explicit DenseWork(double ms) {
    constexpr int kTries = 4;
    for (int i = 0; i < kTries; ++i) {
      b_ = at::randn({kSize, columns_});
      const double took = median_ms(7, *this);
      columns_ = std::max<int64_t>(
          16, static_cast<int64_t>(static_cast<double>(columns_) * ms / took));
    }
    b_ = at::randn({kSize, columns_});
  }

  void operator()() const {
    at::mm(a_, b_);
  }

 private:
  static constexpr int64_t kSize = 512;
  at::Tensor a_ = at::randn({kSize, kSize});
  int64_t columns_ = 512;
  at::Tensor b_;
};

class Overlap {
 public:
  explicit Overlap(const Options& options) : options_(options) {
    Nest<FeatureConfig>::Map features;
    for (int64_t i = 0; i < options.tables; ++i) {
      features.emplace_back(
          std::to_string(i),
          FeatureConfig{
              .table = make_table(
                  {.vocabulary_size = options.rows,
                   .dim = options.dim,
                   .combiner = Combiner::kSum,
                   .initializer = initializers::Constant{0.01}})});
    }
    configs_ = Nest<FeatureConfig>::map(std::move(features));
    for (int i = 0; i < 8; ++i) {
      batches_.push_back(random_batch());
    }
  }

  Json engine() {
    EmbeddingEngine engine(
        {.features = configs_,
         .optimizer = optim::SGD{},
         .pipelining = Pipelining::kOn,
         .lookup_threads = options_.threads});
    const auto lookup = [&] {
      engine.enqueue(next(), {}, {.training = false});
      engine.dequeue();
    };
    const double lookup_ms = median_ms(options_.steps, lookup);
    const DenseWork dense(lookup_ms);
    const double dense_ms = median_ms(options_.steps, dense);
    const auto in_a_row = [&] {
      lookup();
      dense();
    };
    const double in_a_row_ms = median_ms(options_.steps, in_a_row);
    const double all_cores_ms = on_all_cores(in_a_row);
    // There are no gradients, so this is only lookup and dense work.
    engine.enqueue(next());
    const double overlapped_ms = median_ms(options_.steps, [&] {
      engine.enqueue(next());
      engine.dequeue();
      dense();
      engine.drop();
    });
    return result(
        "engine",
        {lookup_ms, dense_ms, in_a_row_ms, all_cores_ms, overlapped_ms});
  }

  // Lookup, dense work, backward and update.
  Json training() {
    TPUEmbedding layer(TPUEmbeddingOptions{
        .features = configs_,
        .optimizer = optim::SGD{},
        .strategy = Strategy::fused({.lookup_threads = options_.threads})});
    const double lookup_ms = median_ms(options_.steps, [&] {
      const at::NoGradGuard no_grad;
      layer->forward(next());
    });
    const DenseWork dense(lookup_ms);
    const double dense_ms = median_ms(options_.steps, dense);
    const auto train = [&](const Nest<at::Tensor>& activations) {
      dense();
      at::Tensor loss = activations["0"].sum();
      for (int64_t i = 1; i < options_.tables; ++i) {
        loss = loss + activations[std::to_string(i)].sum();
      }
      loss.backward();
    };
    const auto in_a_row = [&] { train(layer->forward(next())); };
    const double in_a_row_ms = median_ms(options_.steps, in_a_row);
    const double all_cores_ms = on_all_cores(in_a_row);
    std::vector<int> source(options_.steps + 3);
    auto range = prefetch(source, layer, [&](int) { return next(); });
    auto item = range.begin();
    const double overlapped_ms = median_ms(options_.steps, [&] {
      train(item->activations);
      ++item;
    });
    return result(
        "training step",
        {lookup_ms, dense_ms, in_a_row_ms, all_cores_ms, overlapped_ms});
  }

 private:
  Features random_batch() const {
    Features::Map features;
    for (int64_t i = 0; i < options_.tables; ++i) {
      features.emplace_back(
          std::to_string(i),
          RaggedFeature::from_lengths(
              at::randint(
                  options_.rows, {options_.batch * options_.bag}, at::kLong),
              at::full({options_.batch}, options_.bag, at::kLong)));
    }
    return Features::map(std::move(features));
  }

  const Features& next() {
    return batches_[step_++ % batches_.size()];
  }

  // A program without pipelining could use the threads of both sides.
  double on_all_cores(const std::function<void()>& run) const {
    at::set_num_threads(static_cast<int>(2 * options_.threads));
    const double ms = median_ms(options_.steps, run);
    at::set_num_threads(static_cast<int>(options_.threads));
    return ms;
  }

  struct Times {
    double lookup_ms;
    double dense_ms;
    double in_a_row_ms;
    double in_a_row_on_all_cores_ms;
    double overlapped_ms;
  };

  Json result(const char* what, const Times& times) const {
    return {
        {"what", what},
        {"threads_each", options_.threads},
        {"lookup_ms", times.lookup_ms},
        {"dense_ms", times.dense_ms},
        {"in_a_row_ms", times.in_a_row_ms},
        {"in_a_row_on_all_cores_ms", times.in_a_row_on_all_cores_ms},
        {"overlapped_ms", times.overlapped_ms},
        {"ratio", times.overlapped_ms / times.in_a_row_ms}};
  }

  const Options& options_;
  Nest<FeatureConfig> configs_;
  std::vector<Features> batches_;
  size_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times lookups during dense work that takes as long.");
  app.add_option("--rows", options.rows, "rows of each of the four tables")
      ->check(CLI::PositiveNumber);
  app.add_option("--batch", options.batch)->check(CLI::PositiveNumber);
  app.add_option(
         "--threads",
         options.threads,
         "threads of each side; default: half of the cores")
      ->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    at::set_num_threads(static_cast<int>(options.threads));
    Overlap overlap(options);
    std::cout << overlap.engine().dump() << std::endl;
    std::cout << overlap.training().dump() << std::endl;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
