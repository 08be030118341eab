// SPDX-License-Identifier: Apache-2.0
#include "examples/sasrec/report.h"

#include "examples/common/mean_and_spread.h"

#include <tessera/tessera.h>

#include <nlohmann/json.hpp>

#include <iomanip>
#include <iostream>
#include <string>
#include <vector>

namespace {

MeanAndSpread over_runs(
    const Report& report,
    double (*value)(const SequenceRun&)) {
  std::vector<double> values;
  for (const SequenceRun& run : report.runs) {
    values.push_back(value(run));
  }
  return mean_and_spread(values);
}

tessera::Json json_of(const Ranking& ranking) {
  return {{"hit_rate", ranking.hit_rate}, {"ndcg", ranking.ndcg}};
}

void print_json(const Report& report) {
  tessera::Json json = {
      {"threads", at::get_num_threads()},
      {"isa", tessera::instruction_set()},
      {"users", report.users},
      {"items", report.items},
      {"popularity", json_of(report.popularity)},
      {"item_knn", json_of(report.neighbors)}};
  for (const SequenceRun& run : report.runs) {
    tessera::Json entry = json_of(run.test);
    entry["seed"] = run.seed;
    entry["epochs"] = run.epochs;
    entry["best_epoch"] = run.best_epoch;
    entry["validation_ndcg"] = run.validation_ndcg;
    entry["seconds"] = run.seconds;
    entry["examples_per_second"] = run.examples_per_second;
    json["runs"].push_back(std::move(entry));
  }
  std::cout << json.dump(2) << "\n";
}

void print_table(const Report& report) {
  const auto print_line = [](const char* name, const Ranking& ranking) {
    std::cout << "  " << std::left << std::setw(14) << name << std::right
              << std::setw(7) << ranking.hit_rate << std::setw(18)
              << ranking.ndcg << "\n";
  };
  const MeanAndSpread hits = over_runs(
      report, [](const SequenceRun& run) { return run.test.hit_rate; });
  const MeanAndSpread ndcg =
      over_runs(report, [](const SequenceRun& run) { return run.test.ndcg; });
  std::cout << "\nthe next item of " << report.users
            << " users among all that they do not have\n"
            << std::fixed << std::setprecision(4)
            << "                  HR@10           NDCG@10\n";
  print_line("popularity", report.popularity);
  print_line("item-kNN", report.neighbors);
  std::cout << "  SASRec        " << std::setw(7) << hits.mean << " +- "
            << std::setw(6) << hits.spread << std::setw(8) << ndcg.mean
            << " +- " << std::setw(6) << ndcg.spread << "\n";
  std::cout << "  mean and standard deviation of " << report.runs.size()
            << (report.runs.size() == 1 ? " run\n" : " runs\n");
  for (const auto& [name, other] :
       {std::pair("popularity", report.popularity),
        std::pair("item-kNN", report.neighbors)}) {
    if (hits.mean <= other.hit_rate || ndcg.mean <= other.ndcg) {
      std::cout << "  SASRec does NOT beat " << name << "\n";
    }
  }
  for (const SequenceRun& run : report.runs) {
    std::cout << "seed " << run.seed << ": best epoch " << run.best_epoch
              << " of " << run.epochs << ", trained in " << std::setprecision(1)
              << run.seconds << " s, " << std::setprecision(0)
              << run.examples_per_second << " examples per second\n";
  }
}

}  // namespace

void print_report(const Report& report, const SequenceOptions& options) {
  if (options.json) {
    print_json(report);
  } else {
    print_table(report);
  }
}
