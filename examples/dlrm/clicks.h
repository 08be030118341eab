// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

#include <tessera/data/criteo_reader.h>
#include <tessera/data/feature_pipeline.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

/// A batch of model inputs and labels.
struct Batch {
  tessera::data::PipelineBatch inputs;
  at::Tensor labels;
};

/// Opens the files. The options say how to handle malformed lines.
tessera::data::CriteoReader open_files(
    const std::vector<std::string>& files,
    const Options& options);

/// Writes the skipped lines to standard error.
void report_skipped(const tessera::data::CriteoReport& report);

// snippet: clicks
/// The batches of some files, as fit() reads them.
class Clicks {
 public:
  Clicks(
      const std::vector<std::string>& files,
      const tessera::data::FeaturePipeline& pipeline,
      const Options& options)
      : reader_(open_files(files, options)), pipeline_(pipeline) {}

  std::optional<Batch> next() {
    const auto read = reader_.next();
    if (!read) {
      return std::nullopt;
    }
    return Batch{
        pipeline_.apply(tessera::data::to_columns(*read)), read->labels};
  }
  /// Skips batches without applying the pipeline. Returns their number.
  int64_t skip(int64_t count) {
    int64_t skipped = 0;
    while (skipped < count && reader_.next()) {
      ++skipped;
    }
    return skipped;
  }
  tessera::data::CriteoReport report() const {
    return reader_.report();
  }

 private:
  tessera::data::CriteoReader reader_;
  tessera::data::FeaturePipeline pipeline_;
};
// end snippet
