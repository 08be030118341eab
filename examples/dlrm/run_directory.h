// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/dlrm/click_model.h"
#include "examples/dlrm/options.h"

#include <tessera/tessera.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <memory>

/// The --checkpoint directory of dlrm_criteo, or none. Beside the checkpoints stand
/// run.json, the options and the model's config, and pipeline.json, which makes
/// the same ids again.
class RunDirectory {
 public:
  /// Errors:  c10::ValueError where the checkpoints were made with other options,
  ///          which it names, or the directory is of another program.
  explicit RunDirectory(const Options& options);

  /// Whether there is a checkpoint to go on from.
  bool is_resumed() const {
    return is_resumed_;
  }
  tessera::data::FeaturePipeline load_pipeline() const;
  /// Errors:  c10::ValueError where the checkpoints are of another model.
  void check(const ClickModel& model) const;

  /// Writes both files when a new training begins, so that one which is refused
  /// before leaves nothing behind.
  std::shared_ptr<tessera::training::Callback> make_keeper(
      const ClickModel& model,
      const tessera::data::FeaturePipeline& pipeline) const;

 private:
  std::filesystem::path directory_;
  tessera::Json options_;
  tessera::Json model_;  // of the checkpoints
  bool is_resumed_ = false;
};
