// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/checks.h"

#include "examples/common/outputs.h"
#include "examples/dlrm/clicks.h"

#include <c10/util/Exception.h>

#include <filesystem>
#include <string>
#include <vector>

namespace fs = std::filesystem;

void check_inputs(const Options& options) {
  TORCH_CHECK_VALUE(
      !options.test.empty(),
      "[dlrm_criteo] --data needs --test. Pass other files of the same format "
      "with --test.");
  for (const auto* files : {&options.data, &options.test}) {
    for (const std::string& file : *files) {
      TORCH_CHECK_VALUE(
          !fs::exists(file) || fs::is_regular_file(file),
          "[dlrm_criteo] --data and --test must be regular files, as they are "
          "read several times, but got '",
          file,
          "'. Pass other files.");
      TORCH_CHECK_VALUE(
          is_criteo_x1(file) == is_criteo_x1(options.data.front()),
          "[dlrm_criteo] --data and --test must have the same format, but only "
          "one of '",
          options.data.front(),
          "' and '",
          file,
          "' begins with the header label,I1,... of Criteo_x1. Pass other "
          "files.");
    }
  }
  TORCH_CHECK_VALUE(
      open_files(options.data, options).examples->open()->next().has_value(),
      "[dlrm_criteo] the files of --data have no example. Pass other files.");
  TORCH_CHECK_VALUE(
      open_files(options.test, options).examples->open()->next().has_value(),
      "[dlrm_criteo] the files of --test have no example. Pass other files.");
}

void check_arguments(const Options& options) {
  TORCH_CHECK_VALUE(
      !options.max_malformed || options.malformed == "skip",
      "[dlrm_criteo] --max-malformed needs --malformed skip. Add it, or leave "
      "--max-malformed out.");
  TORCH_CHECK_VALUE(
      !options.keys || (options.checkpoint.empty() && options.exported.empty()),
      "[dlrm_criteo] --keys trains key tables, which --checkpoint and "
      "--export can't write yet. Leave them out.");
  make_output_folder("[dlrm_criteo] --checkpoint", options.checkpoint);
  make_output_folder("[dlrm_criteo] --history", options.history);
  make_output_folder("[dlrm_criteo] --write-arrays", options.arrays);
  if (options.exported.empty()) {
    return;
  }
  std::vector<std::string> inputs = options.data;
  inputs.insert(inputs.end(), options.test.begin(), options.test.end());
  if (inputs.empty()) {
    inputs = {options.folder};
  }
  for (const auto& file : {options.exported, pipeline_file(options)}) {
    check_output_file("[dlrm_criteo] --export", file, inputs);
  }
}
