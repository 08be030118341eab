// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

/// What movielens is told.
struct Options {
  std::string data = ".deps/data/ml-100k";
  std::string save = {};  // file
  std::string checkpoint = {};  // directory
  std::string exported = {};  // file
  int64_t seed = 0;
  int64_t epochs = 8;
  int64_t batch = 1000;
  int64_t user = 1;
  std::string dtype = "float32";  // of the tables
  bool json = false;
  bool sharded = false;  // over the ranks of mpirun
};

/// The exit status, where the program is done: after --help, and for arguments that it
/// does not take.
std::optional<int> parse_arguments(int argc, char** argv, Options& options);

/// Makes the folder for checkpoints.
/// Errors:  c10::ValueError for files and folders that could not be written after the
///          training.
void prepare_outputs(const Options& options);
