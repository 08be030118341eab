// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// The command line of movielens.
struct Options {
  std::string data = ".deps/data/ml-100k";
  std::string save = {};  // file
  std::string checkpoint = {};  // directory
  std::string exported = {};  // file
  int64_t seed = 0;
  int64_t epochs = 8;
  int64_t batch = 1000;
  int64_t dim = 64;  // columns of an embedding
  int64_t user = 1;
  bool validate = false;
  std::optional<std::string> dtype = {};  // of the tables; unset: float32
  bool json = false;
  bool sharded = false;  // spread tables over several ranks
};

/// Reads the command line into `options`. Returns the exit status if the program must end
/// now: after --help, and for wrong arguments.
std::optional<int> parse_arguments(int argc, char** argv, Options& options);

/// Creates the folder for checkpoints, and checks all outputs before the training.
/// Errors:  c10::ValueError for files and folders that can't be written.
void prepare_outputs(const Options& options);
