// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/options.h"

#include "examples/common/command_line.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

namespace fs = std::filesystem;

namespace {

std::vector<std::string> with_sizes(const std::vector<std::string>& files) {
  std::vector<std::string> described;
  for (const std::string& file : files) {
    std::error_code error;
    const auto size = fs::file_size(file, error);
    described.push_back(
        fs::absolute(file).lexically_normal().string() + ", " +
        (error ? "missing" : std::to_string(size) + " bytes"));
  }
  return described;
}

std::string rate_problem(const std::string& text) {
  const double rate = std::strtod(text.c_str(), nullptr);
  return rate >= 1e-30 && rate <= 1e37
      ? ""
      : std::string("must be in [1e-30, 1e37], but got ").append(text);
}

void add_data(CLI::App& app, Options& options) {
  auto* data = app.add_option(
      "--data",
      options.data,
      "training files in Criteo's format or that of Criteo_x1, plain or gzip, which are read in this order");
  app.add_option("--test", options.test, "test files in the same format")
      ->needs(data);
  app.add_option(
         "--generate",
         options.generate,
         "without --data: number of training examples to generate; a fifth of this "
         "number, but at least 1000, is also generated for the test")
      ->check(up_to(1'000'000'000, 1000))
      ->capture_default_str();
  add_output(app, "--folder", options.folder, "folder for the generated files")
      ->capture_default_str();
  app.add_option(
         "--malformed", options.malformed, "what to do with malformed lines")
      ->check(CLI::IsMember({"error", "skip"}))
      ->capture_default_str();
  app.add_option(
         "--max-malformed",
         options.max_malformed,
         "with --malformed skip: stop if an epoch has more malformed lines than this")
      ->check(up_to(1'000'000'000, 0));
  add_count(
      app,
      "--min-count",
      options.min_count,
      "categories with fewer examples share the row of unknown categories; with --keys, they look up zeros",
      1'000'000'000);
  auto* keys = app.add_flag(
      "--keys",
      options.keys,
      "key tables: categories are hashed to 64 bits and get rows in the training, which needs one epoch");
  app.add_option(
         "--capacity",
         options.capacity,
         "with --keys: the largest number of rows per category column")
      ->check(up_to(int64_t{1} << 31))
      ->needs(keys)
      ->capture_default_str();
}

void add_training(CLI::App& app, Options& options) {
  app.add_option(
         "--model",
         options.model,
         "how features interact: by dot products (dlrm) or by crosses (dcn)")
      ->check(CLI::IsMember({"dlrm", "dcn"}))
      ->capture_default_str();
  add_count(app, "--dim", options.dim, "size of all embeddings", 4096);
  add_count(app, "--batch", options.batch, "examples per step");
  add_count(app, "--epochs", options.epochs, "epochs of the training data");
  app.add_option(
         "--optimizer",
         options.optimizer,
         "optimizer of tables and dense weights")
      ->check(CLI::IsMember({"adam", "adagrad"}))
      ->capture_default_str();
  app.add_option(
         "--learning-rate", options.learning_rate, "learning rate of tables")
      ->check(rate_problem)
      ->capture_default_str();
  app.add_option(
         "--dense-learning-rate",
         options.dense_learning_rate,
         "learning rate of dense weights")
      ->check(rate_problem)
      ->capture_default_str();
  add_precision(
      app,
      options.precision,
      "of the products of dense layers and of the activations between them");
  add_seed(app, options.seed, "seed of the initial values");
  app.add_flag(
      "--in-memory",
      options.in_memory,
      "read all batches into memory before the training");
}

void add_results(CLI::App& app, Options& options) {
  auto* checkpoint = add_output(
      app,
      "--checkpoint",
      options.checkpoint,
      "directory for checkpoints: the program saves one after each epoch and at Ctrl-C, and resumes from the newest");
  app.add_option(
         "--every-steps",
         options.every_steps,
         "also save a checkpoint each time after this many steps")
      ->check(up_to(1'000'000'000))
      ->needs(checkpoint);
  add_output(
      app,
      "--export",
      options.exported,
      "export the model to this TorchScript file, and serve a batch from it");
  add_output(
      app,
      "--history",
      options.history,
      "directory for history.csv and history.svg");
  add_output(
      app,
      "--write-arrays",
      options.arrays,
      "directory to which ids, numbers and labels are written as .npy files");
  app.add_flag(
      "--profile",
      options.profile,
      "print what the time of the training is spent on");
  app.add_flag("--json", options.json, "print the report as JSON");
}

}  // namespace

std::optional<int> parse_arguments(int argc, char** argv, Options& options) {
  CLI::App app(
      "Trains DLRM or DCN-v2 on click logs in Criteo's format or that of "
      "Criteo_x1, or on generated ones, and prints how well the model predicts "
      "clicks.");
  add_data(app, options);
  add_training(app, options);
  add_results(app, options);
  CLI11_PARSE(app, argc, argv);
  return std::nullopt;
}

std::string pipeline_file(const Options& options) {
  return options.exported + ".pipeline.json";
}

tessera::Json training_options(const Options& options) {
  return {
      {"model", options.model},
      {"dim", options.dim},
      {"min-count", options.min_count},
      {"batch", options.batch},
      {"optimizer", options.optimizer},
      {"learning-rate", options.learning_rate},
      {"dense-learning-rate", options.dense_learning_rate},
      {"seed", options.seed},
      {"malformed", options.malformed},
      {"data", with_sizes(options.data)},
      {"test", with_sizes(options.test)}};
}

std::string with_flags(const std::string& message) {
  constexpr std::pair<const char*, const char*> kFlags[] = {
      {"MalformedLines::kSkip", "--malformed skip"},
      {"Lower min_count", "--min-count"},
      {"LoadOptions::checkpoint",
       "move the newest checkpoint_* out of the --checkpoint directory"}};
  std::string text = message;
  for (const auto& [advice, flag] : kFlags) {
    if (message.find(advice) != std::string::npos) {
      text.append("\nhere: ").append(flag);
    }
  }
  return text;
}
