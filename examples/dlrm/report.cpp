// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/report.h"

#include <tessera/common/json_value.h>
#include <tessera/tables/instruction_set.h>

#include <ATen/Parallel.h>
#include <nlohmann/json.hpp>

#include <iomanip>
#include <iostream>
#include <vector>

namespace {

double speed_of(const Report& report) {
  return report.seconds > 0.0
      ? static_cast<double>(report.examples) / report.seconds
      : 0.0;
}

void print_json(const Report& report, const Options& options) {
  tessera::Json json = {
      {"model", options.model},
      {"seed", options.seed},
      {"test_examples", report.test_examples},
      {"auc", report.auc},
      {"log_loss", report.log_loss},
      {"examples", report.examples},
      {"seconds", report.seconds},
      {"examples_per_second", speed_of(report)},
      {"updates", report.updates},
      {"threads", at::get_num_threads()},
      {"isa", tessera::instruction_set()}};
  if (report.bayes_auc) {
    json["bayes_auc"] = *report.bayes_auc;
  }
  if (report.serves_the_same) {
    json["equal_from_export"] = *report.serves_the_same;
  }
  if (report.profile != nullptr) {
    using Rows = std::vector<tessera::training::Profile::Row>;
    json["profile"] = tessera::JsonValue<Rows>::write(report.profile->result());
  }
  std::cout << json.dump(2) << "\n";
}

void print_text(const Report& report, const Options& options) {
  std::cout << std::fixed << std::setprecision(4) << "\n"
            << options.model << " on " << report.test_examples
            << " held-out examples\n"
            << "  AUC       " << report.auc << "\n"
            << "  log loss  " << report.log_loss << "\n";
  if (report.bayes_auc) {
    std::cout << "  AUC of the true probabilities  " << *report.bayes_auc
              << "\n";
  }
  std::cout << std::setprecision(1) << "\ntrained on " << report.examples
            << " examples in " << report.seconds << " s, "
            << std::setprecision(0) << speed_of(report)
            << " examples per second\n";
  if (report.serves_the_same) {
    std::cout << "a batch served from the exported file: "
              << (*report.serves_the_same ? "equal" : "DIFFERENT") << "\n";
  }
  if (report.profile != nullptr) {
    std::cout << "\n" << report.profile->text();
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
