// SPDX-License-Identifier: Apache-2.0
#include "examples/new_users/options.h"

#include "examples/common/command_line.h"
#include "examples/new_users/measure.h"

#include <string>
#include <vector>

std::optional<int> parse_arguments(
    int argc,
    char** argv,
    NewUserOptions& options) {
  CLI::App app(
      "Measures on MovieLens 100K how much quality is lost if users or movies are unknown in training.");
  app.add_option("--data", options.data, "folder of MovieLens 100K")
      ->capture_default_str();
  std::vector<std::string> names;
  for (const Candidate& candidate : all_candidates()) {
    names.push_back(candidate.name);
  }
  app.add_option("--only", options.only, "models to measure (default: all)")
      ->check(CLI::IsMember(names));
  add_seed(app, options.seed, "seed of the first run");
  add_count(app, "--runs", options.runs, "runs with different seeds", 1000);
  app.add_option(
         "--share",
         options.share,
         "share of the users, and of the movies with enough users, that each run holds out")
      ->check(CLI::Range(0.001, 0.9))
      ->capture_default_str();
  app.add_flag(
      "--validation",
      options.validation,
      "for tuning: ignore the test ratings, and hold out the latest fifth of the others");
  CLI11_PARSE(app, argc, argv);
  return std::nullopt;
}
