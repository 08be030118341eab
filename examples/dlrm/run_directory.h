// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/click_model.h"
#include "examples/dlrm/options.h"

#include <tessera/tessera.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>

/// The --checkpoint directory of dlrm_criteo, if there is one. In addition to the
/// checkpoints it has run.json with the options and the model's config, and pipeline.json
/// with the pipeline, so that a resumed training has the same ids.
class RunDirectory {
 public:
  /// Errors:  c10::ValueError if the checkpoints were made with other options, which it
  ///          names, or by another program.
  explicit RunDirectory(const Options& options);

  /// Returns true if there is a checkpoint to resume from.
  bool is_resumed() const {
    return is_resumed_;
  }
  tessera::data::FeaturePipeline load_pipeline() const;
  /// Checks that the checkpoints are of the same model.
  /// Errors:  c10::ValueError if they are of another model.
  void check(const ClickModel& model) const;

  /// Returns a callback that writes both files when a new training begins. A training
  /// with wrong options ends before that and leaves no files.
  std::shared_ptr<tessera::training::Callback> make_files_writer(
      const ClickModel& model,
      const tessera::data::FeaturePipeline& pipeline) const;

 private:
  std::filesystem::path directory_;
  tessera::Json options_;
  tessera::Json model_;  // config of the model in the checkpoints
  bool is_resumed_ = false;
};
