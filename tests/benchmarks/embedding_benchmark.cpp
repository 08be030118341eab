// SPDX-License-Identifier: Apache-2.0
// Times forward passes and whole training steps of TPUEmbedding on the workloads of
// workloads.json. Prints one JSON line per workload and operation, with the limit that
// the machine's memory sets, measured in the same run.
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>

#include "src/common/parallel.h"
#include "src/engine/table_engine.h"
#include "src/features/batch.h"
#include "src/tables/table_memory.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

using namespace tessera;

struct Options {
  std::string workloads = TESSERA_WORKLOADS;
  std::vector<std::string> only = {};
  std::vector<std::string> operations = {
      "forward",
      "sgd",
      "adagrad",
      "rowwise_adagrad",
      "adam",
      "adam_exact",
      "ftrl",
      "initialize"};
  bool kernel = false;
  bool limits = true;
  int threads = 0;
  int warmup = 3;
  int repetitions = 15;
  uint64_t seed = 0;
};

struct Workload {
  std::string name;
  int64_t tables;
  int64_t rows;
  int64_t dim;
  int64_t batch;
  int64_t bag;
  bool is_zipf;
  double skew;  // for zipf; 1: p(rank) ~ 1 / rank; > 1: first ranks more often
  at::ScalarType dtype;
};

std::vector<Workload> read_workloads(const std::string& path) {
  std::ifstream stream(path);
  TORCH_CHECK_VALUE(
      stream.is_open(), "[benchmark] can't open the workloads ", path, ".");
  std::vector<Workload> workloads;
  for (const auto& json : nlohmann::json::parse(stream)) {
    workloads.push_back(
        {.name = json.at("name"),
         .tables = json.at("tables"),
         .rows = json.at("rows"),
         .dim = json.at("dim"),
         .batch = json.at("batch"),
         .bag = json.at("bag"),
         .is_zipf = json.at("ids") == "zipf",
         .skew = json.value("skew", 1.0),
         .dtype = dtype_from_string(json.value("dtype", "float32"))});
  }
  return workloads;
}

// Draws uniform ids, or zipf: rank floor(rows^(u^skew)) - 1, mapped to ids by a random
// permutation.
at::Tensor random_ids(const Workload& workload, std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  std::vector<int64_t> row_of_rank(workload.rows);
  std::iota(row_of_rank.begin(), row_of_rank.end(), 0);
  std::shuffle(row_of_rank.begin(), row_of_rank.end(), random);
  at::Tensor ids = at::empty({workload.batch * workload.bag}, at::kLong);
  int64_t* data = ids.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); ++i) {
    const double u = uniform(random);
    const auto rows = static_cast<double>(workload.rows);
    const auto rank = static_cast<int64_t>(
        workload.is_zipf ? std::pow(rows, std::pow(u, workload.skew)) - 1.0
                         : u * rows);
    data[i] = row_of_rank[std::clamp<int64_t>(rank, 0, workload.rows - 1)];
  }
  return ids;
}

optim::OptimizerSpec optimizer_of(const std::string& operation) {
  if (operation == "adagrad") {
    return optim::Adagrad{.learning_rate = 0.01};
  }
  if (operation == "rowwise_adagrad") {
    return optim::RowWiseAdagrad{.learning_rate = 0.01};
  }
  if (operation == "adam") {
    return optim::Adam{.learning_rate = 0.01};
  }
  if (operation == "adam_exact") {
    return optim::Adam{.learning_rate = 0.01, .lazy_adam = false};
  }
  if (operation == "ftrl") {
    return optim::FTRL{.learning_rate = 0.01};
  }
  return optim::SGD{.learning_rate = 0.01};
}

// The size of the slots that an update reads and writes per touched row, in rows.
double slots_of(const std::string& operation, int64_t dim) {
  if (operation == "rowwise_adagrad") {
    return 1.0 / static_cast<double>(dim);
  }
  if (operation == "adagrad") {
    return 1.0;
  }
  return operation == "sgd" ? 0.0 : 2.0;
}

