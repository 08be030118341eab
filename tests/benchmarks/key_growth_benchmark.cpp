// SPDX-License-Identifier: Apache-2.0
// Lets a key table grow from empty, and times each training step: lookup, backward
// pass and Adagrad of a batch of new keys. Prints the median and the slowest steps, what
// these waited for, and the memory.
//
// Each step is followed by a loop that only reads memory and takes about as long. Its
// slowest rounds show how much of a slow step other processes explain.
#include <tessera/engine/table_module.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "src/common/check.h"
#include "src/common/parallel.h"
#include "src/common/random_key.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"
#include "tests/benchmarks/torch_benchmark.h"

#include <sys/resource.h>

namespace {

using tessera::TPUEmbedding;

struct Options : BenchmarkOptions {
  int64_t& keys = integer(
      "--keys",
      50'000'000,
      "keys at the end",
      up_to(int64_t{1} << 31, 1000));
  int64_t& capacity = integer(
      "--capacity",
      0,
      "capacity of the table; 0: 5 % more than keys, so that nothing is evicted",
      up_to(int64_t{1} << 31, 0));
  int64_t& dim = integer("--dim", 8, "floats per row");
  int64_t& batch = integer("--batch", 4096, "new keys per step");
  bool& preallocate =
      flag("--preallocate", "take the memory when the layer is built");
};

// One timed call, and what it waited for.
struct Call {
  double ms = 0.0;
  double cpu_ms = 0.0;  // of all threads, without the time of other processes
  int64_t page_faults = 0;
  int64_t preemptions = 0;  // the system ran something else instead
};

double cpu_ms_of(const rusage& usage) {
  const auto ms_of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 +
        static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms_of(usage.ru_utime) + ms_of(usage.ru_stime);
}

Call time_call(const auto& call) {
  rusage before{};
  rusage after{};
  ::getrusage(RUSAGE_SELF, &before);
  const double ms = 1e3 * seconds_of(call);
  ::getrusage(RUSAGE_SELF, &after);
  return {
      .ms = ms,
      .cpu_ms = cpu_ms_of(after) - cpu_ms_of(before),
      .page_faults = after.ru_minflt - before.ru_minflt,
      .preemptions = after.ru_nivcsw - before.ru_nivcsw};
}

// Reads random lines of a memory that was touched before.
class MemoryLoop {
 public:
  MemoryLoop() : memory_(int64_t{8} << 20, 1) {}

  void run(int64_t lines) {
    const int64_t lines_per_task = lines / kTasks;
    tessera::run_tasks(kTasks, lines * 64, [&](int64_t task) {
      uint64_t sum = 0;
      for (int64_t i = 0; i < lines_per_task; ++i) {
        const uint64_t place =
            tessera::mix_bits(static_cast<uint64_t>(task * lines_per_task + i));
        sum += memory_[place % memory_.size()];
      }
      sum_ += sum;
    });
  }

  // The number of lines that take this time.
  int64_t lines_in(double ms) {
    constexpr int64_t kLines = int64_t{1} << 20;
    run(kLines);
    const double all_ms = time_call([&] { run(kLines); }).ms;
    return std::max<int64_t>(
        kTasks,
        static_cast<int64_t>(static_cast<double>(kLines) * ms / all_ms));
  }

 private:
  static constexpr int64_t kTasks = 64;

