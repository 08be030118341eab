// SPDX-License-Identifier: Apache-2.0
// Measures steps of a sharded layer on several ranks: how much of a lookup's exchange
// prefetch() hides behind dense work that takes as long, how many bytes each rank sends,
// and what the cost model of docs/distributed.md predicts. Rank 0 prints one JSON line.
//
// Ranks on one machine communicate through its memory. With --latency-us and --gbit, each
// exchange takes as long as it would between hosts: it sleeps for the rest of that time.
#include <tessera/distributed/gloo_backend.h>
#include <tessera/distributed/mpi_backend.h>
#include <tessera/distributed/sharded_strategy.h>
#include <tessera/distributed/sharding_plan.h>
#include <tessera/engine/sum_gradients.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "src/common/rank_group.h"
#include "tests/benchmarks/random_lookups.h"
#include "tests/benchmarks/torch_benchmark.h"

namespace {

using namespace tessera;
using Clock = std::chrono::steady_clock;

struct Options : BenchmarkOptions {
  int64_t& tables = integer("--tables", 4);
  int64_t& rows = integer("--rows", 200'000, "rows of each table");
  int64_t& dim = integer("--dim", 64);
  int64_t& batch = integer("--batch", 1024, "examples of each rank");
  int64_t& bag = integer("--bag", 10, "ids per example and table");
  int64_t& steps = integer("--steps", 20);
  double& latency_us = real("--latency-us", 0.0, "latency of each exchange");
  double& gbit =
      real("--gbit", 0.0, "bandwidth of each rank's link; 0: no limit");
  int64_t& dense = integer(
      "--dense",
      0,
      "floats of the dense part, whose gradients are summed; 0: none",
      CLI::NonNegativeNumber);
  std::string& backend =
      text("--backend", "", "gloo", CLI::IsMember({"gloo", "mpi"}));
};

// A message that ends no earlier than it would on a network. It adds the time that a
// caller waited for it to `waited_ms`.
class TimedWork : public c10d::Work {
 public:
  TimedWork(
      c10::intrusive_ptr<c10d::Work> work,
      std::function<Clock::time_point()> end,
      std::atomic<double>& waited_ms)
      : work_(std::move(work)), end_(std::move(end)), waited_ms_(waited_ms) {}

  bool wait(std::chrono::milliseconds timeout) override {
    const Stopwatch watch;
    const bool is_done = work_->wait(timeout);
    std::this_thread::sleep_until(end_());
    waited_ms_ += watch.ms();
    return is_done;
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::function<Clock::time_point()> end_;
  std::atomic<double>& waited_ms_;
};

// A backend that is as slow as a network. With latency 0 and gbit 0, it is not slowed
// down. The link is full duplex and all ranks send as much as they receive, so what this
// rank has sent says when what it receives is there.
class TimedBackend : public c10d::Backend {
 public:
  TimedBackend(
      const c10::intrusive_ptr<c10d::Backend>& backend,
      double latency_us,
      double gbit)
      : Backend(backend->getRank(), backend->getSize()),
        backend_(backend),
        latency_us_(latency_us),
        gbit_(gbit) {}

  const std::string getBackendName() const override {
    return backend_->getBackendName();
  }
  c10::intrusive_ptr<Options> getBackendOptions() override {
    return backend_->getBackendOptions();
  }

  // The waiting time in all exchanges so far.
  double waited_ms() const {
    return waited_ms_;
  }

  c10::intrusive_ptr<c10d::Work> send(
      std::vector<at::Tensor>& tensors,
      int rank,
      int tag) override {
    const double seconds = gbit_ > 0.0
        ? 8e-9 * static_cast<double>(tensors[0].nbytes()) / gbit_
        : 0.0;
    link_is_free_ = std::max(link_is_free_, Clock::now()) + duration(seconds);
    return backend_->send(tensors, rank, tag);
  }

  c10::intrusive_ptr<c10d::Work> recv(
      std::vector<at::Tensor>& tensors,
      int rank,
      int tag) override {
    return c10::make_intrusive<TimedWork>(
        backend_->recv(tensors, rank, tag),
        [this] { return link_is_free_ + duration(1e-6 * latency_us_); },
        waited_ms_);
  }

