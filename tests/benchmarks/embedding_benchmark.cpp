// SPDX-License-Identifier: Apache-2.0
// Times forward passes and whole training steps of TPUEmbedding on the
// workloads of workloads.json: one JSON line per workload and operation.
#include <tessera/layers/tpu_embedding.h>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>
#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace tessera;

struct Options {
  std::string workloads = TESSERA_WORKLOADS;
  std::vector<std::string> only = {};
  std::vector<std::string> operations = {"forward", "sgd", "adagrad", "adam"};
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
         .is_zipf = json.at("ids") == "zipf"});
  }
  return workloads;
}

// Uniform ids, or zipf: rank floor(rows^u) - 1 through a random permutation.
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
        workload.is_zipf ? std::pow(rows, u) - 1.0 : u * rows);
    data[i] = row_of_rank[std::clamp<int64_t>(rank, 0, workload.rows - 1)];
  }
  return ids;
}

optim::OptimizerSpec optimizer_of(const std::string& operation) {
  if (operation == "adagrad") {
    return optim::Adagrad{.learning_rate = 0.01};
  }
  if (operation == "adam") {
    return optim::Adam{.learning_rate = 0.01};
  }
  return optim::SGD{.learning_rate = 0.01};
}

// A layer with one sum-pooled feature per table, its batch and the gradients
// of its activations.
class Bench {
 public:
  Bench(const Workload& workload, const std::string& operation, uint64_t seed)
      : is_forward_(operation == "forward") {
    std::mt19937_64 random(seed);
    Nest<FeatureConfig>::Map configs;
    Nest<Feature>::Map features;
    const at::Tensor splits = at::arange(
        0, workload.batch * workload.bag + 1, workload.bag, at::kLong);
    for (int64_t i = 0; i < workload.tables; ++i) {
      const std::string name = "table" + std::to_string(i);
      const TablePtr table = make_table(
          {.name = name,
           .vocabulary_size = workload.rows,
           .dim = workload.dim,
           .combiner = Combiner::kSum});
      configs.emplace_back(name, FeatureConfig{.table = table});
      features.emplace_back(
          name,
          RaggedFeature{
              .values = random_ids(workload, random), .row_splits = splits});
      gradients_.push_back(
          at::randn({workload.batch, workload.dim}, at::kFloat));
    }
    features_ = Nest<Feature>::map(std::move(features));
    layer_ = TPUEmbedding(TPUEmbeddingOptions{
        .features = Nest<FeatureConfig>::map(std::move(configs)),
        .optimizer = optimizer_of(operation)});
  }

  void run() {
    if (is_forward_) {
      const at::NoGradGuard no_grad;
      layer_->forward(features_);
    } else {
      torch::autograd::backward(
          layer_->forward(features_).flatten(), gradients_);
    }
  }

 private:
  bool is_forward_;
  Features features_;
  std::vector<at::Tensor> gradients_;
  TPUEmbedding layer_{nullptr};
};

std::vector<double> sorted_milliseconds(Bench& bench, const Options& options) {
  std::vector<double> times;
  for (int i = 0; i < options.warmup + options.repetitions; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    bench.run();
    const std::chrono::duration<double, std::milli> elapsed =
        std::chrono::steady_clock::now() - begin;
    if (i >= options.warmup) {
      times.push_back(elapsed.count());
    }
  }
  std::sort(times.begin(), times.end());
  return times;
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
    for (const std::string& operation : options.operations) {
      if (!is_chosen(workload, options)) {
        continue;
      }
      Bench bench(workload, operation, options.seed);
      const auto times = sorted_milliseconds(bench, options);
      const nlohmann::ordered_json line = {
          {"peer", "tessera"},
          {"workload", workload.name},
          {"op", operation},
          {"ms", times[times.size() / 2]},
          {"ms_min", times.front()},
          {"threads", at::get_num_threads()}};
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
      ->check(CLI::IsMember({"forward", "sgd", "adagrad", "adam"}));
  app.add_option("--threads", options.threads, "0: LibTorch's default")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--warmup", options.warmup, "untimed runs")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--reps", options.repetitions, "timed runs")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "of ids");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
