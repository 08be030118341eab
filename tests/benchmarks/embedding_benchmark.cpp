// SPDX-License-Identifier: Apache-2.0
// Times forward passes and whole training steps of TPUEmbedding on the workloads of
// workloads.json, with a new batch in each run. Prints one JSON line per workload and
// operation, with what plain loops need on this machine, measured in the same run.
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>

#include "src/engine/table_store.h"
#include "src/features/batch.h"
#include "src/tables/active_kernels.h"
#include "tests/benchmarks/embedding_workload.h"
#include "tests/benchmarks/machine_limits.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/randn.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
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
  std::string ids = "";
  int64_t batches = 32;
  bool kernel = false;
  bool refuse = false;
  bool limits = true;
  int threads = 0;
  int warmup = 3;
  int repetitions = 32;
  double min_ms = 100.0;
  uint64_t seed = 0;
};

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
  // `ids` is [batches, tables, batch * bag].
  Bench(
      const Workload& workload,
      const std::string& operation,
      const at::Tensor& ids)
      : workload_(workload), operation_(operation) {
    Nest<FeatureConfig>::Map configs;
    for (int64_t i = 0; i < workload.tables; ++i) {
      const TablePtr table = make_table(
          {.name = name_of(i),
           .vocabulary_size = workload.rows,
           .dim = workload.dim,
           .combiner = Combiner::kSum,
           .dtype = workload.dtype});
      configs.emplace_back(name_of(i), FeatureConfig{.table = table});
      gradients_.push_back(
          at::randn({workload.batch, workload.dim}, at::kFloat));
    }
    configs_ = Nest<FeatureConfig>::map(std::move(configs));
    const at::Tensor splits =
        at::arange(0, workload.ids_per_table() + 1, workload.bag, at::kLong);
    for (int64_t batch = 0; batch < ids.size(0); ++batch) {
      Nest<Feature>::Map features;
      for (int64_t i = 0; i < workload.tables; ++i) {
        const at::Tensor values = ids[batch][i];
        touched_rows_ += static_cast<double>(count_distinct(values)) /
            static_cast<double>(ids.size(0));
        features.emplace_back(
            name_of(i), RaggedFeature{.values = values, .row_splits = splits});
      }
      batches_.push_back(Nest<Feature>::map(std::move(features)));
    }
  }
  virtual ~Bench() = default;

  // Runs the operation on the next batch.
  void run() {
    run(next_);
    next_ = (next_ + 1) % batches_.size();
  }

  // The memory traffic: a forward pass reads a row per id and writes an activation per
  // bag. A step also reads the activations' gradients, and reads and writes each row that
  // it updates, with its slots. The traffic of ids is negligible. This is the mean of all
  // batches.
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
        : touched_rows_;
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
  virtual void run(size_t batch) = 0;

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
  std::vector<Features> batches_;
  std::vector<at::Tensor> gradients_;

 private:
  static std::string name_of(int64_t table) {
    return c10::str("table", table);
  }

  static int64_t count_distinct(const at::Tensor& ids) {
    const int64_t* data = ids.const_data_ptr<int64_t>();
    return static_cast<int64_t>(
        std::unordered_set<int64_t>(data, data + ids.numel()).size());
  }

  Workload workload_;
  std::string operation_;
  double touched_rows_ = 0.0;
  size_t next_ = 0;
  double start_ms_ = 0.0;
  double resident_bytes_ = 0.0;
};

// Times the public layer, with autograd.
class LayerBench : public Bench {
 public:
  LayerBench(
      const Workload& workload,
      const std::string& operation,
      const at::Tensor& ids,
      NonFiniteGradients non_finite_gradients)
      : Bench(workload, operation, ids) {
    measure_start([&] {
      layer_ = TPUEmbedding(TPUEmbeddingOptions{
          .features = configs_,
          .optimizer = optimizer_of(operation),
          .non_finite_gradients = non_finite_gradients});
    });
  }

 private:
  void run(size_t batch) override {
    if (is_forward()) {
      const at::NoGradGuard no_grad;
      layer_->forward(batches_[batch]);
    } else {
      torch::autograd::backward(
          layer_->forward(batches_[batch]).flatten(), gradients_);
    }
  }

  TPUEmbedding layer_{nullptr};
};