 private:
  static Clock::duration duration(double seconds) {
    return std::chrono::duration_cast<Clock::duration>(
        std::chrono::duration<double>(seconds));
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  double latency_us_;
  double gbit_;
  Clock::time_point link_is_free_;
  std::atomic<double> waited_ms_ = 0.0;
};

class Benchmark {
 public:
  explicit Benchmark(const Options& options)
      : options_(options),
        lookups_{
            .tables = options.tables,
            .rows = options.rows,
            .dim = options.dim,
            .batch = options.batch,
            .bag = options.bag},
        configs_(lookups_.configs()),
        backend_(
            options.backend == "mpi" ? distributed::make_mpi_backend()
                                     : distributed::make_gloo_backend()) {
    for (int64_t i = 0; i < kBatches; ++i) {
      batches_.push_back(batch_of(backend_->getRank(), i));
    }
  }

  int64_t rank() const {
    return backend_->getRank();
  }

  Json run() {
    const Times local = time(0.0, 0.0);
    const bool is_slow = options_.latency_us > 0.0 || options_.gbit > 0.0;
    const Times times =
        is_slow ? time(options_.latency_us, options_.gbit) : local;
    // The time of a step in addition to its dense work and its update. In a lookup, the
    // rank's own work needs a core, so only the exchange can be hidden.
    const double exposed = std::max(
        0.0,
        times.prefetched_ms - times.dense_ms -
            (times.without_dense_ms - times.lookup_ms));
    const double exposed_exchange =
        std::max(0.0, exposed - (times.lookup_ms - times.exchange_ms));
    const double bound = bytes_bound();
    const distributed::ShardingPlan plan = distributed::plan_sharding(
        configs_,
        optim::Adagrad{},
        {.ranks = ranks(),
         .batch_size = options_.batch,
         .bag_lengths = bag_lengths()});
    const double network_ms = times.exchanges * options_.latency_us / 1e3 +
        (options_.gbit > 0.0 ? 8e-6 * plan.bytes_sent / options_.gbit : 0.0);
    const double model_ms = is_slow && ranks() > 1 ? local.in_a_row_ms -
            local.waited_ms - local.dense_ms + times.dense_ms + network_ms
                                                   : local.in_a_row_ms;
    return {
        {"backend", backend_->getBackendName()},
        {"ranks", ranks()},
        {"latency_us", options_.latency_us},
        {"gbit", options_.gbit},
        {"lookup_ms", times.lookup_ms},
        {"exchange_ms", times.exchange_ms},
        {"dense_ms", times.dense_ms},
        {"update_ms", times.without_dense_ms - times.lookup_ms},
        {"in_a_row_ms", times.in_a_row_ms},
        {"waited_ms", times.waited_ms},
        {"prefetched_ms", times.prefetched_ms},
        {"exposed_lookup_share", exposed / times.prefetched_ms},
        {"exposed_exchange_share", exposed_exchange / times.prefetched_ms},
        {"model_ms", model_ms},
        {"measured_by_model", times.in_a_row_ms / model_ms},
        {"exchanges", times.exchanges},
        {"bytes_sent", times.bytes_sent},
        {"sent_by_bound", bound > 0.0 ? times.bytes_sent / bound : 1.0},
        {"sent_by_plan",
         plan.bytes_sent > 0.0 ? times.bytes_sent / plan.bytes_sent : 1.0}};
  }

 private:
  static constexpr int64_t kBatches = 4;

  struct Times {
    double lookup_ms = 0.0;
    double exchange_ms = 0.0;  // part of it that waits for other ranks
    double dense_ms = 0.0;
    double without_dense_ms = 0.0;  // only lookup and update
    double in_a_row_ms = 0.0;
    double waited_ms = 0.0;  // part of it that waits for other ranks
    double prefetched_ms = 0.0;
    double bytes_sent = 0.0;  // by this rank, per step
    double exchanges = 0.0;  // per step
  };

  int64_t ranks() const {
    return backend_->getSize();
  }

  Features batch_of(int64_t rank, int64_t number) const {
    at::manual_seed(static_cast<uint64_t>(1000 * rank + number));
    return lookups_.draw();
  }

  const Features& next() {
    return batches_[step_++ % batches_.size()];
  }

  std::map<std::string, double> bag_lengths() const {
    std::map<std::string, double> lengths;
    for (int64_t i = 0; i < options_.tables; ++i) {
      lengths[std::to_string(i)] = static_cast<double>(options_.bag);
    }
    return lengths;
  }

