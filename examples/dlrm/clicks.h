// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/options.h"

#include <tessera/data/batches.h>
#include <tessera/data/dataset.h>
#include <tessera/data/example_source.h>
#include <tessera/data/feature_pipeline.h>
#include <tessera/data/malformed_lines.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

/// A batch of model inputs and labels.
struct Batch {
  tessera::data::PipelineBatch inputs;
  at::Tensor labels;
};

/// Returns whether the file has the format of Criteo_x1: commas, and a header that begins
/// with label,I1. Other files must have Criteo's own format.
bool is_criteo_x1(const std::string& file);

/// The examples of some files, with the columns "label", "I1" to "I13" and "C1" to "C26".
struct ClickLogs {
  std::shared_ptr<const tessera::data::ExampleSource> examples;
  /// Counts what the reader that was opened last has read so far.
  std::function<tessera::data::ReadReport()> report;
};

/// Opens files of the same format. The options say how to handle malformed lines.
ClickLogs open_files(
    const std::vector<std::string>& files,
    const Options& options);

/// Writes the skipped lines to standard error.
void report_skipped(const tessera::data::ReadReport& report);

// snippet: clicks
/// The batches of some files, as fit() reads them.
class Clicks {
 public:
  Clicks(
      const std::vector<std::string>& files,
      const tessera::data::FeaturePipeline& pipeline,
      const Options& options)
      : logs_(open_files(files, options)),
        reader_(tessera::data::Dataset(logs_.examples)
                    .batch({.size = options.batch})(0)),
        pipeline_(pipeline) {}

  std::optional<Batch> next() {
    const auto read = reader_.next();
    if (!read) {
      return std::nullopt;
    }
    return Batch{pipeline_.apply(*read), read->tensor("label")};
  }
  /// Skips batches without applying the pipeline. Returns their number.
  int64_t skip(int64_t count) {
    return reader_.skip(count);
  }
  tessera::data::ReadReport report() const {
    return logs_.report();
  }

 private:
  ClickLogs logs_;
  tessera::data::BatchReader reader_;
  tessera::data::FeaturePipeline pipeline_;
};
// end snippet
