// SPDX-License-Identifier: Apache-2.0
// Times one click model in four runtimes: Tessera's own forward(), the TorchScript file,
// Pt2Program, and the package that AOTInductor compiled.
//   serving_benchmark --write FOLDER     writes the model for compare_serving.py
//   serving_benchmark FOLDER --threads N
// Prints one JSON line per runtime and batch size.
#include <tessera/export/export_pt2.h>
#include <tessera/export/export_torchscript.h>
#include <tessera/features/feature_config.h>
#include <tessera/layers/dense/concatenate.h>
#include <tessera/layers/tpu_embedding.h>

#include <torch/csrc/inductor/aoti_package/model_package_loader.h>
#include <torch/csrc/jit/serialization/import.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "src/common/check.h"
#include "tests/anonymous_memory.h"
#include "tests/benchmarks/torch_benchmark.h"

namespace {

using namespace tessera;
using Json = nlohmann::json;

constexpr int64_t kColumns = 26;
constexpr int64_t kNumbers = 13;
constexpr int64_t kDim = 16;
// Different batches that take turns.
constexpr size_t kBatches = 32;

struct Options : BenchmarkOptions {
  std::string& folder =
      text("folder", "folder of the files", "", CLI::ExistingDirectory);
  bool& writes =
      flag("--write", "write click.pt and click.pt2, and time nothing");
  bool& only_pt2 = flag("--only-pt2", "no TorchScript file");
  int64_t& rows = integer("--rows", 100'000, "rows of each of the 26 tables");
  std::string& dtype = text(
      "--dtype",
      "of the tables in click.pt2",
      "",
      CLI::IsMember({"float32", "bfloat16", "float16", "int8"}));
  int64_t& threads = integer("--threads", 1, "threads of one call");
  int64_t& calls = integer("--calls", 1000, "timed calls in each round");
  int64_t& rounds = integer(
      "--rounds",
      3,
      "number of rounds, in each of which all runtimes are timed");

  Options() {
    get_option("folder")->required();
  }
};

// 26 columns with one id each, 13 numbers, and a tower of three Linear layers.
struct ClickModelImpl : torch::nn::Module {
  explicit ClickModelImpl(int64_t rows) {
    Nest<FeatureConfig>::Map features;
    for (int64_t i = 0; i < kColumns; ++i) {
      const std::string name = fmt::format("column{:02}", i);
      features.emplace_back(
          name,
          FeatureConfig{
              .table = make_table(
                  {.name = name, .vocabulary_size = rows, .dim = kDim})});
    }
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = Nest<FeatureConfig>::map(std::move(features))}));
    concatenate = register_module("concatenate", Concatenate());
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            torch::nn::Linear(kColumns * kDim + kNumbers, 256),
            torch::nn::ReLU(),
            torch::nn::Linear(256, 64),
            torch::nn::ReLU(),
            torch::nn::Linear(64, 1)));
  }

  at::Tensor forward(const Features& features, const at::Tensor& numbers) {
    const at::Tensor columns =
        concatenate->forward(embedding->forward(features));
    return tower->forward(at::cat({columns, numbers}, 1)).squeeze(1).sigmoid();
  }

  TPUEmbedding embedding{nullptr};
  Concatenate concatenate{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(ClickModel);

struct ClickBatch {
  Features features = {};
  at::Tensor numbers = {};
  std::vector<at::Tensor> tensors = {};  // for the `.pt2` file
  c10::Dict<std::string, c10::List<at::Tensor>> by_name;  // for TorchScript
};

ClickBatch make_batch(int64_t size, int64_t rows) {
  ClickBatch batch;
  Features::Map features;
  for (int64_t i = 0; i < kColumns; ++i) {
    const std::string name = fmt::format("column{:02}", i);
    const at::Tensor ids = at::randint(rows, {size}, at::kLong);
    features.emplace_back(name, ids);
    batch.tensors.push_back(ids);
    batch.by_name.insert(name, c10::List<at::Tensor>({ids}));
  }
  batch.features = Features::map(std::move(features));
  batch.numbers = at::rand({size, kNumbers});
  batch.tensors.push_back(batch.numbers);
  return batch;
}

using Serve = std::function<at::Tensor(const ClickBatch&)>;

struct Runtime {
  std::string name;
  Serve serve;
  std::vector<double> microseconds = {};
};

void check_equal(
    const std::vector<Runtime>& runtimes,
    const ClickBatch& batch) {
  const at::Tensor expected = runtimes[0].serve(batch);
  for (const Runtime& runtime : runtimes) {
    TESSERA_CHECK_VALUE(
        at::allclose(runtime.serve(batch), expected, 1e-4, 1e-6),
        "[serving_benchmark] {} must give what tessera gives, but its outputs differ. Run ./run bench --serving again.",
        runtime.name);
  }
}

// Calls all runtimes in turns, so that a slow moment of the machine hits all of them.
void measure(
    std::vector<Runtime>& runtimes,
    int64_t size,
    const Options& options) {
  std::vector<ClickBatch> batches;
  for (size_t i = 0; i < kBatches; ++i) {
    batches.push_back(make_batch(size, options.rows));
  }
  check_equal(runtimes, batches[0]);
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (const size_t side : turns(round, runtimes.size())) {
      Runtime& runtime = runtimes[side];
      for (int64_t call = -20; call < options.calls; ++call) {
        const ClickBatch& batch =
            batches[static_cast<size_t>(call + 20) % kBatches];
        const Stopwatch watch;
        const at::Tensor scores = runtime.serve(batch);
        const double microseconds = 1e6 * watch.seconds();
        if (call >= 0) {
          runtime.microseconds.push_back(microseconds);
        }
      }
    }
  }
  for (Runtime& runtime : runtimes) {
    const std::vector<double> times = std::move(runtime.microseconds);
    runtime.microseconds.clear();
    const double total = std::accumulate(times.begin(), times.end(), 0.0);
    std::cout << Json{{"runtime", runtime.name},
                      {"threads", at::get_num_threads()},
                      {"batch", size},
                      {"p50_us", quantile(times, 0.5)},
                      {"p99_us", quantile(times, 0.99)},
                      {"examples_per_s",
                       static_cast<double>(size) *
                           static_cast<double>(times.size()) / total * 1e6}}
                     .dump()
              << std::endl;
  }
}

