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

#include <tessera/tessera.h>

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace data = tessera::data;
namespace optim = tessera::optim;
namespace training = tessera::training;
using nlohmann::json;
using torch::Tensor;

namespace {

struct Options {
  int64_t rows = 1'000'000;
  int64_t test_rows = 500'000;
  std::vector<int64_t> seeds = {0, 1, 2};
  // Of the memory of the full vocabulary.
  std::vector<double> fractions = {0.025, 0.05, 0.1, 0.2, 0.5, 1.0};
  int64_t batch = 2048;
  double learning_rate = 0.1;
  double dense_learning_rate = 0.01;
  SideOptions side = {};
  std::string json = {};  // file
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
      {.model = model.ptr(),
       .movement_warning = training::MovementWarning::kOff});
  model->eval();
  const auto auc = std::make_shared<training::AUC>();
  training::evaluate(*training::make_pass(log.test, step_of), {auc});
  return auc->result();
}

// The runs of one side with one memory.
struct Point {
  std::string side;
  double fraction;
  std::vector<int64_t> rows = {};  // [seeds]
  std::vector<int64_t> bytes = {};  // [seeds]
  std::vector<double> auc = {};  // [seeds]
};

// The mean over the seeds, and the lowest and the highest value.
struct Spread {
  double mean = 0.0;
  double low = 0.0;
  double high = 0.0;
};

Spread spread_of(const std::vector<double>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return {
      .mean = std::accumulate(values.begin(), values.end(), 0.0) /
          static_cast<double>(values.size()),
      .low = *low,
      .high = *high};
}

// How much higher the AUC of `point` is than that of `reference` with the same seed.
Spread difference(const Point& point, const Point& reference) {
  std::vector<double> values;
  for (size_t i = 0; i < point.auc.size(); ++i) {
    values.push_back(point.auc[i] - reference.auc[i]);
  }
  return spread_of(values);
}

