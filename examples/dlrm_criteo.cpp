// SPDX-License-Identifier: Apache-2.0
// Teaches all steps from log files to a served click model: how to read files in the
// format of the Criteo click logs, learn vocabularies, train DLRM or DCN-v2, resume,
// export and serve.
//
// dlrm/clicks.h reads the batches, dlrm/learn_pipeline.cpp learns how to convert their
// columns to features, and dlrm/click_model.cpp has the model. dlrm/run_directory.cpp
// checks that a resumed training has the same options as before. The functions of this
// file make the tables, train, evaluate and serve, in this order. run() calls them.
#include "examples/common/command_line.h"
#include "examples/common/outputs.h"
#include "examples/dlrm/arrays.h"
#include "examples/dlrm/checks.h"
#include "examples/dlrm/click_model.h"
#include "examples/dlrm/clicks.h"
#include "examples/dlrm/generated_data.h"
#include "examples/dlrm/learn_pipeline.h"
#include "examples/dlrm/options.h"
#include "examples/dlrm/report.h"
#include "examples/dlrm/run_directory.h"

#include <tessera/tessera.h>

#include <torch/script.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace fs = std::filesystem;
namespace optim = tessera::optim;
namespace training = tessera::training;
using tessera::data::FeaturePipeline;
using torch::Tensor;