// The resident memory of this process in bytes.
double resident_now() {
  const auto page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  std::ifstream stream("/proc/self/statm");
  double total = 0.0;
  double resident = 0.0;
  stream >> total >> resident;
  return resident * page;
}

// A layer with one sum-pooled feature per table, a batch for it, and the gradients of its
// activations.
class Bench {
 public:
  Bench(const Workload& workload, const std::string& operation, uint64_t seed)
      : workload_(workload), operation_(operation) {
    std::mt19937_64 random(seed);
    Nest<FeatureConfig>::Map configs;
    Nest<Feature>::Map features;
    const at::Tensor splits = at::arange(
        0, workload.batch * workload.bag + 1, workload.bag, at::kLong);
    for (int64_t i = 0; i < workload.tables; ++i) {
      const std::string name = c10::str("table", i);
      const TablePtr table = make_table(
          {.name = name,
           .vocabulary_size = workload.rows,
           .dim = workload.dim,
           .combiner = Combiner::kSum,
           .dtype = workload.dtype});
      configs.emplace_back(name, FeatureConfig{.table = table});
      const at::Tensor ids = random_ids(workload, random);
      touched_rows_ += count_distinct(ids);
      features.emplace_back(
          name, RaggedFeature{.values = ids, .row_splits = splits});
      gradients_.push_back(
          at::randn({workload.batch, workload.dim}, at::kFloat));
    }
    features_ = Nest<Feature>::map(std::move(features));
    configs_ = Nest<FeatureConfig>::map(std::move(configs));
  }
  virtual ~Bench() = default;

  virtual void run() = 0;

  // The memory traffic: a forward pass reads a row per id and writes an activation per
  // bag. A step also reads the activations' gradients, and reads and writes each row that
  // it updates, with its slots. The traffic of ids is negligible.
  double bytes() const {
    const auto row = static_cast<double>(workload_.dim * sizeof(float));
    const double stored =
        static_cast<double>(workload_.dim) * c10::elementSize(workload_.dtype);
    if (operation_ == "initialize") {
      return stored_bytes();
    }
    const auto bags = static_cast<double>(workload_.tables * workload_.batch);
    const double forward =
        bags * (static_cast<double>(workload_.bag) * stored + row);
    if (operation_ == "forward") {
      return forward;
    }
    const double updated = operation_ == "adam_exact"
        ? static_cast<double>(workload_.tables * workload_.rows)
        : static_cast<double>(touched_rows_);
    return forward + bags * row +
        2.0 * (stored + slots_of(operation_, workload_.dim) * row) * updated;
  }

  // The time to create the tables and slots.
  double start_ms() const {
    return start_ms_;
  }
  double resident_bytes() const {
    return resident_bytes_;
  }

  // The bytes of the tables and slots.
  double stored_bytes() const {
    const double rows = static_cast<double>(workload_.tables * workload_.rows) *
        static_cast<double>(workload_.dim);
    const double slots =
        is_update() ? slots_of(operation_, workload_.dim) : 0.0;
    return rows * (c10::elementSize(workload_.dtype) + slots * sizeof(float));
  }

 protected:
  bool is_forward() const {
    return operation_ == "forward";
  }
  bool is_update() const {
    return !is_forward() && operation_ != "initialize";
  }

  template <class Start>
  void measure_start(Start start) {
    const double resident = resident_now();
    const auto begin = std::chrono::steady_clock::now();
    start();
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - begin;
    start_ms_ = elapsed.count();
    resident_bytes_ = resident_now() - resident;
  }

  Nest<FeatureConfig> configs_;
  Features features_;
  std::vector<at::Tensor> gradients_;

 private:
  static int64_t count_distinct(const at::Tensor& ids) {
    const int64_t* data = ids.const_data_ptr<int64_t>();
    return static_cast<int64_t>(
        std::unordered_set<int64_t>(data, data + ids.numel()).size());
  }

  Workload workload_;
  std::string operation_;
  int64_t touched_rows_ = 0;
  double start_ms_ = 0.0;
  double resident_bytes_ = 0.0;
};

