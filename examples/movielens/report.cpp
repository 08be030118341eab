// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/report.h"

#include "examples/movielens/published.h"

#include <nlohmann/json.hpp>

#include <iomanip>
#include <iostream>

namespace {

// `same` has no value if the file could not be written.
std::string text_of(std::optional<bool> same) {
  return !same ? "FAILED" : *same ? "equal" : "DIFFERENT";
}

tessera::Json json_of(std::optional<bool> same) {
  return same ? tessera::Json(*same) : tessera::Json();
}

double speed_of(const Report& report) {
  return static_cast<double>(report.examples) / report.seconds;
}

void print_json(const Report& report, const Options& options) {
  tessera::Json json = {
      {"seed", options.seed},
      {"rmse_mean", report.rmse_mean},
      {"rmse_biases", report.rmse_biases},
      {"rmse", report.rmse},
      {"test_ratings", report.test_ratings},
      {"seconds", report.seconds},
      {"examples_per_second", speed_of(report)},
      {"equal_after_reload", json_of(report.equal_after_reload)},
      {"equal_from_export", json_of(report.equal_from_export)},
      {"ranks", report.ranks},
      {"equal_over_ranks", report.equal_over_ranks},
      {"user", options.user}};
  for (const auto& [title, stars] : report.movies) {
    json["recommendations"].push_back({{"title", title}, {"stars", stars}});
  }
  std::cout << json.dump(2) << "\n";
}

void print_text(const Report& report, const Options& options) {
  std::cout << "\nRMSE on " << report.test_ratings << " held-out ratings\n"
            << std::fixed << std::setprecision(4) << "  global mean        "
            << report.rmse_mean << "\n"
            << "  user + movie bias  " << report.rmse_biases << "\n"
            << "  model              " << report.rmse << "\n";
  if (report.is_u1) {
    std::cout
        << "published for these ratings, the split u1 of MovieLens 100K\n";
    for (const PublishedRmse& published : kPublishedRmse) {
      std::cout << "  " << std::left << std::setw(19) << published.model
                << std::right << published.rmse << "  " << published.source
                << "\n";
    }
  }
  std::cout << std::setprecision(1) << "\ntrained in " << report.seconds
            << " s, " << std::setprecision(0) << speed_of(report)
            << " examples per second\n"
            << "\nfor user " << options.user << "\n"
            << std::setprecision(2);
  for (const auto& [title, stars] : report.movies) {
    std::cout << "  " << stars << "  " << title << "\n";
  }
  std::cout << "\npredictions after saving and loading: "
            << text_of(report.equal_after_reload)
            << "\npredictions of the exported TorchScript file: "
            << text_of(report.equal_from_export) << "\n";
  if (options.sharded) {
    std::cout << "predictions of " << report.ranks
              << " ranks and of one: " << text_of(report.equal_over_ranks)
              << "\n";
  }
}

}  // namespace

void print_report(const Report& report, const Options& options) {
  if (options.json) {
    print_json(report, options);
  } else {
    print_text(report, options);
  }
}
