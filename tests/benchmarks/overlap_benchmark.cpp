// SPDX-License-Identifier: Apache-2.0
// Measures how much of a lookup can be hidden behind dense work that takes as long: a
// step with Pipelining::kOn, and a training step with prefetch(). Both are compared with
// the same steps without overlap, with the threads of one side and of both. Prints one
// JSON line each.
#include <tessera/engine/embedding_engine.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/sgd.h>

#include "tests/benchmarks/random_lookups.h"
#include "tests/benchmarks/torch_benchmark.h"

namespace {

using namespace tessera;

struct Options : BenchmarkOptions {
  int64_t& rows =  // 2 GB in total, more than any last-level cache
      integer("--rows", 2'000'000, "rows of each of the four tables");
  int64_t& batch = integer("--batch", 4096);
  int64_t& threads = integer(
      "--threads",
      std::max<int64_t>(1, std::thread::hardware_concurrency() / 2),
      "threads of each side; default: half of the cores");
  int64_t& steps = integer("--steps", 30);
};

class Overlap {
 public:
  explicit Overlap(const Options& options)
      : options_(options),
        lookups_{
            .tables = 4,
            .rows = options.rows,
            .dim = 64,
            .batch = options.batch,
            .bag = 20} {
    for (int i = 0; i < 8; ++i) {
      batches_.push_back(lookups_.draw());
    }
  }

  Json engine() {
    EmbeddingEngine engine(
        {.features = lookups_.configs(),
         .optimizer = optim::SGD{},
         .pipelining = Pipelining::kOn,
         .lookup_threads = options_.threads});
    const auto lookup = [&] {
      engine.enqueue(next(), {}, {.training = false});
      engine.dequeue();
    };
    return measure(
        "engine",
        lookup,
        [&](const DenseWork& dense) {
          lookup();
          dense();
        },
        [&](const DenseWork& dense) {
          // There are no gradients, so this is only lookup and dense work.
          engine.enqueue(next());
          return median_ms(options_.steps, [&] {
            engine.enqueue(next());
            engine.dequeue();
            dense();
            engine.drop();
          });
        });
  }

  // Lookup, dense work, backward and update.
  Json training() {
    TPUEmbedding layer(TPUEmbeddingOptions{
        .features = lookups_.configs(),
        .optimizer = optim::SGD{},
        .strategy = Strategy::fused({.lookup_threads = options_.threads})});
    const auto lookup = [&] {
      const at::NoGradGuard no_grad;
      layer->forward(next());
    };
    const auto train = [](const DenseWork& dense,
                          const Nest<at::Tensor>& activations) {
      dense();
      sum_of(activations).backward();
    };
    return measure(
        "training step",
        lookup,
        [&](const DenseWork& dense) { train(dense, layer->forward(next())); },
        [&](const DenseWork& dense) {
          return prefetched_ms(
              options_.steps,
              layer,
              [&] { return next(); },
              [&](const auto& activations) { train(dense, activations); });
        });
  }

 private:
  const Features& next() {
    return batches_[step_++ % batches_.size()];
  }

  Json measure(
      const char* what,
      const std::function<void()>& lookup,
      const std::function<void(const DenseWork&)>& run_in_a_row,
      const std::function<double(const DenseWork&)>& measure_overlapped) {
    const double lookup_ms = median_ms(options_.steps, lookup);
    const DenseWork dense(lookup_ms);
    const double dense_ms = median_ms(options_.steps, dense);
    const auto in_a_row = [&] { run_in_a_row(dense); };
    const double in_a_row_ms = median_ms(options_.steps, in_a_row);
    // A program without pipelining could use the threads of both sides.
    at::set_num_threads(static_cast<int>(2 * options_.threads));
    const double on_all_cores_ms = median_ms(options_.steps, in_a_row);
    at::set_num_threads(static_cast<int>(options_.threads));
    const double overlapped_ms = measure_overlapped(dense);
    return {
        {"what", what},
        {"threads_each", options_.threads},
        {"lookup_ms", lookup_ms},
        {"dense_ms", dense_ms},
        {"in_a_row_ms", in_a_row_ms},
        {"in_a_row_on_all_cores_ms", on_all_cores_ms},
        {"overlapped_ms", overlapped_ms},
        {"ratio", overlapped_ms / in_a_row_ms}};
  }

  const Options& options_;
  RandomLookups lookups_;
  std::vector<Features> batches_;
  size_t step_ = 0;
};

void run(const Options& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  Overlap overlap(options);
  std::cout << overlap.engine().dump() << std::endl;
  std::cout << overlap.training().dump() << std::endl;
}

}  // namespace

TESSERA_BENCHMARK("Times lookups during dense work that takes as long.", run)