  Times time(double latency_us, double gbit) {
    const auto backend =
        c10::make_intrusive<TimedBackend>(backend_, latency_us, gbit);
    // Converts the total of all runs of `measure` to one run.
    const auto waited_in = [&](const std::function<void()>& measure) {
      const double before = backend->waited_ms();
      measure();
      return (backend->waited_ms() - before) /
          static_cast<double>(options_.steps + 2);
    };
    const Strategy strategy =
        distributed::sharded_strategy(backend, {.lookup_threads = 1});
    TPUEmbedding layer(TPUEmbeddingOptions{
        .features = configs_,
        .optimizer = optim::Adagrad{},
        .strategy = strategy});
    at::Tensor dense_part = at::zeros({options_.dense});
    dense_part.mutable_grad() = at::ones({options_.dense});
    const auto update = [&](const Nest<at::Tensor>& activations) {
      sum_of(activations).backward();
      if (options_.dense > 0) {
        distributed::sum_gradients({dense_part}, strategy);
      }
    };
    Times times;
    times.exchange_ms = waited_in([&] {
      times.lookup_ms = median_ms(options_.steps, [&] {
        const at::NoGradGuard no_grad;
        layer->forward(next());
      });
    });
    const DenseWork dense(times.lookup_ms);
    times.dense_ms = median_ms(options_.steps, dense);
    RankGroup& group = *std::get<Strategy::Sharded>(strategy.options()).ranks;
    const int64_t before = group.bytes_sent();
    const int64_t exchanges_before = group.exchanges();
    times.without_dense_ms =
        median_ms(options_.steps, [&] { update(layer->forward(next())); });
    times.bytes_sent = static_cast<double>(group.bytes_sent() - before) /
        static_cast<double>(options_.steps + 2);
    times.exchanges =
        static_cast<double>(group.exchanges() - exchanges_before) /
        static_cast<double>(options_.steps + 2);
    times.waited_ms = waited_in([&] {
      times.in_a_row_ms = median_ms(options_.steps, [&] {
        const auto activations = layer->forward(next());
        dense();
        update(activations);
      });
    });
    times.prefetched_ms = prefetched_ms(
        options_.steps,
        layer,
        [&] { return next(); },
        [&](const Nest<at::Tensor>& activations) {
          dense();
          update(activations);
        });
    return times;
  }

  // The rows that this rank owns and others request, and the rows that it requests and
  // others own. All of them must be sent. The mean over the batches.
  double bytes_bound() const {
    const int64_t rank = backend_->getRank();
    const int64_t begin = options_.rows / ranks() * rank +
        std::min(rank, options_.rows % ranks());
    const int64_t end = options_.rows / ranks() * (rank + 1) +
        std::min(rank + 1, options_.rows % ranks());
    int64_t rows = 0;
    for (int64_t other = 0; other < ranks(); ++other) {
      for (int64_t number = 0; number < kBatches; ++number) {
        const Features batch = batch_of(other, number);
        for (const auto& feature : batch.flatten()) {
          std::vector<bool> is_requested(options_.rows, false);
          const at::Tensor& ids = std::get<RaggedFeature>(feature).values;
          const auto* first = ids.const_data_ptr<int64_t>();
          for (int64_t i = 0; i < ids.numel(); ++i) {
            is_requested[first[i]] = true;
          }
          for (int64_t id = 0; id < options_.rows; ++id) {
            const bool is_own = id >= begin && id < end;
            rows += is_requested[id] && is_own != (other == rank) ? 1 : 0;
          }
        }
      }
    }
    return static_cast<double>(
               rows * options_.dim * static_cast<int64_t>(sizeof(float))) /
        static_cast<double>(kBatches);
  }

  const Options& options_;
  RandomLookups lookups_;
  Nest<FeatureConfig> configs_;
  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<Features> batches_;
  size_t step_ = 0;
};

void run(const Options& options) {
  at::set_num_threads(1);
  Benchmark benchmark(options);
  const std::string line = benchmark.run().dump();
  if (benchmark.rank() == 0) {
    std::cout << line << std::endl;
  }
}

}  // namespace

TESSERA_BENCHMARK(
    "Times steps of a sharded layer on the ranks of launch.py or mpirun.",
    run)