ClickModel make_model(const Options& options) {
  at::manual_seed(1);
  ClickModel model(options.rows);
  model->eval();
  return model;
}

void write(const Options& options) {
  ClickModel model = make_model(options);
  const ClickBatch batch = make_batch(16, options.rows);
  const ExportExample example{
      .features = batch.features, .inputs = {batch.numbers}};
  ExportOptions formats;
  if (!options.dtype.empty()) {
    formats.dtype =
        options.dtype == "int8" ? at::kChar : dtype_from_string(options.dtype);
  }
  const Stopwatch watch;
  test::PeakMemory peak;
  export_pt2(model, options.folder + "/click.pt2", example, formats);
  const double memory = static_cast<double>(peak.growth());
  const double seconds = watch.seconds();
  std::cerr << fmt::format(
      "export_pt2: {:.1f} s, and {:.0f} MiB more memory at the peak\n",
      seconds,
      memory / (1 << 20));
  if (!options.only_pt2) {
    export_torchscript(model, options.folder + "/click.pt", example);
  }
}

void measure_all(const Options& options) {
  at::set_num_threads(static_cast<int>(options.threads));
  const at::NoGradGuard no_grad;
  ClickModel model = make_model(options);
  const Pt2Program program(options.folder + "/click.pt2");
  // The package fixes the number of threads.
  const std::string file =
      fmt::format("{}/click.{}.aoti.pt2", options.folder, options.threads);
  TESSERA_CHECK_VALUE(
      std::filesystem::is_regular_file(file),
      "[serving_benchmark] expected the package {}, but there is none. Run ./run bench --serving, which compiles it.",
      file);
  torch::inductor::AOTIModelPackageLoader package(file);
  std::vector<Runtime> runtimes;
  runtimes.push_back({"tessera", [&](const ClickBatch& batch) {
                        return model->forward(batch.features, batch.numbers);
                      }});
  torch::jit::Module script("none");
  if (!options.only_pt2) {
    script = torch::jit::load(options.folder + "/click.pt");
    runtimes.push_back(
        {"torchscript", [&](const ClickBatch& batch) {
           return script.forward({batch.by_name, batch.numbers}).toTensor();
         }});
  }
  runtimes.push_back({"pt2_program", [&](const ClickBatch& batch) {
                        return program.run(batch.tensors)[0];
                      }});
  runtimes.push_back({"aotinductor", [&](const ClickBatch& batch) {
                        return package.run(batch.tensors)[0];
                      }});
  for (const int64_t size : {1, 16, 256}) {
    measure(runtimes, size, options);
  }
}

void run(const Options& options) {
  options.writes ? write(options) : measure_all(options);
}

}  // namespace

TESSERA_BENCHMARK(
    "Times a click model in Tessera, TorchScript, Pt2Program and AOTInductor.",
    run)
