// SPDX-License-Identifier: Apache-2.0
// Predicts clicks with DLRM or DCN-v2, on files in the format of the Criteo click
// logs: reads them, makes vocabularies, trains, resumes, exports and serves.
#include "examples/click_logs/criteo_generator.h"
#include "examples/click_model.h"
#include "examples/dlrm_options.h"
#include "examples/dlrm_run.h"
#include "examples/outputs.h"

#include <tessera/tessera.h>

#include <nlohmann/json.hpp>
#include <torch/script.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iomanip>
#include <iostream>
#include <memory>
#include <optional>

namespace fs = std::filesystem;
namespace optim = tessera::optim;
using tessera::data::FeaturePipeline;
using tessera::data::PipelineBatch;
using torch::Tensor;

namespace {

// Gradients of a mean over a batch are small, and a larger one would hide them.
constexpr double kInitialAccumulator = 1e-8;

// Of the integers' intervals: the smallest have one each, then two per octave.
const std::vector<double> kBoundaries{
    -2,   -1,   0,    1,    2,    3,     4,     6,     8,     12,    16,   24,
    32,   48,   64,   96,   128,  192,   256,   384,   512,   768,   1024, 1536,
    2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536};

// A batch as the model takes it.
struct Batch {
  PipelineBatch inputs;
  Tensor labels;
};

Batch to_batch(
    const tessera::data::CriteoBatch& read,
    const FeaturePipeline& pipeline) {
  return {pipeline.apply(tessera::data::to_columns(read)), read.labels};
}

tessera::data::CriteoReader open_files(
    const std::vector<std::string>& files,
    const Options& options) {
  return tessera::data::CriteoReader(
      {.files = files,
       .batch_size = options.batch,
       .malformed_lines = options.malformed == "skip"
           ? tessera::data::MalformedLines::kSkip
           : tessera::data::MalformedLines::kError,
       .most_malformed_lines = options.most_malformed});
}

void say_skipped(const tessera::data::CriteoReport& report) {
  for (const std::string& line : report.first_malformed_lines) {
    std::cerr << "skipped " << line << "\n";
  }
  if (report.malformed_lines > 0) {
    std::cerr << report.malformed_lines << " lines skipped\n";
  }
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
  tessera::data::CriteoReport report() const {
    return reader_.report();
  }

 private:
  tessera::data::CriteoReader reader_;
  FeaturePipeline pipeline_;
};
// end snippet

// snippet: pipeline
// Logarithms and intervals of the integers, a vocabulary for each category column.
FeaturePipeline learn_pipeline(const Options& options) {
  std::vector<tessera::data::VocabularyBuilder> builders;
  for (int64_t i = 1; i <= tessera::data::kCriteoCategories; ++i) {
    builders.emplace_back(c10::str("C", i));
  }
  tessera::data::CriteoReader reader = open_files(options.data, options);
  for (const tessera::data::CriteoBatch& batch : reader) {
    const tessera::data::Columns columns = tessera::data::to_columns(batch);
    for (tessera::data::VocabularyBuilder& builder : builders) {
      builder.add(columns.at(builder.column()));
    }
  }
  say_skipped(reader.report());
  // A missing number is not a zero.
  tessera::data::PipelineOutput numbers{
      .name = "numbers",
      .transform = tessera::data::transforms::Log1p{.missing_value = -1.0}};
  for (int64_t i = 1; i <= tessera::data::kCriteoIntegers; ++i) {
    numbers.columns.push_back(c10::str("I", i));
  }
  std::vector<tessera::data::PipelineOutput> outputs{numbers};
  for (const std::string& column : numbers.columns) {
    outputs.push_back(
        {.name = column,
         .columns = {column},
         .transform =
             tessera::data::transforms::Bucketize{.boundaries = kBoundaries}});
  }
  for (const tessera::data::VocabularyBuilder& builder : builders) {
    outputs.push_back(
        {.name = builder.column(),
         .columns = {builder.column()},
         .transform = builder.size() == 0
             ? tessera::data::Transform(
                   tessera::data::transforms::Hash{.num_bins = 2})
             : builder.finish({.min_count = options.min_count})});
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
  for (const tessera::data::PipelineOutput& output : pipeline.outputs()) {
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

tessera::training::Callbacks make_callbacks(
    const ClickModel& model,
    const FeaturePipeline& pipeline,
    const RunDirectory& directory,
    const Options& options) {
  tessera::training::Callbacks callbacks{
      std::make_shared<tessera::training::ProgressBar>(),
      std::make_shared<tessera::training::TerminateOnNonFinite>()};
  if (!options.history.empty()) {
    const fs::path folder(options.history);
    callbacks.push_back(std::make_shared<tessera::training::CsvHistory>(
        folder / "history.csv"));
    callbacks.push_back(std::make_shared<tessera::training::LearningCurves>(
        folder / "history.svg"));
  }
  if (!options.checkpoint.empty() && !directory.is_resumed()) {
    callbacks.push_back(directory.make_keeper(model, pipeline));
  }
  return callbacks;
}

std::shared_ptr<tessera::training::Checkpoint> make_checkpoint(
    const ClickModel& model,
    torch::optim::Optimizer& optimizer,
    const RunDirectory& directory,
    const Options& options) {
  using Resume = tessera::training::TrainingCheckpointOptions::Resume;
  if (options.checkpoint.empty()) {
    return nullptr;
  }
  return std::make_shared<tessera::training::Checkpoint>(
      options.checkpoint,
      model.ptr(),
      optimizer,
      tessera::training::TrainingCheckpointOptions{
          .every_steps = options.every_steps,
          .resume =
              directory.is_resumed() ? Resume::kRequired : Resume::kNever});
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
  tessera::training::History history = {};
};

// snippet: fit
// On the batches of `source`, once per epoch.
template <class Source>
Training train(
    ClickModel& model,
    torch::optim::Optimizer& optimizer,
    Source&& source,
    int64_t epochs,
    tessera::training::Callbacks callbacks,
    std::shared_ptr<tessera::training::Checkpoint> checkpoint) {
  Training training;
  const auto loss_of = [&](const Batch& batch) {
    const Tensor logits =
        model->forward(batch.inputs.features, batch.inputs.dense);
    training.examples += batch.labels.size(0);
    return tessera::training::StepResult{
        .loss = torch::binary_cross_entropy_with_logits(logits, batch.labels),
        .predictions = logits,
        .labels = batch.labels};
  };
  const auto begin = std::chrono::steady_clock::now();
  training.history = tessera::training::fit(
      source,
      tessera::training::make_train_step(optimizer, loss_of),
      {.epochs = epochs,
       .model = model.ptr(),
       .metrics = {std::make_shared<tessera::training::LogLoss>(
           tessera::training::LogLossOptions{
               .scores = tessera::training::ScoreKind::kLogits})},
       .callbacks = std::move(callbacks),
       .checkpoint = std::move(checkpoint)});
  training.seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  return training;
}
// end snippet

Training train(
    ClickModel& model,
    const FeaturePipeline& pipeline,
    const RunDirectory& directory,
    const Options& options) {
  const auto optimizer = dense_optimizer(*model, options);
  const auto train_on = [&](auto&& source) {
    return train(
        model,
        *optimizer,
        source,
        options.epochs,
        make_callbacks(model, pipeline, directory, options),
        make_checkpoint(model, *optimizer, directory, options));
  };
  const auto open = [&] { return Clicks(options.data, pipeline, options); };
  if (!options.in_memory) {
    return train_on(open);
  }
  std::vector<Batch> batches;
  Clicks clicks = open();
  while (auto batch = clicks.next()) {
    batches.push_back(std::move(*batch));
  }
  return train_on(batches);
}

// Why training ended early, for a person, and the exit status.
int say_why_stopped(
    const tessera::training::History& history,
    const Options& options) {
  if (history.stop_signal() != 0) {
    return say_stopped(history, options.checkpoint);
  }
  std::cerr << "[dlrm_criteo] training ended with a non-finite loss: "
            << history.stop_reason
            << ". Lower --learning-rate or --dense-learning-rate.\n";
  return 1;
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
  say_skipped(clicks.report());
  return {torch::cat(logits), torch::cat(labels)};
}

double auc_of(const Tensor& scores, const Tensor& labels) {
  tessera::training::AUC auc;
  auc.update(scores, labels);
  return auc.result();
}

// Beside the exported model.
std::string pipeline_file(const Options& options) {
  return options.exported + ".pipeline.json";
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
  const std::string features = pipeline_file(options);
  const Batch example = *Clicks(options.test, pipeline, options).next();
  tessera::export_torchscript(
      model,
      path.string(),
      {.features = example.inputs.features, .inputs = {example.inputs.dense}});
  tessera::save_pipeline(pipeline, features);

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

// Whether a file is there, and wasn't cut off later.
bool ends_with(const std::string& path, const std::string& line) {
  std::string end(line.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(-static_cast<std::streamoff>(line.size()), std::ios::end);
  file.read(end.data(), static_cast<std::streamsize>(end.size()));
  return file.good() && end == line;
}

// Files of generated examples, made once; the AUC of their true probabilities.
double generate(Options& options) {
  make_output_folder("[dlrm_criteo] --folder", options.folder);
  const auto path = [&](const char* kind, const char* suffix) {
    return (fs::path(options.folder) /
            (std::to_string(options.generate) + "_" + kind + suffix))
        .string();
  };
  const int64_t tests = std::max<int64_t>(options.generate / 5, 1000);
  const auto make = [&](const char* kind, int64_t first, int64_t count) {
    const click_logs::CriteoGenerator generator(
        {.examples = count, .first_example = first});
    std::string last;
    generator.append_line(first + count - 1, last);
    if (!ends_with(path(kind, ".txt"), last) ||
        !fs::exists(path(kind, ".npy"))) {
      tessera::save_npy(
          generator.write(path(kind, ".txt")), path(kind, ".npy"));
    }
  };
  make("train", 0, options.generate);
  make("test", options.generate, tests);
  options.data = {path("train", ".txt")};
  options.test = {path("test", ".txt")};
  std::vector<Tensor> labels;
  for (const auto& batch : open_files(options.test, options)) {
    labels.push_back(batch.labels);
  }
  return auc_of(tessera::load_npy(path("test", ".npy")), torch::cat(labels));
}

// What would fail after hours of training.
void check_inputs(const Options& options) {
  TORCH_CHECK_VALUE(
      !options.test.empty(),
      "[dlrm_criteo] --data needs --test: other files of the same format.");
  for (const auto* files : {&options.data, &options.test}) {
    for (const std::string& file : *files) {
      TORCH_CHECK_VALUE(
          !fs::exists(file) || fs::is_regular_file(file),
          "[dlrm_criteo] --data and --test must be regular files, as they are "
          "read several times, but got '",
          file,
          "'.");
    }
  }
  TORCH_CHECK_VALUE(
      open_files(options.data, options).next().has_value(),
      "[dlrm_criteo] the files of --data have no example.");
  TORCH_CHECK_VALUE(
      open_files(options.test, options).next().has_value(),
      "[dlrm_criteo] the files of --test have no example.");
}

void check_arguments(const Options& options) {
  TORCH_CHECK_VALUE(
      !options.most_malformed || options.malformed == "skip",
      "[dlrm_criteo] --most-malformed needs --malformed skip.");
  make_output_folder("[dlrm_criteo] --checkpoint", options.checkpoint);
  make_output_folder("[dlrm_criteo] --history", options.history);
  make_output_folder("[dlrm_criteo] --write-arrays", options.arrays);
  if (options.exported.empty()) {
    return;
  }
  std::vector<std::string> inputs = options.data;
  inputs.insert(inputs.end(), options.test.begin(), options.test.end());
  if (inputs.empty()) {
    inputs = {options.folder};
  }
  for (const auto& file : {options.exported, pipeline_file(options)}) {
    check_output_file("[dlrm_criteo] --export", file, inputs);
  }
}

struct Report {
  Training training = {};
  int64_t test_examples = 0;
  double auc = 0.0;
  double log_loss = 0.0;
  std::optional<double> bayes_auc = {};  // of the true probabilities
  std::optional<bool> serves_the_same = {};

  double examples_per_second() const {
    return training.seconds > 0.0
        ? static_cast<double>(training.examples) / training.seconds
        : 0.0;
  }
};

void print_json(
    const Report& report,
    const ClickModel& model,
    const Options& options) {
  tessera::Json json = {
      {"model", options.model},
      {"seed", options.seed},
      {"test_examples", report.test_examples},
      {"auc", report.auc},
      {"log_loss", report.log_loss},
      {"examples", report.training.examples},
      {"seconds", report.training.seconds},
      {"examples_per_second", report.examples_per_second()},
      {"updates", model->embedding()->iterations()}};
  if (report.bayes_auc) {
    json["bayes_auc"] = *report.bayes_auc;
  }
  if (report.serves_the_same) {
    json["equal_from_export"] = *report.serves_the_same;
  }
  std::cout << json.dump(2) << "\n";
}

void print_text(const Report& report, const Options& options) {
  std::cout << std::fixed << std::setprecision(4) << "\n"
            << options.model << " on " << report.test_examples
            << " held-out examples\n"
            << "  AUC       " << report.auc << "\n"
            << "  log loss  " << report.log_loss << "\n";
  if (report.bayes_auc) {
    std::cout << "  AUC of the true probabilities  " << *report.bayes_auc
              << "\n";
  }
  std::cout << std::setprecision(1) << "\ntrained on "
            << report.training.examples << " examples in "
            << report.training.seconds << " s, " << std::setprecision(0)
            << report.examples_per_second() << " examples per second\n";
  if (report.serves_the_same) {
    std::cout << "a batch served from the exported file: "
              << (*report.serves_the_same ? "equal" : "DIFFERENT") << "\n";
  }
}

int run(Options options) {
  Report report;
  check_arguments(options);
  if (options.data.empty()) {
    report.bayes_auc = generate(options);
  }
  check_inputs(options);
  const RunDirectory directory(options);
  const FeaturePipeline pipeline = directory.is_resumed()
      ? directory.load_pipeline()
      : learn_pipeline(options);
  if (!options.arrays.empty()) {
    write_arrays(pipeline, options);
  }
  torch::manual_seed(options.seed);
  ClickModel model(model_options(pipeline, options));
  validate(pipeline, model->options().features);
  directory.check(model);
  if (!options.json) {
    std::cout << model->summary() << std::flush;
  }
  report.training = train(model, pipeline, directory, options);
  const tessera::training::History& history = report.training.history;
  if (!history.stop_reason.empty()) {
    return say_why_stopped(history, options);
  }
  if (directory.is_resumed() && report.training.examples == 0) {
    std::cerr << "already trained, " << history.epochs.size() << " epochs\n";
  }

  const Predictions predicted = predict(model, pipeline, options);
  report.test_examples = predicted.labels.size(0);
  report.auc = auc_of(predicted.logits, predicted.labels);
  tessera::training::LogLoss log_loss(
      {.scores = tessera::training::ScoreKind::kLogits});
  log_loss.update(predicted.logits, predicted.labels);
  report.log_loss = log_loss.result();
  FileErrors errors;
  if (!options.exported.empty()) {
    report.serves_the_same = errors.run(
        [&] { return serves_the_same(model, pipeline, predicted, options); });
  }
  if (options.json) {
    print_json(report, model, options);
  } else {
    print_text(report, options);
  }
  finish_report("dlrm_criteo");
  return !errors.say() && report.serves_the_same.value_or(true) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::keep_memory_between_steps();
  Options options;
  if (const auto status = parse_arguments(argc, argv, options)) {
    return *status;
  }
  try {
    return run(std::move(options));
  } catch (const c10::Error& error) {
    std::cerr << with_flags(error.what_without_backtrace()) << "\n";
  } catch (const std::exception& error) {
    std::cerr << "[dlrm_criteo] " << error.what() << "\n";
  }
  return 1;
}
