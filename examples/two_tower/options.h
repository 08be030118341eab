// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// The command line of two_tower.
struct Options {
  std::string data = ".deps/data/ml-100k";
  std::string vectors = {};  // file
  int64_t seed = 0;
  int64_t epochs = 8;
  int64_t baseline_epochs = 20;
  int64_t batch = 1000;
  int64_t user = 1;
  bool validation = false;
  bool json = false;
};

/// Reads the command line into `options`. Returns the exit status if the program must end
/// now: after --help, and for wrong arguments.
std::optional<int> parse_arguments(int argc, char** argv, Options& options);
