// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/src/server/published_pipeline.h"

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/checksum.h"

#include <exception>
#include <utility>

namespace tessera::serving {

PublishedPipeline::PublishedPipeline(
    std::string_view text,
    const ServerOptions& options)
    : checksum(checksum_of(text)),
      pipeline(Pipeline::from_json_text(text)),
      columns(pipeline.columns()) {
  for (const auto& [name, function] : options.functions) {
    if (find_named(columns, name) == nullptr) {
      continue;
    }
    for (const PipelineColumn& argument : function.columns) {
      PipelineColumn* known = find_named(columns, argument.name);
      if (known == nullptr) {
        columns.push_back(argument);
        continue;
      }
      TESSERA_CHECK_VALUE(
          known->type == argument.type,
          "[ServerOptions] functions: the function of '{}' reads the column '{}' with another type than the pipeline or another function. Give both the same type.",
          shorten(name),
          shorten(argument.name));
      known->takes_lists = known->takes_lists && argument.takes_lists;
    }
  }
}

std::vector<PublishedPipeline::Input> PublishedPipeline::inputs(
    const std::vector<ScoreInputInfo>& listed) const {
  std::vector<Input> inputs;
  Input all;
  bool has_numbers = false;
  for (const data::PipelineOutput& output : outputs()) {
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
  const auto wide =
      std::ranges::find_if(listed, [&](const ScoreInputInfo& input) {
        return input.width > 0 && input.width == all.num_numbers;
      });
  if (!has_numbers && wide != listed.end()) {
    all.name = wide->name;
    inputs.push_back(std::move(all));
  }
  return inputs;
}

PipelineCache::Future PipelineCache::pipeline_of(const Version& version) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::shared_ptr<const void> base = version.base_memory();
  std::vector<PipelineOfVersion> known;
  for (const Entry& entry : entries_) {
    if (entry.base.lock() == base) {
      return entry.read;
    }
    if (is_ready(entry.read)) {
      known.push_back(entry.read.get());
    }
  }
  std::erase_if(entries_, [](const Entry& entry) {
    return entry.base.expired() && is_ready(entry.read);
  });
  auto read = [&options = options_,
               text = version.pipeline(),
               bytes = base,
               known = std::move(known)]() mutable {
    // The future keeps this function, which must not keep the bytes of the version.
    const auto kept = std::move(bytes);
    const auto others = std::move(known);
    try {
      const std::string checksum = checksum_of(text);
      for (const PipelineOfVersion& other : others) {
        if (other.pipeline && other.pipeline->checksum == checksum) {
          return other;
        }
      }
      return text.empty()
          ? PipelineOfVersion()
          : PipelineOfVersion{
                std::make_shared<const PublishedPipeline>(text, options)};
    } catch (const std::exception& error) {
      return PipelineOfVersion{.problem = error.what()};
    }
  };
  // Reads later, when the result is needed, if the system has no more threads.
  constexpr auto kPolicy = std::launch::async | std::launch::deferred;
  return entries_
      .emplace_back(Entry{base, std::async(kPolicy, std::move(read)).share()})
      .read;
}

}  // namespace tessera::serving
