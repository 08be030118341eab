// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/published_pipeline.h"

#include "src/common/checksum.h"

#include <utility>

namespace tessera::serving {

PublishedPipeline::PublishedPipeline(
    std::string_view text,
    const ServerOptions& options)
    : pipeline(Pipeline::from_json_text(text)), columns(pipeline.columns()) {
  for (const auto& [name, made] : options.functions) {
    for (const std::string& column : made.columns) {
      if (find_named(columns, name) && !find_named(columns, column)) {
        columns.push_back({.name = column, .takes_lists = true});
      }
    }
  }
}

std::vector<PublishedPipeline::Input> PublishedPipeline::inputs(
    const std::vector<ScoreInputInfo>& listed) const {
  std::vector<Input> inputs;
  Input all;
  bool has_numbers = false;
  for (const data::PipelineOutput& output : pipeline.core().outputs()) {
    const bool gives_numbers = data::gives_numbers(output.transform);
    const int64_t width = gives_numbers ? std::ssize(output.columns) : 0;
    if (listed.empty() || find_named(listed, output.name)) {
      inputs.push_back(
          {.name = output.name,
           .columns = output.columns,
           .transform = &output.transform,
           .first_number = all.num_numbers,
           .num_numbers = width});
      has_numbers = has_numbers || gives_numbers;
    }
    if (gives_numbers) {
      all.num_numbers += width;
      all.columns.insert(
          all.columns.end(), output.columns.begin(), output.columns.end());
    }
  }
  const auto wide = std::find_if(
      listed.begin(), listed.end(), [&](const ScoreInputInfo& input) {
        return input.width > 0 && input.width == all.num_numbers;
      });
  if (!has_numbers && wide != listed.end()) {
    all.name = wide->name;
    inputs.push_back(std::move(all));
  }
  return inputs;
}

std::shared_ptr<const PublishedPipeline> PipelineCache::pipeline_of(
    const Version& version,
    const ServerOptions& options) {
  const std::string_view text = version.pipeline();
  if (text.empty()) {
    return nullptr;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (base_.lock() != version.base_memory()) {
    std::string checksum = checksum_of(text);
    if (checksum != checksum_) {
      pipeline_ = std::make_shared<const PublishedPipeline>(text, options);
      checksum_ = std::move(checksum);
    }
    base_ = version.base_memory();
  }
  return pipeline_;
}

}  // namespace tessera::serving
