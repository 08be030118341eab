// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/options.h"

#include "examples/common/command_line.h"
#include "examples/common/outputs.h"

#include <c10/util/Exception.h>

std::optional<int> parse_arguments(int argc, char** argv, Options& options) {
  CLI::App app("Trains a recommender on MovieLens 100K and reports on it.");
  app.add_option("--data", options.data, "folder of MovieLens 100K")
      ->capture_default_str();
  add_seed(app, options.seed, "of split and initial values");
  add_count(
      app, "--epochs", options.epochs, "passes over the training ratings");
  add_count(app, "--batch", options.batch, "ratings per step");
  app.add_option("--dtype", options.dtype, "what the tables are stored as")
      ->check(CLI::IsMember({"float32", "bfloat16", "float16"}))
      ->capture_default_str();
  app.add_option("--user", options.user, "whom to recommend movies to, from 1")
      ->capture_default_str();
  add_output(
      app, "--save", options.save, "keep the trained model in this file");
  add_output(
      app,
      "--checkpoint",
      options.checkpoint,
      "directory: save after each epoch and at Ctrl-C, resume from what is there");
  add_output(
      app,
      "--export",
      options.exported,
      "keep the exported TorchScript in this file");
  app.add_flag("--json", options.json, "report as JSON");
  app.add_flag(
      "--sharded",
      options.sharded,
      "spread the tables over the processes of mpirun");
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
      "'.");
}