std::string thousands(int64_t value) {
  std::string text = std::to_string(value);
  for (auto at = static_cast<int64_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

std::string megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

void add_run(
    Point& point,
    const Log& log,
    int64_t seed,
    const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const Side side =
      make_side(point.side, point.fraction, log.vocabularies, options.side);
  point.rows.push_back(side.rows);
  point.bytes.push_back(side.bytes);
  point.auc.push_back(train_and_test(side, log, seed, options));
  std::cerr << fmt::format(
      "seed {}, {} with {:g} of the memory: {} rows, {}, AUC {:.5f}, {:.1f} s\n",
      seed,
      point.side,
      point.fraction,
      thousands(side.rows),
      megabytes(side.bytes),
      point.auc.back(),
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
          .count());
}

json to_json(const Options& options) {
  return {
      {"rows", options.rows},
      {"test_rows", options.test_rows},
      {"seeds", options.seeds},
      {"dim", options.side.dim},
      {"batch", options.batch},
      {"learning_rate", options.learning_rate},
      {"dense_learning_rate", options.dense_learning_rate},
      {"occurrences", options.side.occurrences},
      {"counters_per_row", options.side.counters_per_row},
      {"eviction", options.side.eviction},
      {"half_life", options.side.half_life},
      {"threads", at::get_num_threads()},
      {"isa", tessera::instruction_set()}};
}

json to_json(const Point& point) {
  return {
      {"side", point.side},
      {"fraction", point.fraction},
      {"rows", point.rows},
      {"bytes", point.bytes},
      {"auc", point.auc}};
}

// Prints the table as Markdown. `points`: the vocabulary first.
void print_table(
    const std::vector<Point>& points,
    const std::vector<double>& best_auc,
    const Options& options) {
  const Point& vocabulary = points.front();
  const Spread auc = spread_of(vocabulary.auc);
  const Spread best = spread_of(best_auc);
  std::cout << fmt::format(
      "{} clicks, tested on the next {}, {} seeds, dim {}, {} threads, {}\n"
      "true probabilities: AUC {:.4f} ({:.4f} to {:.4f})\n"
      "vocabulary: {} rows of columns with a long tail, {}, AUC {:.4f} ({:.4f} to {:.4f})\n\n"
      "| memory | side | rows | AUC | minus the AUC of the vocabulary |\n"
      "|---:|---|---:|---:|---:|\n",
      thousands(options.rows),
      thousands(options.test_rows),
      options.seeds.size(),
      options.side.dim,
      at::get_num_threads(),
      tessera::instruction_set(),
      best.mean,
      best.low,
      best.high,
      thousands(vocabulary.rows.front()),
      megabytes(vocabulary.bytes.front()),
      auc.mean,
      auc.low,
      auc.high);
  for (const Point& point : points) {
    const Spread from_vocabulary = difference(point, vocabulary);
    std::cout << fmt::format(
        "| {:g} ({}) | {} | {} | {:.4f} | {:+.4f} ({:+.4f} to {:+.4f}) |\n",
        point.fraction,
        megabytes(point.bytes.front()),
        point.side,
        thousands(point.rows.front()),
        spread_of(point.auc).mean,
        from_vocabulary.mean,
        from_vocabulary.low,
        from_vocabulary.high);
  }
}

void run(const Options& options) {
  // Opened first, so that a wrong path is an error before the training.
  std::optional<tessera::AtomicFile> file;
  if (!options.json.empty()) {
    file.emplace(options.json, "[key_quality_benchmark]");
  }
  std::vector<Point> points{{.side = "vocabulary", .fraction = 1.0}};
  for (const double fraction : options.fractions) {
    for (const char* side : {"keys", "hash"}) {
      points.push_back({.side = side, .fraction = fraction});
    }
  }
  std::vector<double> best_auc;
  for (const int64_t seed : options.seeds) {
    const Log log = make_log(seed, options);
    best_auc.push_back(log.best_auc);
    for (Point& point : points) {
      add_run(point, log, seed, options);
    }
  }
  print_table(points, best_auc, options);
  if (file) {
    json result{{"settings", to_json(options)}, {"best_auc", best_auc}};
    for (const Point& point : points) {
      result["points"].push_back(to_json(point));
    }
    const std::string text = result.dump(1) + "\n";
    file->write(text.data(), text.size());
    file->commit();
  }
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  Options options;
  CLI::App app(
      "Compares the AUC of a click model with a vocabulary, with keys and with hashed ids.");
  const auto count = [&](const char* name, int64_t& value, const char* text) {
    app.add_option(name, value, text)
        ->check(CLI::Range(int64_t{1}, int64_t{1} << 31))
        ->capture_default_str();
  };
  const auto positive = [&](const char* name, double& value, const char* text) {
    app.add_option(name, value, text)
        ->check(CLI::PositiveNumber)
        ->capture_default_str();
  };
  count("--rows", options.rows, "clicks to train on");
  count("--test-rows", options.test_rows, "later clicks, for the AUC");
  app.add_option("--seeds", options.seeds, "of the clicks and the model")
      ->capture_default_str();
  app.add_option(
         "--fractions",
         options.fractions,
         "memory of keys and hashed ids, as fractions of the vocabulary's")
      ->check(CLI::Range(1e-6, 1.0))
      ->capture_default_str();
  count("--dim", options.side.dim, "floats per row");
  count("--batch", options.batch, "clicks per step");
  positive("--learning-rate", options.learning_rate, "of the tables");
  positive(
      "--dense-learning-rate",
      options.dense_learning_rate,
      "of the other weights");
  positive(
      "--initial", options.side.initial, "bound of the rows' initial values");
  count(
      "--occurrences",
      options.side.occurrences,
      "after which a key gets a row; 1: every key");
  positive(
      "--counters-per-row",
      options.side.counters_per_row,
      "counters of the sketch per row");
  app.add_option("--eviction", options.side.eviction)
      ->check(CLI::IsMember({"lfu", "lru"}))
      ->capture_default_str();
  positive("--half-life", options.side.half_life, "of lfu, in updates");
  app.add_option("--json", options.json, "file for the results");
  CLI11_PARSE(app, argc, argv);
  try {
    run(options);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
  return 0;
}