  std::vector<uint64_t> memory_;
  std::atomic<uint64_t> sum_ = 0;
};

std::vector<double> times_of(
    const std::vector<Call>& calls,
    double Call::*time = &Call::ms) {
  std::vector<double> ms;
  for (const Call& call : calls) {
    ms.push_back(call.*time);
  }
  std::sort(ms.begin(), ms.end());
  return ms;
}

double median_of(const std::vector<Call>& calls) {
  return quantile(times_of(calls), 0.5);
}

void print_times(
    const std::string& name,
    const std::vector<Call>& calls,
    double Call::*time = &Call::ms) {
  const std::vector<double> times = times_of(calls, time);
  const double middle = quantile(times, 0.5);
  fmt::print(
      "  {:<12} median {:7.3f} ms, p99 {:7.3f}, p99.9 {:7.3f}, max {:8.3f}; p99.9 is {:.2f} medians\n",
      name,
      middle,
      quantile(times, 0.99),
      quantile(times, 0.999),
      times.back(),
      quantile(times, 0.999) / middle);
}

// What the calls above twice the median have in common.
void print_slow_calls(const std::vector<Call>& calls) {
  const double limit = 2.0 * median_of(calls);
  int64_t slow = 0;
  int64_t with_faults = 0;
  int64_t preempted = 0;
  std::vector<size_t> order;
  for (size_t i = 0; i < calls.size(); ++i) {
    order.push_back(i);
    if (calls[i].ms > limit) {
      ++slow;
      with_faults += calls[i].page_faults > 0 ? 1 : 0;
      preempted += calls[i].preemptions > 0 ? 1 : 0;
    }
  }
  fmt::print(
      "  {} of {} steps take more than two medians: {} of them had page faults, {} were preempted\n",
      slow,
      calls.size(),
      with_faults,
      preempted);
  const size_t shown = std::min<size_t>(5, order.size());
  std::partial_sort(
      order.begin(),
      order.begin() + static_cast<std::ptrdiff_t>(shown),
      order.end(),
      [&](size_t a, size_t b) { return calls[a].ms > calls[b].ms; });
  for (size_t i = 0; i < shown; ++i) {
    const Call& call = calls[order[i]];
    fmt::print(
        "    step {:>7}: {:8.3f} ms, {} page faults, {} preemptions\n",
        order[i],
        call.ms,
        call.page_faults,
        call.preemptions);
  }
}

void run(const Options& options) {
  TESSERA_CHECK_VALUE(
      options.batch * 4 <= options.keys,
      "[key_growth_benchmark] --keys must be at least four times --batch, but got {} and {}.",
      options.keys,
      options.batch);
  const int64_t capacity = options.capacity > 0
      ? options.capacity
      : options.keys + options.keys / 20;
  const Stopwatch watch;
  TPUEmbedding layer(tessera::TPUEmbeddingOptions{
      .features =
          {{"id",
            tessera::FeatureConfig{
                .table = tessera::make_table(
                    {.name = "t",
                     .dim = options.dim,
                     .initializer = tessera::initializers::Uniform{},
                     .keys =
                         tessera::DynamicKeys{
                             .capacity = capacity,
                             .preallocate = options.preallocate}})}}},
      .optimizer = tessera::optim::Adagrad{.learning_rate = 0.01}});
  const double build_seconds = watch.seconds();
  const at::Tensor gradient =
      at::full({options.batch, options.dim}, 0.001, at::kFloat);
  const at::Tensor keys = at::empty({options.batch}, at::kLong);
  auto* key = keys.mutable_data_ptr<int64_t>();

  int64_t next = 0;
  const auto step = [&] {
    for (int64_t i = 0; i < options.batch; ++i) {
      key[i] = static_cast<int64_t>(
          tessera::mix_bits(static_cast<uint64_t>(next++)));
    }
    return time_call([&] {
      layer->forward({{"id", keys}})["id"].backward(gradient);
    });
  };
  // The first steps allocate the buffers that all later ones use, and are left out.
  std::vector<Call> first_steps;
  for (int i = 0; i < 20 && next + 2 * options.batch <= options.keys; ++i) {
    first_steps.push_back(step());
  }
  MemoryLoop loop;
  const int64_t lines = loop.lines_in(median_of(first_steps));
  std::vector<Call> steps;
  std::vector<Call> rounds;
  while (next + options.batch <= options.keys) {
    steps.push_back(step());
    rounds.push_back(time_call([&] { loop.run(lines); }));
  }

  const tessera::KeyIndex& index =
      tessera::TableModule::of(*layer)->state().tables[0].key_rows->index();
  fmt::print(
      "growth to {} keys of {}, {} floats per row, Adagrad, {} new keys per step, memory taken {}, {}\n",
      index.size(),
      capacity,
      options.dim,
      options.batch,
      options.preallocate ? "beforehand" : "when used",
      machine());
  print_times("step", steps);
  print_times("its cpu time", steps, &Call::cpu_ms);
  print_times("memory loop", rounds);
  print_slow_calls(steps);
  const auto row_bytes = static_cast<int64_t>(2 * sizeof(float)) * options.dim;
  fmt::print(
      "  {:.1f} bytes per key beside {} of row and slot; peak resident memory {} MiB; built in {:.2f} s; {} evicted\n",
      static_cast<double>(index.bytes_at_capacity()) /
          static_cast<double>(capacity),
      row_bytes,
      peak_resident_bytes() >> 20,
      build_seconds,
      index.counts().evicted);
}

}  // namespace

TESSERA_BENCHMARK("Times the steps of a key table that grows from empty.", run)
