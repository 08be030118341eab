// SPDX-License-Identifier: Apache-2.0
#include "examples/dlrm/arrays.h"

#include "examples/dlrm/clicks.h"

#include <tessera/formats/npy.h>

#include <torch/types.h>

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace fs = std::filesystem;
using tessera::data::FeaturePipeline;
using torch::Tensor;

void write_arrays(const FeaturePipeline& pipeline, const Options& options) {
  const auto write = [&](const std::vector<std::string>& files,
                         const std::string& name) {
    std::vector<Tensor> ids;
    std::vector<Tensor> dense;
    std::vector<Tensor> labels;
    Clicks clicks(files, pipeline, options);
    while (const auto batch = clicks.next()) {
      std::vector<Tensor> columns;
      for (const auto& feature : batch->inputs.features.flatten()) {
        columns.push_back(std::get<Tensor>(feature));
      }
      ids.push_back(torch::stack(columns, 1));
      dense.push_back(batch->inputs.dense);
      labels.push_back(batch->labels);
    }
    const auto path = [&](const char* kind) {
      return (fs::path(options.arrays) / (name + "_" + kind + ".npy")).string();
    };
    tessera::save_npy(torch::cat(ids), path("ids"));
    tessera::save_npy(torch::cat(dense), path("dense"));
    tessera::save_npy(torch::cat(labels), path("labels"));
  };
  write(options.data, "train");
  write(options.test, "test");
  std::vector<int64_t> sizes;
  for (const auto& output : pipeline.outputs()) {
    if (output.name != "numbers") {
      sizes.push_back(pipeline.vocabulary_size(output.name));
    }
  }
  tessera::save_npy(
      torch::tensor(sizes, torch::kLong),
      (fs::path(options.arrays) / "vocabulary_sizes.npy").string());
}
