// SPDX-License-Identifier: Apache-2.0
#include "examples/new_users/report.h"

#include "examples/common/mean_and_spread.h"

#include <fmt/format.h>

#include <cstddef>
#include <iostream>

namespace {

std::string text_of(const std::vector<double>& values) {
  const MeanAndSpread all = mean_and_spread(values);
  return fmt::format("{:.4f} +- {:.4f}", all.mean, all.spread);
}

// Prints a line with the mean of each metric over the runs. `value` gives that of one run.
template <class Value>
void print_line(
    const std::string& name,
    const Values& metrics,
    const std::vector<Result>& runs,
    Value&& value) {
  std::cout << fmt::format("  {:<24}", name);
  for (size_t metric = 0; metric < metrics.size(); ++metric) {
    std::vector<double> values;
    for (const Result& run : runs) {
      values.push_back(value(run, metric));
    }
    std::cout << fmt::format("{:>21}", text_of(values));
  }
  std::cout << "\n";
}

void print_table(
    const std::string& title,
    const std::vector<CandidateReport>& reports,
    std::vector<Method> Result::*side) {
  std::cout << "\n" << title << "\n";
  for (const auto& [name, runs] : reports) {
    const std::vector<Method>& methods = runs[0].*side;
    std::cout << fmt::format("\n{:<26}", name);
    for (const auto& [metric, value] : methods[0].values) {
      std::cout << fmt::format("{:>21}", metric);
    }
    std::cout << "\n";
    for (size_t i = 0; i < methods.size(); ++i) {
      const auto value_of = [&](const Result& run, size_t way, size_t metric) {
        return (run.*side)[way].values[metric].second;
      };
      print_line(
          methods[i].name,
          methods[i].values,
          runs,
          [&](const Result& run, size_t metric) {
            return value_of(run, i, metric);
          });
      if (methods[i].shows_loss) {
        print_line(
            "  minus in training",
            methods[i].values,
            runs,
            [&](const Result& run, size_t metric) {
              return value_of(run, i, metric) - value_of(run, 0, metric);
            });
      }
    }
  }
}

}  // namespace

void print_report(const std::vector<CandidateReport>& reports) {
  print_table("the latest ratings of new users", reports, &Result::users);
  print_table("the latest ratings of new movies", reports, &Result::items);
  std::cout << fmt::format(
      "\nmeans and standard deviations of {} run{}\n",
      reports[0].runs.size(),
      reports[0].runs.size() == 1 ? "" : "s");
}
