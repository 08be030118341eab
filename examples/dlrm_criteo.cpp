// SPDX-License-Identifier: Apache-2.0
// Predicts clicks with DLRM or DCN-v2, on files in the format of the Criteo click
// logs: reads them, makes vocabularies, trains, resumes, exports and serves.
#include "examples/click_model.h"

#include <tessera/tessera.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>
#include <torch/script.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>

namespace fs = std::filesystem;
namespace optim = tessera::optim;
using tessera::FeaturePipeline;
using tessera::PipelineBatch;
using torch::Tensor;

namespace {

// Gradients of a mean over a batch are small, and a larger one would hide them.
constexpr double kInitialAccumulator = 1e-8;

// Of the integers' intervals: the smallest have one each, then two per octave.
const std::vector<double> kBoundaries{
    -2,   -1,   0,    1,    2,    3,     4,     6,     8,     12,    16,   24,
    32,   48,   64,   96,   128,  192,   256,   384,   512,   768,   1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536};

struct Options {
  std::vector<std::string> data = {};  // training files
  std::vector<std::string> test = {};
  int64_t generate = 1'000'000;  // examples, without data
  std::string folder = "criteo-generated";  // for them
  std::string model = "dlrm";
  int64_t dim = 16;
  int64_t min_count = 2;
  int64_t batch = 1024;
  int64_t epochs = 1;
  std::string optimizer = "adagrad";
  double learning_rate = 0.1;  // of tables
  double dense_learning_rate = 0.03;
  int64_t seed = 0;
  std::string malformed = "error";
  std::string checkpoint = {};  // directory
  int64_t every_steps = 0;
  std::string exported = {};  // file
  std::string history = {};  // directory
  std::string arrays = {};  // directory
  bool in_memory = false;
  bool json = false;
};

// A batch as the model takes it.
struct Batch {
  PipelineBatch inputs;
  Tensor labels;
};

Batch to_batch(
    const tessera::CriteoBatch& read,
    const FeaturePipeline& pipeline) {
  return {pipeline.apply(tessera::to_columns(read)), read.labels};
}

tessera::CriteoReader open_files(
    const std::vector<std::string>& files,
    const Options& options) {
  return tessera::CriteoReader(
      {.files = files,
       .batch_size = options.batch,
       .malformed_lines = options.malformed == "skip"
           ? tessera::MalformedLines::kSkip
           : tessera::MalformedLines::kError});
}

// snippet: clicks
// The batches of some files, as fit() reads them.
class Clicks {
 public:
  Clicks(
      const std::vector<std::string>& files,
      const FeaturePipeline& pipeline,
      const Options& options)
      : reader_(open_files(files, options)), pipeline_(pipeline) {}

  std::optional<Batch> next() {
    const auto read = reader_.next();
    return read ? std::optional(to_batch(*read, pipeline_)) : std::nullopt;
  }
  // Without the work of the pipeline; how many there were.
  int64_t skip(int64_t count) {
    int64_t skipped = 0;
    while (skipped < count && reader_.next()) {
      ++skipped;
    }
    return skipped;
  }