// Times the public layer, with autograd.
class LayerBench : public Bench {
 public:
  LayerBench(
      const Workload& workload,
      const std::string& operation,
      uint64_t seed)
      : Bench(workload, operation, seed) {
    measure_start([&] {
      layer_ = TPUEmbedding(TPUEmbeddingOptions{
          .features = configs_, .optimizer = optimizer_of(operation)});
    });
  }

  void run() override {
    if (is_forward()) {
      const at::NoGradGuard no_grad;
      layer_->forward(features_);
    } else {
      torch::autograd::backward(
          layer_->forward(features_).flatten(), gradients_);
    }
  }

 private:
  TPUEmbedding layer_{nullptr};
};

// Times lookup and update of a batch that was already converted to bags.
class KernelBench : public Bench {
 public:
  KernelBench(
      const Workload& workload,
      const std::string& operation,
      uint64_t seed)
      : Bench(workload, operation, seed) {
    measure_start([&] {
      state_ = std::make_shared<EmbeddingState>(
          make_state(configs_, optimizer_of(operation), seed, WithSlots::kYes));
    });
    engine_ = std::make_unique<TableEngine>(state_);
    batch_ = read_batch(configs_, state_->features, features_, {});
  }

  void run() override {
    engine_->lookup_local(batch_.bags);
    if (!is_forward()) {
      engine_->apply_update(engine_->plan_update(
          {{.bags = &batch_.bags, .gradients = gradients_}}));
    }
  }

 private:
  std::shared_ptr<EmbeddingState> state_;
  std::unique_ptr<TableEngine> engine_;
  Batch batch_;
};

// Times initializers on memory that is already mapped. A new table also waits for the
// system to allocate its pages.
class InitializeBench : public Bench {
 public:
  InitializeBench(const Workload& workload, uint64_t seed)
      : Bench(workload, "initialize", seed) {
    measure_start([&] {
      state_ = make_state(configs_, optim::SGD{}, seed, WithSlots::kYes);
    });
  }

  void run() override {
    for (TableState& table : state_.tables) {
      fill_rows(table, state_.seed);
    }
  }

 private:
  EmbeddingState state_;
};

std::unique_ptr<Bench> make_bench(
    const Workload& workload,
    const std::string& operation,
    const Options& options) {
  if (operation == "initialize") {
    return std::make_unique<InitializeBench>(workload, options.seed);
  }
  if (options.kernel) {
    return std::make_unique<KernelBench>(workload, operation, options.seed);
  }
  return std::make_unique<LayerBench>(workload, operation, options.seed);
}

