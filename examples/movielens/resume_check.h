// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "examples/movielens/options.h"

#include <tessera/training/callback.h>

#include <string>

/// Saves the options in checkpoints that must be equal when a training is resumed. With
/// another seed, held-out ratings could have been trained on before; with another batch
/// size, a resumed epoch would skip other ratings.
class ResumeCheck : public tessera::training::Callback {
 public:
  explicit ResumeCheck(const Options& options);

  std::string state_name() const override;
  void save_state(torch::serialize::OutputArchive& archive) const override;
  /// Errors:  c10::ValueError that names the saved and the current options.
  void load_state(torch::serialize::InputArchive& archive) override;

 private:
  Options options_;
};
