// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The command line of new_users.
struct NewUserOptions {
  std::string data = ".deps/data/ml-100k";
  std::vector<std::string> only = {};  // empty: all models
  int64_t seed = 0;
  int64_t runs = 5;
  double share = 0.1;
  bool validation = false;
};

/// Reads the command line into `options`. Returns the exit status if the program must end
/// now: after --help, and for wrong arguments.
std::optional<int> parse_arguments(
    int argc,
    char** argv,
    NewUserOptions& options);
