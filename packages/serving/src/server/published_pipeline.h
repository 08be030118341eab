// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/shorten.h>
#include <tessera/serving/pipeline.h>
#include <tessera/serving/server.h>

#include "packages/data/src/pipeline_core.h"
#include "src/common/check.h"
#include "src/common/checksum.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
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
  PublishedPipeline(std::string_view text, const ServerOptions& options)
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
  std::vector<Input> inputs(const std::vector<ScoreInputInfo>& listed) const {
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

  /// True if the pipeline has been read, so that get() does not wait.
  static bool is_ready(const Future& read) {
    return read.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  }

  /// The pipeline of a version, which a thread of its own reads at the first call.
  Future pipeline_of(const Version& version) {
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

 private:
  struct Entry {
    std::weak_ptr<const void> base;
    Future read;
  };

  const ServerOptions& options_;
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace tessera::serving