template <class Run>
std::vector<double> sorted_milliseconds(Run run, const Options& options) {
  std::vector<double> times;
  for (int i = 0; i < options.warmup + options.repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - begin;
    if (i >= options.warmup) {
      times.push_back(elapsed.count());
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

// Adds rows[ids[i]] [dim] for i in [begin, end) to `sum`; without ids, the rows in order.
// The memory limits below are measured with this function. It has no clones under the
// thread sanitizer, which would instrument their resolver, and that runs before the
// sanitizer is ready.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
__attribute__((target_clones("avx512f", "avx2", "default")))
#endif
void add_rows(
    const float* rows,
    int64_t dim,
    const int64_t* ids,
    int64_t begin,
    int64_t end,
    float* sum) {
  constexpr int64_t kBytesAhead = 4096;
  constexpr int64_t kFloatsPerLine = 16;
  const int64_t ahead =
      std::max<int64_t>(kBytesAhead / (dim * sizeof(float)), 4);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t soon = std::min(i + ahead, end - 1);
    const float* next = rows + (ids == nullptr ? soon : ids[soon]) * dim;
    for (int64_t j = 0; j < dim; j += kFloatsPerLine) {
      __builtin_prefetch(next + j);
    }
    const float* row = rows + (ids == nullptr ? i : ids[i]) * dim;
    for (int64_t j = 0; j < dim; ++j) {
      sum[j] += row[j];
    }
  }
}

// Returns the GB/s of a simple loop over `memory` [rows, dim] on all threads. Each task
// adds its rows to one row of its own.
double gigabytes_per_second(
    const at::Tensor& memory,
    int64_t reads,
    const int64_t* ids,
    const Options& options) {
  constexpr int64_t kReadsPerTask = 4096;
  const int64_t dim = memory.size(1);
  const float* rows = memory.const_data_ptr<float>();
  const int64_t tasks = (reads + kReadsPerTask - 1) / kReadsPerTask;
  const int64_t bytes = reads * dim * static_cast<int64_t>(sizeof(float));
  const auto times = sorted_milliseconds(
      [&] {
        run_tasks(tasks, bytes, [&](int64_t task) {
          std::vector<float> sum(dim, 0.0F);
          const int64_t begin = task * kReadsPerTask;
          const int64_t end = std::min(reads, begin + kReadsPerTask);
          add_rows(rows, dim, ids, begin, end, sum.data());
          volatile float sink = sum[0];
          static_cast<void>(sink);
        });
      },
      options);
  return static_cast<double>(bytes) / times[times.size() / 2] / 1e6;
}

// Measures the memory bandwidth for rows of this workload, read in order and at random.
Json measure_limits(const Workload& workload, const Options& options) {
  const int64_t rows = workload.tables * workload.rows;
  const int64_t reads = workload.tables * workload.batch * workload.bag;
  const at::Tensor memory = allocate_rows(rows, workload.dim);
  memory.fill_(1.0);
  std::mt19937_64 random(options.seed);
  std::vector<int64_t> ids(reads);
  for (int64_t& id : ids) {
    id = static_cast<int64_t>(random() % static_cast<uint64_t>(rows));
  }
  return {
      {"stream_gb_per_s", gigabytes_per_second(memory, rows, nullptr, options)},
      {"gather_gb_per_s",
       gigabytes_per_second(memory, reads, ids.data(), options)}};
}

bool is_chosen(const Workload& workload, const Options& options) {
  return options.only.empty() ||
      std::find(options.only.begin(), options.only.end(), workload.name) !=
      options.only.end();
}

void run(const Options& options) {
  if (options.threads > 0) {
    at::set_num_threads(options.threads);
  }
  for (const Workload& workload : read_workloads(options.workloads)) {
    if (!is_chosen(workload, options)) {
      continue;
    }
    const auto limits =
        options.limits ? measure_limits(workload, options) : Json::object();
    for (const std::string& operation : options.operations) {
      const auto bench = make_bench(workload, operation, options);
      const auto times = sorted_milliseconds([&] { bench->run(); }, options);
      const double ms = times[times.size() / 2];
      Json line = {
          {"peer", "tessera"},
          {"workload", workload.name},
          {"op", operation},
          {"ms", ms},
          {"ms_min", times.front()},
          {"threads", at::get_num_threads()},
          {"through", options.kernel ? "kernel" : "layer"},
          {"bytes", bench->bytes()},
          {"gb_per_s", bench->bytes() / ms / 1e6},
          {"start_ms", bench->start_ms()},
          {"stored_bytes", bench->stored_bytes()},
          {"resident_bytes", bench->resident_bytes()}};
      line.update(limits);
      std::cout << line.dump() << std::endl;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Times TPUEmbedding; ms is the median of the repetitions.");
  app.add_option("--workloads", options.workloads, "JSON file of workloads");
  app.add_option("--workload", options.only, "only these workloads");
  app.add_option("--op", options.operations, "operations")
      ->check(CLI::IsMember(options.operations));
  app.add_flag(
      "--kernel", options.kernel, "lookup and update without the layer");
  app.add_flag(
      "--limits,!--no-limits",
      options.limits,
      "also measure the machine's memory bandwidth");
  app.add_option("--threads", options.threads, "0: LibTorch's default")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", options.warmup, "untimed runs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--reps", options.repetitions, "timed runs")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "seed of the ids");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