// Times lookup and update of a batch that was already converted to bags.
class KernelBench : public Bench {
 public:
  KernelBench(
      const Workload& workload,
      const std::string& operation,
      const at::Tensor& ids,
      NonFiniteGradients non_finite_gradients)
      : Bench(workload, operation, ids) {
    measure_start([&] {
      state_ = std::make_shared<EmbeddingState>(
          make_state(configs_, optimizer_of(operation), 0, WithSlots::kYes));
    });
    state_->non_finite_gradients = non_finite_gradients;
    store_ = std::make_unique<TableStore>(state_);
    for (const Features& features : batches_) {
      bags_.push_back(
          read_batch(configs_, state_->features, features, {}).bags);
    }
  }

 private:
  void run(size_t batch) override {
    std::vector<IdBags>& bags = bags_[batch];
    store_->lookup_local(bags, UnknownKeys::kAdmitted);
    if (!is_forward()) {
      store_->apply_update(
          store_->plan_update({{.bags = &bags, .gradients = gradients_}}));
    }
  }

  std::shared_ptr<EmbeddingState> state_;
  std::unique_ptr<TableStore> store_;
  std::vector<std::vector<IdBags>> bags_;
};

// Times initializers on memory that is already mapped. A new table also waits for the
// system to allocate its pages.
class InitializeBench : public Bench {
 public:
  InitializeBench(const Workload& workload, const at::Tensor& ids)
      : Bench(workload, "initialize", ids) {
    measure_start([&] {
      state_ = make_state(configs_, optim::SGD{}, 0, WithSlots::kYes);
    });
  }

 private:
  void run(size_t /*batch*/) override {
    for (TableState& table : state_.tables) {
      fill_rows(table, state_.seed);
    }
  }

  EmbeddingState state_;
};

std::unique_ptr<Bench> make_bench(
    const Workload& workload,
    const std::string& operation,
    const at::Tensor& ids,
    const Options& options) {
  if (operation == "initialize") {
    return std::make_unique<InitializeBench>(workload, ids);
  }
  const NonFiniteGradients non_finite_gradients =
      options.refuse ? NonFiniteGradients::kRefuse : NonFiniteGradients::kApply;
  if (options.kernel) {
    return std::make_unique<KernelBench>(
        workload, operation, ids, non_finite_gradients);
  }
  return std::make_unique<LayerBench>(
      workload, operation, ids, non_finite_gradients);
}

template <class Run>
std::vector<double> sorted_milliseconds(Run run, const Options& options) {
  std::vector<double> times;
  double total = 0.0;
  const auto enough = static_cast<size_t>(options.repetitions);
  for (int i = 0; times.size() < enough || total < options.min_ms; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    run();
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - begin;
    if (i >= options.warmup) {
      times.push_back(elapsed.count());
      total += elapsed.count();
    }
  }
  std::sort(times.begin(), times.end());
  return times;
}

Json limits_of(
    const Workload& workload,
    const at::Tensor& ids,
    const Options& options) {
  const std::optional<MachineLimits> limits =
      measure_limits(workload, ids, options.repetitions);
  if (!limits) {
    return Json::object();
  }
  return {
      {"gather_limit_ms", limits->gather_ms},
      {"update_limit_ms", limits->update_ms}};
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
    const at::Tensor ids = options.ids.empty()
        ? draw_ids(workload, options.batches, options.seed)
        : read_ids(workload, options.ids);
    const Json limits =
        options.limits ? limits_of(workload, ids, options) : Json::object();
    for (const std::string& operation : options.operations) {
      const auto bench = make_bench(workload, operation, ids, options);
      const auto times = sorted_milliseconds([&] { bench->run(); }, options);
      const double ms = times[times.size() / 2];
      Json line = {
          {"peer", "tessera"},
          {"workload", workload.name},
          {"op", operation},
          {"ms", ms},
          {"ms_min", times.front()},
          {"threads", at::get_num_threads()},
          {"isa", active_kernels().isa},
          {"batches", ids.size(0)},
          {"through", options.kernel ? "kernel" : "layer"},
          {"refuses_non_finite", options.refuse},
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
      "--refuse", options.refuse, "refuse gradients that are not finite");
  app.add_flag(
      "--limits,!--no-limits",
      options.limits,
      "also time plain loops that do the same");
  app.add_option("--threads", options.threads, "0: LibTorch's default")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", options.warmup, "untimed runs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--reps", options.repetitions, "minimum number of timed runs")
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--min-ms",
         options.min_ms,
         "minimum total time of the timed runs in ms")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--seed", options.seed, "seed of the ids");
  app.add_option("--batches", options.batches, "batches that take turns")
      ->check(CLI::PositiveNumber);
  app.add_option("--ids", options.ids, "folder with the ids as NAME.npy");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
