// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// What dlrm_criteo is told.
struct Options {
  std::vector<std::string> data = {};  // training files
  std::vector<std::string> test = {};
  int64_t generate = 1'000'000;  // examples, without data
  std::string folder = "criteo-generated";  // for them
  std::string model = "dlrm";
  int64_t dim = 16;
  int64_t min_count = 2;
  int64_t batch = 1024;
  int64_t epochs = 1;
  std::string optimizer = "adagrad";
  double learning_rate = 0.1;  // of tables
  double dense_learning_rate = 0.03;
  int64_t seed = 0;
  std::string malformed = "error";
  std::optional<int64_t> most_malformed = {};
  std::string checkpoint = {};  // directory
  int64_t every_steps = 0;
  std::string exported = {};  // file
  std::string history = {};  // directory
  std::string arrays = {};  // directory
  bool in_memory = false;
  bool json = false;
};

/// The exit status, where the program is done: after --help, and for arguments
/// that it doesn't take.
std::optional<int> parse_arguments(int argc, char** argv, Options& options);

/// The file of the feature pipeline, beside the exported model.
std::string pipeline_file(const Options& options);

/// What decides the result of some epochs, by the names of the flags; files with
/// their sizes.
tessera::Json deciding_options(const Options& options);

/// The library's message, and which flag its advice means here.
std::string with_flags(const std::string& message);