 private:
  tessera::CriteoReader reader_;
  FeaturePipeline pipeline_;
};
// end snippet

// snippet: pipeline
// Logarithms and intervals of the integers, a vocabulary for each category column.
FeaturePipeline learn_pipeline(const Options& options) {
  std::vector<tessera::VocabularyBuilder> builders(tessera::kCriteoCategories);
  tessera::CriteoReader reader = open_files(options.data, options);
  for (const tessera::CriteoBatch& batch : reader) {
    const tessera::Columns columns = tessera::to_columns(batch);
    for (size_t i = 0; i < builders.size(); ++i) {
      builders[i].add(columns.at(c10::str("C", i + 1)));
    }
  }
  for (const std::string& line : reader.report().first_malformed_lines) {
    std::cerr << "skipped " << line << "\n";
  }
  if (reader.report().malformed_lines > 0) {
    std::cerr << reader.report().malformed_lines << " lines skipped\n";
  }
  // A missing number is not a zero.
  tessera::PipelineOutput numbers{
      .name = "numbers",
      .transform = tessera::transforms::Log1p{.missing_value = -1.0}};
  for (int64_t i = 1; i <= tessera::kCriteoIntegers; ++i) {
    numbers.columns.push_back(c10::str("I", i));
  }
  std::vector<tessera::PipelineOutput> outputs{numbers};
  for (const std::string& column : numbers.columns) {
    outputs.push_back(
        {.name = column,
         .columns = {column},
         .transform =
             tessera::transforms::Bucketize{.boundaries = kBoundaries}});
  }
  for (size_t i = 0; i < builders.size(); ++i) {
    const std::string name = c10::str("C", i + 1);
    outputs.push_back(
        {.name = name,
         .columns = {name},
         .transform = builders[i].size() == 0
             ? tessera::Transform(tessera::transforms::Hash{.num_bins = 2})
             : builders[i].finish({.min_count = options.min_count})});
  }
  return FeaturePipeline(std::move(outputs));
}
// end snippet

// snippet: tables
optim::OptimizerSpec table_optimizer(const Options& options) {
  if (options.optimizer == "adam") {
    return optim::Adam{.learning_rate = options.learning_rate};
  }
  return optim::Adagrad{
      .learning_rate = options.learning_rate,
      .initial_accumulator_value = kInitialAccumulator};
}

ClickModelOptions model_options(
    const FeaturePipeline& pipeline,
    const Options& options) {
  tessera::Nest<tessera::FeatureConfig>::Map features;
  for (const tessera::PipelineOutput& output : pipeline.outputs()) {
    if (output.name == "numbers") {
      continue;
    }
    features.emplace_back(
        output.name,
        tessera::FeatureConfig{
            .table = tessera::make_table(
                {.name = output.name,
                 .vocabulary_size = pipeline.vocabulary_size(output.name),
                 .dim = options.dim,
                 .combiner = tessera::Combiner::kSum})});
  }
  return {
      .features =
          tessera::Nest<tessera::FeatureConfig>::map(std::move(features)),
      .optimizer = table_optimizer(options),
      .seed = static_cast<uint64_t>(options.seed),
      .interaction = options.model,
      .num_dense = pipeline.num_dense()};
}
// end snippet

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// With a checkpoint directory, the pipeline of its first run: what is resumed
// must see the same ids.
FeaturePipeline find_pipeline(const Options& options) {
  if (options.checkpoint.empty()) {
    return learn_pipeline(options);
  }
  const fs::path path = fs::path(options.checkpoint) / "pipeline.json";
  if (fs::exists(path)) {
    return tessera::load_pipeline(path.string());
  }
  FeaturePipeline pipeline = learn_pipeline(options);
  fs::create_directories(options.checkpoint);
  tessera::save_pipeline(pipeline, path.string());
  return pipeline;
}

// The model's JSON stands beside its checkpoints, and must be the same.
void keep_config(const ClickModel& model, const Options& options) {
  if (options.checkpoint.empty()) {
    return;
  }
  const fs::path path = fs::path(options.checkpoint) / "model.json";
  const std::string text = tessera::to_json(model).dump(2);
  if (!fs::exists(path)) {
    const std::string partial = path.string() + ".partial";
    std::ofstream file(partial);
    file << text;
    file.close();
    TORCH_CHECK(
        file.good(),
        "[dlrm_criteo] expected to write ",
        partial,
        ", but it failed. Is the disk full?");
    fs::rename(partial, path);
    return;
  }
  TORCH_CHECK_VALUE(
      read_text(path) == text,
      "[dlrm_criteo] ",
      path.string(),
      " is of a model with other options. Give the same ones, or another "
      "--checkpoint directory.");
}

tessera::Callbacks make_callbacks(
    const ClickModel& model,
    torch::optim::Optimizer& optimizer,
    const Options& options) {
  tessera::Callbacks callbacks{
      std::make_shared<tessera::ProgressBar>(),
      std::make_shared<tessera::TerminateOnNonFinite>()};
  if (!options.history.empty()) {
    fs::create_directories(options.history);
    const fs::path folder(options.history);
    callbacks.push_back(
        std::make_shared<tessera::CsvHistory>(folder / "history.csv"));
    callbacks.push_back(
        std::make_shared<tessera::LearningCurves>(folder / "history.svg"));
  }
  if (!options.checkpoint.empty()) {
    callbacks.push_back(std::make_shared<tessera::Checkpoint>(
        options.checkpoint,
        model.ptr(),
        optimizer,
        tessera::TrainingCheckpointOptions{
            .every_steps = options.every_steps}));
  }
  return callbacks;
}

std::unique_ptr<torch::optim::Optimizer> dense_optimizer(
    const ClickModelImpl& model,
    const Options& options) {
  if (options.optimizer == "adam") {
    return std::make_unique<torch::optim::Adam>(
        model.parameters(),
        torch::optim::AdamOptions(options.dense_learning_rate));
  }
  return std::make_unique<torch::optim::Adagrad>(
      model.parameters(),
      torch::optim::AdagradOptions(options.dense_learning_rate)
          .initial_accumulator_value(kInitialAccumulator));
}

struct Training {
  int64_t examples = 0;
  double seconds = 0.0;
  std::string stop_reason = {};
};

// snippet: fit
// On the batches of `source`, once per epoch.
template <class Source>
Training train(ClickModel& model, Source&& source, const Options& options) {
  const auto optimizer = dense_optimizer(*model, options);
  Training training;
  const auto loss_of = [&](const Batch& batch) {
    const Tensor logits =
        model->forward(batch.inputs.features, batch.inputs.dense);
    training.examples += batch.labels.size(0);
    return tessera::StepResult{
        .loss = torch::binary_cross_entropy_with_logits(logits, batch.labels),
        .predictions = logits,
        .labels = batch.labels};
  };
  const auto begin = std::chrono::steady_clock::now();
  const tessera::History history = tessera::fit(
      source,
      tessera::make_train_step(*optimizer, loss_of),
      {.epochs = options.epochs,
       .model = model.ptr(),
       .metrics = {std::make_shared<tessera::LogLoss>(
           tessera::LogLossOptions{.scores = tessera::ScoreKind::kLogits})},
       .callbacks = make_callbacks(model, *optimizer, options)});
  training.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  training.stop_reason = history.stop_reason;
  return training;
}
// end snippet

Training train(
    ClickModel& model,
    const FeaturePipeline& pipeline,
    const Options& options) {
  const auto open = [&] { return Clicks(options.data, pipeline, options); };
  if (!options.in_memory) {
    return train(model, open, options);
  }
  std::vector<Batch> batches;
  Clicks clicks = open();
  while (auto batch = clicks.next()) {
    batches.push_back(std::move(*batch));
  }
  return train(model, batches, options);
}

struct Predictions {
  Tensor logits;
  Tensor labels;
};

Predictions predict(
    ClickModel& model,
    const FeaturePipeline& pipeline,
    const Options& options) {
  model->eval();
  const torch::NoGradGuard no_grad;
  std::vector<Tensor> logits;
  std::vector<Tensor> labels;
  Clicks clicks(options.test, pipeline, options);
  while (const auto batch = clicks.next()) {
    logits.push_back(
        model->forward(batch->inputs.features, batch->inputs.dense));
    labels.push_back(batch->labels);
  }
  return {torch::cat(logits), torch::cat(labels)};
}

double auc_of(const Tensor& scores, const Tensor& labels) {
  tessera::AUC auc;
  auc.update(scores, labels);
  return auc.result();
}

// snippet: serve
// Exports the model, and answers the first test batch as a server would: from the
// exported file, which has no Tessera in it, and the pipeline's file.
bool serves_the_same(
    ClickModel& model,
    const FeaturePipeline& pipeline,
    const Predictions& expected,
    const Options& options) {
  const fs::path path = options.exported;
  const std::string features = path.string() + ".pipeline.json";
  tessera::save_pipeline(pipeline, features);
  const Batch example = *Clicks(options.test, pipeline, options).next();
  tessera::export_torchscript(
      model,
      path.string(),
      {.features = example.inputs.features, .inputs = {example.inputs.dense}});

  torch::jit::Module served = torch::jit::load(path.string());
  const Batch batch =
      *Clicks(options.test, tessera::load_pipeline(features), options).next();
  c10::Dict<std::string, c10::List<Tensor>> inputs;
  for (const auto& [name, feature] : batch.inputs.features.entries()) {
    inputs.insert(name, c10::List<Tensor>({std::get<Tensor>(feature.leaf())}));
  }
  const torch::NoGradGuard no_grad;
  const Tensor logits = served.forward({inputs, batch.inputs.dense}).toTensor();
  return torch::allclose(
      logits, expected.logits.slice(0, 0, logits.size(0)), 1e-4, 1e-5);
}
// end snippet

// What the peers' script trains on: the same ids, numbers and labels.
void write_arrays(const FeaturePipeline& pipeline, const Options& options) {
  fs::create_directories(options.arrays);
  const auto write = [&](const std::vector<std::string>& files,
                         const std::string& name) {
    std::vector<Tensor> ids;
    std::vector<Tensor> dense;
    std::vector<Tensor> labels;
    Clicks clicks(files, pipeline, options);
    while (const auto batch = clicks.next()) {
      std::vector<Tensor> columns;
      for (const auto& feature : batch->inputs.features.flatten()) {
        columns.push_back(std::get<Tensor>(feature));
      }
      ids.push_back(torch::stack(columns, 1));
      dense.push_back(batch->inputs.dense);
      labels.push_back(batch->labels);
    }
    const auto path = [&](const char* kind) {
      return (fs::path(options.arrays) / (name + "_" + kind + ".npy")).string();
    };
    tessera::save_npy(torch::cat(ids), path("ids"));
    tessera::save_npy(torch::cat(dense), path("dense"));
    tessera::save_npy(torch::cat(labels), path("labels"));
  };
  write(options.data, "train");
  write(options.test, "test");
  std::vector<int64_t> sizes;
  for (const auto& output : pipeline.outputs()) {
    if (output.name != "numbers") {
      sizes.push_back(pipeline.vocabulary_size(output.name));
    }
  }
  tessera::save_npy(
      torch::tensor(sizes, torch::kLong),
      (fs::path(options.arrays) / "vocabulary_sizes.npy").string());
}

// Files of generated examples, made once; the AUC of their true probabilities.
double generate(Options& options) {
  fs::create_directories(options.folder);
  const auto path = [&](const char* kind, const char* suffix) {
    return (fs::path(options.folder) /
            (std::to_string(options.generate) + "_" + kind + suffix))
        .string();
  };
  const int64_t tests = std::max<int64_t>(options.generate / 5, 1000);
  const auto write = [&](const char* kind, int64_t first, int64_t count) {
    const tessera::CriteoGenerator generator(
        {.examples = count, .first_example = first});
    const std::string partial = path(kind, ".partial");
    tessera::save_npy(generator.write(partial), path(kind, ".npy"));
    fs::rename(partial, path(kind, ".txt"));
  };
  if (!fs::exists(path("test", ".txt"))) {
    write("train", 0, options.generate);
    write("test", options.generate, tests);
  }
  options.data = {path("train", ".txt")};
  options.test = {path("test", ".txt")};
  std::vector<Tensor> labels;
  for (const auto& batch : open_files(options.test, options)) {
    labels.push_back(batch.labels);
  }
  return auc_of(tessera::load_npy(path("test", ".npy")), torch::cat(labels));
}

int run(Options options) {
  std::optional<double> bayes;
  if (options.data.empty()) {
    bayes = generate(options);
  }
  TORCH_CHECK_VALUE(
      !options.test.empty(),
      "[dlrm_criteo] --data needs --test: other files of the same format.");
  // What would fail after hours of training.
  TORCH_CHECK_VALUE(
      open_files(options.test, options).next().has_value(),
      "[dlrm_criteo] the files of --test have no example.");
  if (!options.exported.empty()) {
    TORCH_CHECK_VALUE(
        fs::is_directory(fs::absolute(options.exported).parent_path()) &&
            !fs::is_directory(options.exported),
        "[dlrm_criteo] --export must be a file in a folder that exists, but "
        "got '",
        options.exported,
        "'.");
  }
  const FeaturePipeline pipeline = find_pipeline(options);
  if (!options.arrays.empty()) {
    write_arrays(pipeline, options);
  }
  torch::manual_seed(options.seed);
  ClickModel model(model_options(pipeline, options));
  tessera::validate(pipeline, model->options().features);
  keep_config(model, options);
  if (!options.json) {
    std::cout << model->summary() << std::flush;
  }
  const Training training = train(model, pipeline, options);
  const Predictions predicted = predict(model, pipeline, options);
  const double auc = auc_of(predicted.logits, predicted.labels);
  tessera::LogLoss log_loss({.scores = tessera::ScoreKind::kLogits});
  log_loss.update(predicted.logits, predicted.labels);
  const double speed = training.seconds > 0.0
      ? static_cast<double>(training.examples) / training.seconds
      : 0.0;
  std::optional<bool> serves;
  if (!options.exported.empty()) {
    serves = serves_the_same(model, pipeline, predicted, options);
  }

  if (options.json) {
    nlohmann::ordered_json report = {
        {"model", options.model},
        {"seed", options.seed},
        {"test_examples", predicted.labels.size(0)},
        {"auc", auc},
        {"log_loss", log_loss.result()},
        {"examples", training.examples},
        {"seconds", training.seconds},
        {"examples_per_second", speed},
        {"updates", model->embedding()->iterations()},
        {"stopped", training.stop_reason}};
    if (bayes) {
      report["bayes_auc"] = *bayes;
    }
    if (serves) {
      report["equal_from_export"] = *serves;
    }
    std::cout << report.dump(2) << "\n";
  } else {
    std::cout << std::fixed << std::setprecision(4) << "\n"
              << options.model << " on " << predicted.labels.size(0)
              << " held-out examples\n"
              << "  AUC       " << auc << "\n"
              << "  log loss  " << log_loss.result() << "\n";
    if (bayes) {
      std::cout << "  AUC of the true probabilities  " << *bayes << "\n";
    }
    std::cout << std::setprecision(1) << "\ntrained on " << training.examples
              << " examples in " << training.seconds << " s, "
              << std::setprecision(0) << speed << " examples per second\n";
    if (!training.stop_reason.empty()) {
      std::cout << "stopped early: " << training.stop_reason << "\n";
    }
    if (serves) {
      std::cout << "a batch served from the exported file: "
                << (*serves ? "equal" : "DIFFERENT") << "\n";
    }
  }
  return serves.value_or(true) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::keep_memory_between_steps();
  Options options;
  CLI::App app(
      "Trains DLRM or DCN-v2 on click logs in Criteo's format, or on generated "
      "ones, and reports on it.");
  const auto count = CLI::Range(int64_t{1}, int64_t{1'000'000'000});
  auto* data = app.add_option(
      "--data", options.data, "training files, plain or gzip, in order");
  app.add_option("--test", options.test, "files to evaluate on")->needs(data);
  app.add_option(
         "--generate",
         options.generate,
         "without --data: so many generated examples, and a fifth for the test")
      ->check(CLI::Range(int64_t{1000}, int64_t{1'000'000'000}))
      ->capture_default_str();
  app.add_option("--folder", options.folder, "of the generated files")
      ->capture_default_str();
  app.add_option("--model", options.model, "how features interact")
      ->check(CLI::IsMember({"dlrm", "dcn"}))
      ->capture_default_str();
  app.add_option("--dim", options.dim, "width of all embeddings")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  app.add_option(
         "--min-count",
         options.min_count,
         "rarer categories share the row of unknown ones")
      ->check(count)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "examples per step")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "passes over the data")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option(
         "--optimizer", options.optimizer, "of tables and dense weights")
      ->check(CLI::IsMember({"adam", "adagrad"}))
      ->capture_default_str();
  app.add_option(
         "--learning-rate", options.learning_rate, "learning rate of tables")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option(
         "--dense-learning-rate",
         options.dense_learning_rate,
         "that of dense weights")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of initial values")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--malformed", options.malformed, "lines that are no example")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
  app.add_option(
      "--checkpoint",
      options.checkpoint,
      "directory: save after each epoch and at Ctrl-C, resume from what is there");
  app.add_option(
         "--every-steps", options.every_steps, "save after so many steps, too")
      ->check(CLI::NonNegativeNumber);
  app.add_option(
      "--export",
      options.exported,
      "write TorchScript to this file, serve a batch from it");
  app.add_option(
      "--history", options.history, "directory for history.csv and .svg");
  app.add_option(
      "--write-arrays",
      options.arrays,
      "directory for ids, numbers and labels as .npy");
  app.add_flag(
      "--in-memory", options.in_memory, "read all batches before training");
  app.add_flag("--json", options.json, "report as JSON");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(std::move(options));
  } catch (const c10::Error& error) {
    std::cerr << error.what_without_backtrace() << "\n";
  } catch (const fs::filesystem_error& error) {
    std::cerr << "[dlrm_criteo] " << error.what() << "\n";
  }
  return 1;
}
