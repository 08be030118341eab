// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json.h>
#include <tessera/common/precision.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// The command line of dlrm_criteo.
struct Options {
  std::vector<std::string> data = {};  // training files
  std::vector<std::string> test = {};
  int64_t generate =
      1'000'000;  // training examples to generate if `data` is empty
  std::string folder = "criteo-generated";  // of the generated files
  std::string model = "dlrm";
  int64_t dim = 16;
  int64_t min_count = 2;
  bool keys = false;
  int64_t capacity = 1'000'000;
  int64_t batch = 1024;
  int64_t epochs = 1;
  std::string optimizer = "adagrad";
  double learning_rate = 0.1;  // for tables
  double dense_learning_rate = 0.03;
  tessera::Precision precision = tessera::Precision::kFloat32;
  int64_t seed = 0;
  std::string malformed = "error";
  std::optional<int64_t> max_malformed = {};
  std::string checkpoint = {};  // directory
  int64_t every_steps = 0;
  std::string exported = {};  // file
  std::string history = {};  // directory
  std::string arrays = {};  // directory
  bool in_memory = false;
  bool profile = false;
  bool json = false;
};

/// Reads the command line into `options`. Returns the exit status if the program must end
/// now: after --help, and for wrong arguments.
std::optional<int> parse_arguments(int argc, char** argv, Options& options);

/// The file of the feature pipeline, beside the exported model.
std::string pipeline_file(const Options& options);

/// The options that a resumed training must have, too, by the names of their flags. Files
/// have their sizes. The precision may be another one.
tessera::Json training_options(const Options& options);

/// Returns the library's error message, with the flag of this program that its advice
/// corresponds to.
std::string with_flags(const std::string& message);
