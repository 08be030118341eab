// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/options.h"

#include <tessera/layers/training/callback.h>

#include <string>

/// Keeps in checkpoints the options that a training must not be resumed without: another
/// seed would hold out ratings that have been trained on, another batch size would skip
/// other ratings.
class ResumeCheck : public tessera::training::Callback {
 public:
  explicit ResumeCheck(const Options& options);

  std::string state_name() const override;
  void save_state(torch::serialize::OutputArchive& archive) const override;
  /// Errors:  c10::ValueError that names both.
  void load_state(torch::serialize::InputArchive& archive) override;

 private:
  Options options_;
};