namespace {

// snippet: tables
// The loss is a mean over the batch, so gradients are small. They would not matter beside
// a larger initial accumulator.
constexpr double kInitialAccumulator = 1e-8;

optim::OptimizerSpec table_optimizer(const Options& options) {
  if (options.optimizer == "adam") {
    return optim::Adam{.learning_rate = options.learning_rate};
  }
  return optim::Adagrad{
      .learning_rate = options.learning_rate,
      .initial_accumulator_value = kInitialAccumulator};
}

optim::OptimizerSpec dense_optimizer(const Options& options) {
  if (options.optimizer == "adam") {
    return optim::Adam{
        .learning_rate = options.dense_learning_rate, .bias_correction = true};
  }
  return optim::Adagrad{
      .learning_rate = options.dense_learning_rate,
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
    tessera::TableConfig table{
        .dim = options.dim, .combiner = tessera::Combiner::kSum};
    if (pipeline.vocabulary_size(output.name) == 0) {  // it gives keys
      table.keys = tessera::DynamicKeys{
          .capacity = options.capacity,
          .admission =
              tessera::admission::AfterOccurrences{.count = options.min_count}};
    }
    features.emplace_back(
        output.name,
        tessera::FeatureConfig{
            .table = pipeline.make_table(output.name, table)});
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

training::Callbacks make_callbacks(
    const std::shared_ptr<training::ProgressBar>& progress,
    const ClickModel& model,
    const FeaturePipeline& pipeline,
    const RunDirectory& directory,
    const Options& options,
    const Report& report) {
  training::Callbacks callbacks{
      progress, std::make_shared<training::TerminateOnNonFinite>()};
  if (report.profile != nullptr) {
    callbacks.push_back(report.profile);
  }
  if (!options.history.empty()) {
    const fs::path folder(options.history);
    callbacks.push_back(
        std::make_shared<training::CsvHistory>(folder / "history.csv"));
    callbacks.push_back(
        std::make_shared<training::LearningCurves>(folder / "history.svg"));
  }
  if (!options.checkpoint.empty() && !directory.is_resumed()) {
    callbacks.push_back(directory.make_files_writer(model, pipeline));
  }
  return callbacks;
}

std::shared_ptr<training::Checkpoint> make_checkpoint(
    const ClickModel& model,
    torch::optim::Optimizer& optimizer,
    const RunDirectory& directory,
    const Options& options) {
  using Resume = training::TrainingCheckpointOptions::Resume;
  if (options.checkpoint.empty()) {
    return nullptr;
  }
  return std::make_shared<training::Checkpoint>(
      options.checkpoint,
      model.ptr(),
      optimizer,
      training::TrainingCheckpointOptions{
          .every_steps = options.every_steps,
          .resume =
              directory.is_resumed() ? Resume::kRequired : Resume::kNever});
}

std::vector<Batch> read_all(Clicks clicks) {
  std::vector<Batch> batches;
  while (auto batch = clicks.next()) {
    batches.push_back(std::move(*batch));
  }
  return batches;
}

// snippet: fit
// Trains the model, and adds the time to the report.
training::History train(
    ClickModel& model,
    const FeaturePipeline& pipeline,
    const RunDirectory& directory,
    const Options& options,
    Report& report) {
  // The tables update themselves in the backward pass.
  const auto optimizer =
      optim::make_optimizer(dense_optimizer(options), model->parameters());
  const auto step = training::make_train_step(
      *optimizer,
      [&](const Batch& batch) {
        const Tensor logits =
            model->forward(batch.inputs.features, batch.inputs.dense);
        return training::StepResult{
            .loss =
                torch::binary_cross_entropy_with_logits(logits, batch.labels),
            .predictions = logits,
            .labels = batch.labels};
      },
      {.precision = options.precision});
  const auto open = [&] { return Clicks(options.data, pipeline, options); };
  const auto pass = options.in_memory
      ? training::make_pass(read_all(open()), step)
      : training::make_pass(open, step);
  const auto progress = std::make_shared<training::ProgressBar>();
  if (options.profile) {
    report.profile = std::make_shared<training::Profile>();
  }
  training::History history = training::fit(
      pass,
      {.epochs = options.epochs,
       .model = model,
       .metrics = {std::make_shared<training::LogLoss>(
           training::ScoreMetricOptions{
               .scores = training::ScoreKind::kLogits})},
       .callbacks = make_callbacks(
           progress, model, pipeline, directory, options, report),
       .checkpoint = make_checkpoint(model, *optimizer, directory, options)});
  report.seconds = progress->seconds();
  report.examples = progress->examples();
  report.updates = model->embedding()->iterations();
  return history;
}
// end snippet

// Writes why the training ended early, and returns the exit status.
int report_early_end(const training::History& history, const Options& options) {
  if (history.stop_signal() != 0) {
    return report_stop(history, options.checkpoint);
  }
  std::cerr << "[dlrm_criteo] training ended with a non-finite loss: "
            << history.stop_reason
            << ". Lower --learning-rate or --dense-learning-rate.\n";
  return 1;
}

// Computes the metrics of the test.
void evaluate(
    ClickModel& model,
    const FeaturePipeline& pipeline,
    const Options& options,
    Report& report) {
  model->eval();
  Clicks clicks(options.test, pipeline, options);
  const training::Predictions found = training::predict(
      *training::make_pass(
          clicks,
          [&](const Batch& batch) {
            return training::StepResult{
                .predictions =
                    model->forward(batch.inputs.features, batch.inputs.dense),
                .labels = batch.labels};
          }),
      options.precision);
  report_skipped(clicks.report());
  training::AUC auc;
  auc.update(found.predictions, found.labels);
  training::LogLoss log_loss({.scores = training::ScoreKind::kLogits});
  log_loss.update(found.predictions, found.labels);
  report.test_examples = found.labels.size(0);
  report.auc = auc.result();
  report.log_loss = log_loss.result();
}

// snippet: serve
// Exports the model, and scores the first test batch as a server would: with the
// exported file, which needs no Tessera, and the pipeline's file.
bool serves_the_same(
    ClickModel& model,
    const FeaturePipeline& pipeline,
    const Options& options) {
  const std::string features = pipeline_file(options);
  const Batch example = *Clicks(options.test, pipeline, options).next();
  tessera::export_torchscript(
      model,
      options.exported,
      {.features = example.inputs.features, .inputs = {example.inputs.dense}});
  tessera::save_pipeline(pipeline, features);

  torch::jit::Module served = torch::jit::load(options.exported);
  const Batch batch =
      *Clicks(options.test, tessera::load_pipeline(features), options).next();
  c10::Dict<std::string, c10::List<Tensor>> inputs;
  for (const auto& [name, feature] : batch.inputs.features.entries()) {
    inputs.insert(name, c10::List<Tensor>({std::get<Tensor>(feature.leaf())}));
  }
  const torch::NoGradGuard no_grad;
  const Tensor logits = served.forward({inputs, batch.inputs.dense}).toTensor();
  const Tensor expected =
      model->forward(example.inputs.features, example.inputs.dense);
  return torch::allclose(logits, expected, 1e-4, 1e-5);
}
// end snippet

int run(Options options) {
  Report report;
  check_arguments(options);
  if (options.data.empty()) {
    report.bayes_auc = use_generated_data(options);
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
  const auto history = train(model, pipeline, directory, options, report);
  if (!history.stop_reason.empty()) {
    return report_early_end(history, options);
  }
  if (directory.is_resumed() && report.examples == 0) {
    std::cerr << "already trained, " << history.epochs.size() << " epochs\n";
  }

  if (options.keys && !options.json) {
    std::cout << model->summary();  // with the keys of each table
  }
  evaluate(model, pipeline, options, report);
  FileErrors errors;
  if (!options.exported.empty()) {
    report.serves_the_same =
        errors.run([&] { return serves_the_same(model, pipeline, options); });
  }
  print_report(report, options);
  finish_report("dlrm_criteo");
  return !errors.print() && report.serves_the_same.value_or(true) ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  tessera::keep_memory_between_steps();
  Options options;
  if (const auto status = parse_arguments(argc, argv, options)) {
    return *status;
  }
  return run_program(
      "dlrm_criteo", [&] { return run(std::move(options)); }, with_flags);
}
