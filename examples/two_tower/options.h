// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// What two_tower is told.
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

/// The exit status, where the program is done: after --help, and for arguments that it
/// does not take.
std::optional<int> parse_arguments(int argc, char** argv, Options& options);
