// SPDX-License-Identifier: Apache-2.0
#include "examples/two_tower/options.h"

#include "examples/common/command_line.h"

std::optional<int> parse_arguments(int argc, char** argv, Options& options) {
  CLI::App app(
      "Trains two towers on MovieLens 100K, and prints how well they retrieve movies.");
  app.add_option("--data", options.data, "folder of MovieLens 100K")
      ->capture_default_str();
  add_seed(
      app,
      options.seed,
      "seed of the initial values and the order of examples");
  add_count(app, "--epochs", options.epochs, "epochs of the ratings");
  add_count(
      app,
      "--baseline-epochs",
      options.baseline_epochs,
      "epochs of the ratings for the matrix factorization");
  add_count(app, "--batch", options.batch, "ratings per step");
  app.add_option(
         "--user", options.user, "user to recommend movies to, counted from 1")
      ->capture_default_str();
  add_output(
      app,
      "--vectors",
      options.vectors,
      "save the movies' vectors to this .npy file");
  app.add_flag(
      "--validation",
      options.validation,
      "for tuning: ignore each user's last movie, and hold out the one before it");
  app.add_flag("--json", options.json, "print the report as JSON");
  CLI11_PARSE(app, argc, argv);
  return std::nullopt;
}
