// SPDX-License-Identifier: Apache-2.0
// Times training steps of the click model of examples/dlrm on arrays that compare_dlrm.py has written, and prints a
// JSON report. dlrm_torch.py trains the same model in Python on the same arrays.
#include "examples/dlrm/click_model.h"

#include <ATen/record_function.h>

#include "tests/benchmarks/torch_benchmark.h"

#include <map>

namespace {

using at::Tensor;

struct Options : BenchmarkOptions {
  std::string& arrays = text("--arrays", "folder with the arrays");
  std::string& model =
      text("--model", "dlrm or dcn", "dcn", CLI::IsMember({"dlrm", "dcn"}));
  int64_t& dim = integer("--dim", 16, "columns of each table", up_to(4096));
  std::vector<int64_t>& bottom = option<std::vector<int64_t>>(
      "--bottom",
      {},
      "hidden units before the interaction",
      up_to(65'536));
  std::vector<int64_t>& top = option<std::vector<int64_t>>(
      "--top",
      {64, 32},
      "hidden units after the interaction",
      up_to(65'536));
  int64_t& rank = integer("--rank", 32, "of the crosses", up_to(65'536));
  int64_t& batch = integer("--batch", 1024, "examples per step");
  int64_t& warmup = integer("--warmup", 5, "steps that are not timed");
  std::string& precision = text(
      "--precision",
      "of products and activations",
      "float32",
      CLI::IsMember({"float32", "bfloat16"}));
  double& learning_rate = real("--learning-rate", 0.1, "of the tables");
  double& dense_learning_rate =
      real("--dense-learning-rate", 0.03, "of all other weights");
  bool& profile =
      flag("--profile", "print the time of each operator to standard error");
  int64_t& seed =
      integer("--seed", 0, "of the initial values", up_to(1 << 30, 0));
};

// The time of each operator and scope of this thread, without that of those within it.
class OperatorTimes {
 public:
  OperatorTimes() {
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback(
            [](const at::RecordFunction& function)
                -> std::unique_ptr<at::ObserverContext> {
              running().push_back({function.name(), Stopwatch(), 0.0});
              return nullptr;
            },
            [](const at::RecordFunction&, at::ObserverContext*) {
              const Running ended = running().back();
              running().pop_back();
              const double ms = ended.watch.ms();
              self_ms()[ended.name] += ms - ended.inner_ms;
              if (!running().empty()) {
                running().back().inner_ms += ms;
              }
            })
            .scopes(
                {at::RecordScope::FUNCTION,
                 at::RecordScope::BACKWARD_FUNCTION,
                 at::RecordScope::USER_SCOPE}));
  }
  ~OperatorTimes() {
    at::removeCallback(handle_);
  }

  // Prints the times per step, the largest first.
  static void print(int64_t steps) {
    std::vector<std::pair<double, std::string>> sorted;
    for (const auto& [name, ms] : self_ms()) {
      sorted.emplace_back(ms / static_cast<double>(steps), name);
    }
    std::sort(sorted.rbegin(), sorted.rend());
    for (const auto& [ms, name] : sorted) {
      if (ms >= 0.02) {
        fmt::print(stderr, "{:8.2f} ms  {}\n", ms, name);
      }
    }
  }

 private:
  struct Running {
    std::string name;
    Stopwatch watch;
    double inner_ms;
  };
  static std::vector<Running>& running() {
    static std::vector<Running> all;
    return all;
  }
  static std::map<std::string, double>& self_ms() {
    static std::map<std::string, double> all;
    return all;
  }

  at::CallbackHandle handle_ = 0;
};

constexpr double kInitialAccumulator = 1e-8;

struct Batch {
  tessera::Features features;
  Tensor dense;
  Tensor labels;
};

std::string feature_name(int64_t index) {
  return fmt::format("C{:02}", index);  // in the order of the tables
}

ClickModel make_model(
    const Options& options,
    const Tensor& sizes,
    int64_t num_dense) {
  tessera::Nest<tessera::FeatureConfig>::Map features;
  for (int64_t i = 0; i < sizes.numel(); ++i) {
    features.emplace_back(
        feature_name(i),
        tessera::FeatureConfig{
            .table = tessera::make_table(
                {.name = feature_name(i),
                 .vocabulary_size = sizes[i].item<int64_t>(),
                 .dim = options.dim,
                 .combiner = tessera::Combiner::kSum})});
  }
  return ClickModel(ClickModelOptions{
      .features =
          tessera::Nest<tessera::FeatureConfig>::map(std::move(features)),
      .optimizer =
          tessera::optim::Adagrad{
              .learning_rate = options.learning_rate,
              .initial_accumulator_value = kInitialAccumulator},
      .seed = static_cast<uint64_t>(options.seed),
      .interaction = options.model,
      .num_dense = num_dense,
      .bottom_units = options.bottom,
      .top_units = options.top,
      .projection_dim = options.rank});
}

std::vector<Batch> read_batches(
    const Options& options,
    const std::string& kind) {
  const auto read = [&](const char* name) {
    return tessera::load_npy(
               fmt::format("{}/{}_{}.npy", options.arrays, kind, name))
        .clone();
  };
  const Tensor ids = read("ids");
  const Tensor dense = read("dense");
  const Tensor labels = read("labels");
  std::vector<Batch> batches;
  for (int64_t begin = 0; begin + options.batch <= ids.size(0);
       begin += options.batch) {
    const auto part = [&](const Tensor& all) {
      return all.slice(0, begin, begin + options.batch);
    };
    const Tensor columns = part(ids).t().contiguous();
    tessera::Features::Map features;
    for (int64_t i = 0; i < columns.size(0); ++i) {
      features.emplace_back(feature_name(i), tessera::Feature(columns[i]));
    }
    batches.push_back(
        {tessera::Features::map(std::move(features)),
         part(dense),
         part(labels)});
  }
  return batches;
}

void run(const Options& options) {
  at::manual_seed(options.seed);
  const std::vector<Batch> batches = read_batches(options, "train");
  TORCH_CHECK_VALUE(
      static_cast<int64_t>(batches.size()) > options.warmup,
      "[click_step_benchmark] the arrays have ",
      batches.size(),
      " batches, but the first ",
      options.warmup,
      " are not timed. Lower --warmup.");
  ClickModel model = make_model(
      options,
      tessera::load_npy(options.arrays + "/vocabulary_sizes.npy"),
      batches[0].dense.size(1));
  const auto optimizer = tessera::optim::make_optimizer(
      tessera::optim::Adagrad{
          .learning_rate = options.dense_learning_rate,
          .initial_accumulator_value = kInitialAccumulator},
      model->parameters());
  const auto precision = options.precision == "bfloat16"
      ? tessera::Precision::kBFloat16
      : tessera::Precision::kFloat32;
  const auto logits_of = [&](const Batch& batch) {
    return model->forward(batch.features, batch.dense);
  };
  auto step = tessera::training::make_train_step(
      *optimizer,
      [&](const Batch& batch) {
        return at::binary_cross_entropy_with_logits(
            logits_of(batch), batch.labels);
      },
      {.precision = precision});
  std::vector<double> step_ms;
  std::unique_ptr<OperatorTimes> times;
  for (size_t i = 0; i < batches.size(); ++i) {
    if (options.profile && static_cast<int64_t>(i) == options.warmup) {
      times = std::make_unique<OperatorTimes>();
    }
    const Stopwatch watch;
    step(batches[i]);
    if (static_cast<int64_t>(i) >= options.warmup) {
      step_ms.push_back(watch.ms());
    }
  }
  if (times) {
    times.reset();
    OperatorTimes::print(std::ssize(step_ms));
  }
  model->eval();
  tessera::training::AUC auc;
  {
    const at::NoGradGuard no_grad;
    const tessera::PrecisionScope scope(precision);
    for (const Batch& batch : read_batches(options, "test")) {
      auc.update(logits_of(batch), batch.labels);
    }
  }
  const double total =
      std::accumulate(step_ms.begin(), step_ms.end(), 0.0) / 1e3;
  fmt::print(
      R"({{"auc": {}, "ms": {}, "examples_per_second": {}, "threads": {}, "isa": "{}"}})"
      "\n",
      auc.result(),
      median(step_ms),
      static_cast<double>(options.batch * std::ssize(step_ms)) / total,
      at::get_num_threads(),
      tessera::instruction_set());
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  return run_benchmark(argc, argv, "Times steps of a click model.", run);
}
