// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/pipeline.h>
#include <tessera/serving/server.h>

#include "packages/data/src/pipeline_core.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::serving {

/// The item with this name, or nullptr.
template <class Items>
auto find_named(Items&& items, std::string_view name) {
  const auto found = std::ranges::find_if(
      items, [&](const auto& item) { return item.name == name; });
  return found == items.end() ? nullptr : &*found;
}

/// The pipeline of a version, as a server uses it.
struct PublishedPipeline {
  /// Errors:  std::invalid_argument for a text that is not a pipeline, and for a function of
  ///          the options that does not fit it.
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

  const std::vector<data::PipelineOutput>& outputs() const {
    return pipeline.core().outputs();
  }

  std::string checksum;  // of the text
  Pipeline pipeline;
  /// The columns that the pipeline reads, and those from which functions make them.
  std::vector<PipelineColumn> columns;
};

/// The pipeline of a version, or the problem for which it can't be read.
struct PipelineOfVersion {
  /// nullptr: the version has none, or it can't be read.
  std::shared_ptr<const PublishedPipeline> pipeline = {};
  /// Why it can't be read.
  std::string problem = {};
};

/// Keeps the pipelines of the versions in use. Versions with the same text share one.
class PipelineCache {
 public:
  using Future = std::shared_future<PipelineOfVersion>;

  /// Keeps a reference to the options.
  explicit PipelineCache(const ServerOptions& options) : options_(options) {}

  /// The pipeline of a version, which a thread of its own reads at the first call.
  Future pipeline_of(const Version& version);

 private:
  struct Entry {
    std::weak_ptr<const void> base;
    Future read;
  };

  const ServerOptions& options_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

/// True if the pipeline has been read, so that get() does not wait.
inline bool is_ready(const PipelineCache::Future& read) {
  return read.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace tessera::serving
