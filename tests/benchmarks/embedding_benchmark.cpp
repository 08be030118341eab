// SPDX-License-Identifier: Apache-2.0
// Times forward passes and whole training steps of TPUEmbedding on the workloads of
// workloads.json, with a new batch in each run. Prints one JSON line per workload and
// operation, with what plain loops need on this machine, measured in the same run.
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers.h>

#include "src/common/active_kernels.h"
#include "src/engine/table_store.h"
#include "src/features/batch.h"
#include "tests/benchmarks/embedding_workload.h"
#include "tests/benchmarks/machine_limits.h"
#include "tests/benchmarks/torch_benchmark.h"

#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <unordered_set>

namespace {

using namespace tessera;

const std::vector<std::string> kOperations = {
    "forward",
    "sgd",
    "adagrad",
    "rowwise_adagrad",
    "adam",
    "adam_exact",
    "ftrl",
    "initialize"};

struct Options : BenchmarkOptions {
  using Texts = std::vector<std::string>;
  std::string& workloads =
      text("--workloads", "JSON file of workloads", TESSERA_WORKLOADS);
  Texts& only = option<Texts>("--workload", {}, "only these workloads");
  Texts& operations = option<Texts>(
      "--op",
      kOperations,
      "operations",
      CLI::IsMember(kOperations));
  bool& kernel = flag("--kernel", "lookup and update without the layer");
  bool& refuse = flag("--refuse", "refuse gradients that are not finite");
  bool& limits = flag(
      "--limits,!--no-limits",
      "also time plain loops that do the same",
      true);
  int64_t& threads =
      integer("--threads", 0, "0: LibTorch's default", up_to(1024, 0));
  int64_t& warmup =
      integer("--warmup", 3, "untimed runs", up_to(1'000'000'000, 0));
  int64_t& repetitions = integer("--reps", 32, "minimum number of timed runs");
  double& min_ms =
      real("--min-ms", 100.0, "minimum total time of the timed runs in ms");
  int64_t& seed =
      integer("--seed", 0, "seed of the ids", up_to(1'000'000'000, 0));
  int64_t& batches = integer("--batches", 32, "batches that take turns");
  std::string& ids = text("--ids", "folder with the ids as NAME.npy");
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
  const bool is_without =
      operation == "sgd" || operation == "forward" || operation == "initialize";
  return is_without ? 0.0 : operation == "adagrad" ? 1.0 : 2.0;
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

// One sum-pooled feature per table, batches for them, and the gradients of the
// activations.
struct Inputs {
  Nest<FeatureConfig> configs;
  std::vector<Features> batches;
  std::vector<at::Tensor> gradients;
  double touched_rows = 0.0;  // the mean of the batches
};

double count_distinct(const at::Tensor& ids) {
  const int64_t* data = ids.const_data_ptr<int64_t>();
  return static_cast<double>(
      std::unordered_set<int64_t>(data, data + ids.numel()).size());
}

// `ids` is [batches, tables, batch * bag].
Inputs make_inputs(const Workload& workload, const at::Tensor& ids) {
  Inputs inputs;
  Nest<FeatureConfig>::Map configs;
  for (int64_t i = 0; i < workload.tables; ++i) {
    const std::string name = c10::str("table", i);
    const TablePtr table = make_table(
        {.name = name,
         .vocabulary_size = workload.rows,
         .dim = workload.dim,
         .combiner = Combiner::kSum,
         .dtype = workload.dtype,
         .slot_dtype = workload.slot_dtype});
    configs.emplace_back(name, FeatureConfig{.table = table});
    inputs.gradients.push_back(
        at::randn({workload.batch, workload.dim}, at::kFloat));
  }
  inputs.configs = Nest<FeatureConfig>::map(std::move(configs));
  const at::Tensor splits =
      at::arange(0, workload.ids_per_table() + 1, workload.bag, at::kLong);
  for (int64_t batch = 0; batch < ids.size(0); ++batch) {
    Nest<Feature>::Map features;
    for (int64_t i = 0; i < workload.tables; ++i) {
      const at::Tensor values = ids[batch][i];
      inputs.touched_rows +=
          count_distinct(values) / static_cast<double>(ids.size(0));
      features.emplace_back(
          c10::str("table", i),
          RaggedFeature{.values = values, .row_splits = splits});
    }
    inputs.batches.push_back(Nest<Feature>::map(std::move(features)));
  }
  return inputs;
}

// The bytes of the tables and slots.
double stored_bytes(const Workload& workload, const std::string& operation) {
  const auto numbers =
      static_cast<double>(workload.tables * workload.rows * workload.dim);
  return numbers *
      (c10::elementSize(workload.dtype) +
       slots_of(operation, workload.dim) *
           c10::elementSize(workload.slot_dtype));
}

// The memory traffic: a forward pass reads a row per id and writes an activation per
// bag. A step also reads the activations' gradients, and reads and writes each row that
// it updates, with its slots. The traffic of ids is negligible. This is the mean of all
// batches.
double traffic_bytes(
    const Workload& workload,
    const std::string& operation,
    double touched_rows) {
  if (operation == "initialize") {
    return stored_bytes(workload, operation);
  }
  const auto row = static_cast<double>(workload.dim * sizeof(float));
  const double stored =
      static_cast<double>(workload.dim) * c10::elementSize(workload.dtype);
  const auto bags = static_cast<double>(workload.tables * workload.batch);
  const double forward =
      bags * (static_cast<double>(workload.bag) * stored + row);
  if (operation == "forward") {
    return forward;
  }
  const double updated = operation == "adam_exact"
      ? static_cast<double>(workload.tables * workload.rows)
      : touched_rows;
  return forward + bags * row +
      2.0 *
      (stored +
       slots_of(operation, workload.dim) * static_cast<double>(workload.dim) *
           c10::elementSize(workload.slot_dtype)) *
      updated;
}

// What it takes to create the tables and slots.
struct Start {
  double ms = 0.0;
  double resident_bytes = 0.0;
};

auto measure_start(Start& start, const auto& make) {
  const double resident = resident_now();
  const Stopwatch watch;
  auto made = make();
  start = {watch.ms(), resident_now() - resident};
  return made;
}

using Run = std::function<void(size_t batch)>;

// Runs the public layer, with autograd.
Run layer_run(
    const Inputs& inputs,
    const std::string& operation,
    NonFiniteGradients non_finite_gradients,
    Start& start) {
  const auto layer = measure_start(start, [&] {
    return TPUEmbedding(TPUEmbeddingOptions{
        .features = inputs.configs,
        .optimizer = optimizer_of(operation),
        .non_finite_gradients = non_finite_gradients});
  });
  return [&inputs, layer, is_forward = operation == "forward"](size_t batch) {
    const at::AutoGradMode grad_mode(!is_forward);
    const auto activations = layer.ptr()->forward(inputs.batches[batch]);
    if (!is_forward) {
      torch::autograd::backward(activations.flatten(), inputs.gradients);
    }
  };
}

// Runs lookup and update of a batch that was already converted to bags.
Run kernel_run(
    const Inputs& inputs,
    const std::string& operation,
    NonFiniteGradients non_finite_gradients,
    Start& start) {
  const auto state = measure_start(start, [&] {
    return std::make_shared<EmbeddingState>(make_state(
        inputs.configs, optimizer_of(operation), 0, WithSlots::kYes));
  });
  state->non_finite_gradients = non_finite_gradients;
  std::vector<std::vector<IdBags>> bags;
  for (const Features& features : inputs.batches) {
    bags.push_back(
        read_batch(inputs.configs, state->features, features, {}).bags);
  }
  return [&inputs,
          store = std::make_shared<TableStore>(state),
          bags = std::move(bags),
          is_forward = operation == "forward"](size_t batch) mutable {
    store->lookup_local(bags[batch], UnknownKeys::kAdmitted);
    if (!is_forward) {
      store->apply_update(store->plan_update(
          {{.bags = &bags[batch], .gradients = inputs.gradients}}));
    }
  };
}

// Runs initializers on memory that is already mapped. A new table also waits for the
// system to allocate its pages.
Run initialize_run(const Inputs& inputs, Start& start) {
  const auto state = measure_start(start, [&] {
    return std::make_shared<EmbeddingState>(
        make_state(inputs.configs, optim::SGD{}, 0, WithSlots::kYes));
  });
  return [state](size_t /*batch*/) {
    for (TableState& table : state->tables) {
      fill_rows(table, state->seed);
    }
  };
}

Run make_run(
    const Inputs& inputs,
    const std::string& operation,
    const Options& options,
    Start& start) {
  if (operation == "initialize") {
    return initialize_run(inputs, start);
  }
  const auto non_finite_gradients =
      options.refuse ? NonFiniteGradients::kRefuse : NonFiniteGradients::kApply;
  return (options.kernel ? kernel_run : layer_run)(
      inputs, operation, non_finite_gradients, start);
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
      {"sgd_update_limit_ms", limits->sgd_update_ms},
      {"adagrad_update_limit_ms", limits->adagrad_update_ms},
      {"adam_update_limit_ms", limits->adam_update_ms}};
}

bool is_chosen(const Workload& workload, const Options& options) {
  return options.only.empty() ||
      std::find(options.only.begin(), options.only.end(), workload.name) !=
      options.only.end();
}

void run(const Options& options) {
  if (options.threads > 0) {
    at::set_num_threads(static_cast<int>(options.threads));
  }
  for (const Workload& workload : read_workloads(options.workloads)) {
    if (!is_chosen(workload, options)) {
      continue;
    }
    const at::Tensor ids = options.ids.empty()
        ? draw_ids(
              workload, options.batches, static_cast<uint64_t>(options.seed))
        : read_ids(workload, options.ids);
    const Json limits =
        options.limits ? limits_of(workload, ids, options) : Json::object();
    const Inputs inputs = make_inputs(workload, ids);
    for (const std::string& operation : options.operations) {
      Start start;
      const Run run_batch = make_run(inputs, operation, options, start);
      const double bytes =
          traffic_bytes(workload, operation, inputs.touched_rows);
      const auto times = sorted_ms(
          {.warmup = options.warmup,
           .least = options.repetitions,
           .least_ms = options.min_ms},
          [&](int64_t i) { run_batch(i % ids.size(0)); });
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
          {"bytes", bytes},
          {"gb_per_s", bytes / ms / 1e6},
          {"start_ms", start.ms},
          {"stored_bytes", stored_bytes(workload, operation)},
          {"resident_bytes", start.resident_bytes},
          {"process_bytes", resident_now()}};
      line.update(limits);
      std::cout << line.dump() << std::endl;
    }
  }
}

}  // namespace

TESSERA_BENCHMARK(
    "Times TPUEmbedding; ms is the median of the repetitions.",
    run)
