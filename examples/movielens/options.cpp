// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/options.h"

#include "examples/common/command_line.h"
#include "examples/common/outputs.h"

#include <c10/util/Exception.h>

std::optional<int> parse_arguments(int argc, char** argv, Options& options) {
  CLI::App app(
      "Trains a recommender on MovieLens 100K, and prints its errors and recommendations.");
  app.add_option("--data", options.data, "folder of MovieLens 100K")
      ->capture_default_str();
  add_seed(
      app,
      options.seed,
      "seed of the initial values and of the order of the examples");
  add_count(app, "--epochs", options.epochs, "epochs of the training ratings");
  add_count(app, "--batch", options.batch, "ratings per step");
  app.add_option("--dtype", options.dtype, "dtype of the tables")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16", "int8"}))
      ->default_str("float32");
  app.add_option(
         "--user", options.user, "user to recommend movies to, counted from 1")
      ->capture_default_str();
  add_output(
      app, "--save", options.save, "save the trained model to this file");
  add_output(
      app,
      "--checkpoint",
      options.checkpoint,
      "directory for checkpoints: the program saves one after each epoch and at Ctrl-C, and resumes from the newest");
  add_output(
      app,
      "--export",
      options.exported,
      "export the model to this TorchScript file");
  app.add_flag(
      "--validate",
      options.validate,
      "choose settings: a random tenth of the training ratings takes the place of the test");
  app.add_flag("--json", options.json, "print the report as JSON");
  app.add_flag(
      "--sharded",
      options.sharded,
      "spread the tables over the processes that ./run train --ranks N or torchrun started; --ranks sets this");
  CLI11_PARSE(app, argc, argv);
  return std::nullopt;
}

void prepare_outputs(const Options& options) {
  make_output_folder("[movielens] --checkpoint", options.checkpoint);
  check_output_file("[movielens] --save", options.save, {options.data});
  check_output_file("[movielens] --export", options.exported, {options.data});
  TORCH_CHECK_VALUE(
      options.save.empty() || options.save != options.exported,
      "[movielens] --save and --export must be two files, but both are '",
      options.save,
      "'. Choose another path for one of them.");
}
