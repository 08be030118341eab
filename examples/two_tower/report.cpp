// SPDX-License-Identifier: Apache-2.0
#include "examples/two_tower/report.h"

#include <nlohmann/json.hpp>

#include <iomanip>
#include <iostream>

namespace {

void print_json(const Report& report, const Options& options) {
  tessera::Json json = {
      {"seed", options.seed},
      {"test_users", report.test_users},
      {"factorization_seconds", report.factorization_seconds},
      {"seconds", report.seconds}};
  for (const auto& [name, recalls] : report.recalls) {
    for (size_t i = 0; i < recalls.size(); ++i) {
      json["recall"][name]["@" + std::to_string(kDepths[i])] = recalls[i];
    }
  }
  json["user"] = options.user;
  for (const auto& [title, score] : report.movies) {
    json["movies"].push_back({{"title", title}, {"score", score}});
  }
  std::cout << json.dump(2) << "\n";
}

void print_table(const Report& report, const Options& options) {
  std::cout << "\nrecall of the movie that each of " << report.test_users
            << " users rates next\n"
            << std::left << std::setw(24) << "";
  for (const int64_t depth : kDepths) {
    std::cout << std::setw(9) << "@" + std::to_string(depth);
  }
  std::cout << std::fixed << std::setprecision(4) << "\n";
  for (const auto& [name, recalls] : report.recalls) {
    std::cout << "  " << std::setw(22) << name;
    for (const double recall : recalls) {
      std::cout << std::setw(9) << recall;
    }
    std::cout << "\n";
  }
  std::cout << std::setprecision(1) << "\ntrained in " << report.seconds
            << " s, the matrix factorization in "
            << report.factorization_seconds << " s\n\nfor user " << options.user
            << "\n"
            << std::setprecision(3);
  for (const auto& [title, score] : report.movies) {
    std::cout << "  " << std::right << std::setw(6) << score << "  " << title
              << "\n";
  }
}

}  // namespace

void print_report(const Report& report, const Options& options) {
  if (options.json) {
    print_json(report, options);
  } else {
    print_table(report, options);
  }
}
