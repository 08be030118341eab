// SPDX-License-Identifier: Apache-2.0
// Compares how well a click model predicts with three kinds of tables: with a row for each
// id (a vocabulary), with keys, and with ids that are hashed to rows. Keys and hashed ids
// get the same memory, a fraction of the memory that the rows of the vocabulary take.
//
// All train on the same generated clicks in the same order, in one epoch, with the same
// model and optimizers. The AUC is that of later clicks. The columns with few ids have a
// vocabulary in all three, and their memory is not counted.
#include "examples/dlrm/click_model.h"
#include "src/common/atomic_file.h"
#include "tests/benchmarks/key_quality_sides.h"
#include "tests/benchmarks/long_tail_clicks.h"
#include "tests/benchmarks/torch_benchmark.h"

#include <tessera/tessera.h>

namespace data = tessera::data;
namespace optim = tessera::optim;
namespace training = tessera::training;
using nlohmann::json;
using torch::Tensor;

namespace {

struct Options : BenchmarkOptions {
  int64_t& rows = integer("--rows", 1'000'000, "clicks to train on");
  int64_t& test_rows =
      integer("--test-rows", 500'000, "later clicks, for the AUC");
  std::vector<int64_t>& seeds = option<std::vector<int64_t>>(
      "--seeds",
      {0, 1, 2},
      "of the clicks and the model");
  std::vector<double>& fractions = option<std::vector<double>>(
      "--fractions",
      {0.025, 0.05, 0.1, 0.2, 0.5, 1.0},
      "memory of keys and hashed ids, as fractions of the vocabulary's",
      CLI::Range(1e-6, 1.0));
  int64_t& dim = integer("--dim", 16, "floats per row");
  std::string& dtype = text(
      "--dtype",
      "of the tables",
      "float32",
      CLI::IsMember({"float32", "bfloat16", "float16", "int8"}));
  int64_t& batch = integer("--batch", 2048, "clicks per step");
  double& learning_rate =
      real("--learning-rate", 0.1, "of the tables", CLI::PositiveNumber);
  double& dense_learning_rate = real(
      "--dense-learning-rate",
      0.01,
      "of the other weights",
      CLI::PositiveNumber);
  double& initial = real(
      "--initial",
      0.01,
      "bound of the rows' initial values",
      CLI::PositiveNumber);
  int64_t& occurrences =
      integer("--occurrences", 2, "after which a key gets a row; 1: every key");
  double& counters_per_row = real(
      "--counters-per-row",
      4.0,
      "counters of the sketch per row",
      CLI::PositiveNumber);
  std::string& eviction =
      text("--eviction", "", "lfu", CLI::IsMember({"lfu", "lru"}));
  double& half_life =
      real("--half-life", 10'000, "of lfu, in updates", CLI::PositiveNumber);
  std::string& json =
      text("--json", "file for the results; default: standard output");

  SideOptions side() const {
    return {
        dim,
        initial,
        tessera::dtype_from_string(dtype),
        occurrences,
        counters_per_row,
        eviction,
        half_life};
  }
};

struct Log {
  std::vector<LongTailClicks::Examples> train = {};
  std::vector<LongTailClicks::Examples> test = {};
  // Of each column.
  std::vector<data::transforms::Vocabulary> vocabularies = {};
  double best_auc = 0.0;  // of the true probabilities
};

std::vector<LongTailClicks::Examples> make_batches(
    const LongTailClicks& clicks,
    int64_t first,
    int64_t rows,
    int64_t batch) {
  std::vector<LongTailClicks::Examples> batches;
  for (int64_t i = 0; i < rows; i += batch) {
    batches.push_back(clicks.make(first + i, std::min(batch, rows - i)));
  }
  return batches;
}

Log make_log(int64_t seed, const Options& options) {
  const LongTailClicks clicks(seed);
  Log log{
      .train = make_batches(clicks, 0, options.rows, options.batch),
      .test =
          make_batches(clicks, options.rows, options.test_rows, options.batch)};
  for (const auto& column : LongTailClicks::kIdColumns) {
    data::VocabularyBuilder builder(column.name);
    for (const LongTailClicks::Examples& batch : log.train) {
      builder.add(batch.columns.at(column.name));
    }
    log.vocabularies.push_back(builder.finish());
  }
  training::AUC best;
  for (const LongTailClicks::Examples& batch : log.test) {
    best.update(batch.probabilities, batch.clicks);
  }
  log.best_auc = best.result();
  return log;
}

// Returns the AUC of the test.
double train_and_test(
    const Side& side,
    const Log& log,
    int64_t seed,
    const Options& options) {
  // The loss is a mean over the batch, so gradients are small. They would not matter
  // beside a larger initial accumulator.
  constexpr double kInitialAccumulator = 1e-8;
  const data::FeaturePipeline pipeline(side.outputs);
  torch::manual_seed(seed);
  ClickModel model(ClickModelOptions{
      .features = tessera::Nest<tessera::FeatureConfig>::map(side.features),
      .optimizer =
          optim::Adagrad{
              .learning_rate = options.learning_rate,
              .initial_accumulator_value = kInitialAccumulator},
      .seed = static_cast<uint64_t>(seed),
      .interaction = "dcn",
      .num_dense = LongTailClicks::kNumbers,
      .cross_layers = 2});
  torch::optim::Adagrad optimizer(
      model->parameters(),
      torch::optim::AdagradOptions(options.dense_learning_rate)
          .initial_accumulator_value(kInitialAccumulator));
  const auto step_of = [&](const LongTailClicks::Examples& batch) {
    const data::PipelineBatch inputs = pipeline.apply(batch.columns);
    const Tensor logits = model->forward(inputs.features, inputs.dense);
    return training::StepResult{
        .loss = torch::binary_cross_entropy_with_logits(logits, batch.clicks),
        .predictions = logits,
        .labels = batch.clicks};
  };
  training::fit(
      log.train,
      training::make_train_step(optimizer, step_of),
      {.model = model.ptr(), .movement_warning = false});
  model->eval();
  const auto auc = std::make_shared<training::AUC>();
  training::evaluate(*training::make_pass(log.test, step_of), {auc});
  return auc->result();
}

// Adds a run to a point, which has the runs of one side with one memory.
void add_run(
    json& point,
    const Log& log,
    int64_t seed,
    const Options& options) {
  const Stopwatch watch;
  const Side side = make_side(
      point["side"], point["fraction"], log.vocabularies, options.side());
  const double auc = train_and_test(side, log, seed, options);
  point["rows"].push_back(side.rows);
  point["bytes"].push_back(side.bytes);
  point["auc"].push_back(auc);
  std::cerr << fmt::format(
      "seed {}, {} with {:g} of the memory: {} rows, {:.1f} MB, AUC {:.5f}, {:.1f} s\n",
      seed,
      point["side"].get<std::string>(),
      point["fraction"].get<double>(),
      side.rows,
      static_cast<double>(side.bytes) / 1e6,
      auc,
      watch.seconds());
}

json to_json(const Options& options) {
  return {
      {"rows", options.rows},
      {"test_rows", options.test_rows},
      {"seeds", options.seeds},
      {"dim", options.dim},
      {"dtype", options.dtype},
      {"batch", options.batch},
      {"learning_rate", options.learning_rate},
      {"dense_learning_rate", options.dense_learning_rate},
      {"occurrences", options.occurrences},
      {"counters_per_row", options.counters_per_row},
      {"eviction", options.eviction},
      {"half_life", options.half_life},
      {"threads", at::get_num_threads()},
      {"isa", tessera::instruction_set()}};
}

void run(const Options& options) {
  // Opened first, so that a wrong path is an error before the training.
  std::optional<tessera::AtomicFile> file;
  if (!options.json.empty()) {
    file.emplace(options.json, "[key_quality_benchmark]");
  }
  json points{{{"side", "vocabulary"}, {"fraction", 1.0}}};
  for (const double fraction : options.fractions) {
    for (const char* side : {"keys", "hash"}) {
      points.push_back({{"side", side}, {"fraction", fraction}});
    }
  }
  json best_auc;
  for (const int64_t seed : options.seeds) {
    const Log log = make_log(seed, options);
    best_auc.push_back(log.best_auc);
    for (json& point : points) {
      add_run(point, log, seed, options);
    }
  }
  const json result{
      {"settings", to_json(options)},
      {"best_auc", best_auc},
      {"points", points}};
  const std::string text = result.dump(1) + "\n";
  if (file) {
    file->write(text.data(), text.size());
    file->commit();
  } else {
    std::cout << text;
  }
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  return run_benchmark(
      argc,
      argv,
      "Compares the AUC of a click model with a vocabulary, with keys and with hashed ids.",
      run);
}
