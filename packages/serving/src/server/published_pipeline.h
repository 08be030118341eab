// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/pipeline.h>
#include <tessera/serving/server.h>

#include "packages/data/src/pipeline_core.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

/// The item with this name, or nullptr.
template <class Items>
auto find_named(const Items& items, std::string_view name) {
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const auto& item) {
        return item.name == name;
      });
  return found == items.end() ? nullptr : &*found;
}

/// The pipeline of a version, as a server uses it.
struct PublishedPipeline {
  /// Errors:  std::invalid_argument for a text that is not a pipeline.
  PublishedPipeline(std::string_view text, const ServerOptions& options);

  /// An input of the model that the pipeline makes.
  struct Input {
    std::string name = {};
    std::vector<std::string> columns = {};
    /// nullptr: all numbers of the pipeline.
    const data::Transform* transform = nullptr;
    /// Columns of PipelineResult::dense. None: the input is a feature.
    int64_t first_number = 0;
    int64_t num_numbers = 0;
  };
  /// The inputs that the score function lists and that the pipeline makes, or all if it
  /// lists none. If it lists no output that gives numbers, the first input that is as wide
  /// as all of them together gets them.
  std::vector<Input> inputs(const std::vector<ScoreInputInfo>& listed) const;

  Pipeline pipeline;
  /// The columns that the pipeline reads, and those from which functions make them.
  std::vector<PipelineColumn> columns;
};

/// Reads the pipeline of a version when it is first used. Versions with the same text share
/// it.
class PipelineCache {
 public:
  /// Returns nullptr if the version has no pipeline.
  /// Errors:  std::invalid_argument for a text that is not a pipeline.
  std::shared_ptr<const PublishedPipeline> pipeline_of(
      const Version& version,
      const ServerOptions& options);

 private:
  std::mutex mutex_;
  std::weak_ptr<const void> base_;
  std::string checksum_;
  std::shared_ptr<const PublishedPipeline> pipeline_;
};

}  // namespace tessera::serving
