// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/generated_data.h"

#include "examples/click_logs/criteo_generator.h"
#include "examples/common/outputs.h"
#include "examples/dlrm/clicks.h"

#include <tessera/formats/npy.h>
#include <tessera/training/metrics.h>

#include <ATen/ops/cat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ios>
#include <string>
#include <vector>

namespace fs = std::filesystem;

namespace {

// Returns true if the file exists and is not cut off.
bool ends_with(const std::string& path, const std::string& line) {
  std::string end(line.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  file.seekg(-static_cast<std::streamoff>(line.size()), std::ios::end);
  file.read(end.data(), static_cast<std::streamsize>(end.size()));
  return file.good() && end == line;
}

}  // namespace

double use_generated_data(Options& options) {
  make_output_folder("[dlrm_criteo] --folder", options.folder);
  const auto path = [&](const char* kind, const char* suffix) {
    return (fs::path(options.folder) /
            (std::to_string(options.generate) + "_" + kind + suffix))
        .string();
  };
  const int64_t tests = std::max<int64_t>(options.generate / 5, 1000);
  const auto make = [&](const char* kind, int64_t first, int64_t count) {
    const click_logs::CriteoGenerator generator(
        {.examples = count, .first_example = first});
    std::string last;
    generator.append_line(first + count - 1, last);
    if (!ends_with(path(kind, ".txt"), last) ||
        !fs::exists(path(kind, ".npy"))) {
      tessera::save_npy(
          generator.write(path(kind, ".txt")), path(kind, ".npy"));
    }
  };
  make("train", 0, options.generate);
  make("test", options.generate, tests);
  options.data = {path("train", ".txt")};
  options.test = {path("test", ".txt")};
  std::vector<at::Tensor> labels;
  const auto reader = open_files(options.test, options).examples->open();
  while (const auto examples = reader->next()) {
    labels.push_back(examples->tensor("label"));
  }
  tessera::training::AUC auc;
  auc.update(tessera::load_npy(path("test", ".npy")), at::cat(labels));
  return auc.result();
}
