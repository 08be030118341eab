// SPDX-License-Identifier: Apache-2.0
#include "examples/movielens/resume_check.h"

#include <torch/serialize/archive.h>

ResumeCheck::ResumeCheck(const Options& options) : options_(options) {}

std::string ResumeCheck::state_name() const {
  return "schedule";  // the name in checkpoints of earlier versions
}

void ResumeCheck::save_state(torch::serialize::OutputArchive& archive) const {
  archive.write("seed", c10::IValue(options_.seed));
  archive.write("batch", c10::IValue(options_.batch));
}

void ResumeCheck::load_state(torch::serialize::InputArchive& archive) {
  c10::IValue seed, batch;
  archive.read("seed", seed);
  archive.read("batch", batch);
  TORCH_CHECK_VALUE(
      seed.toInt() == options_.seed && batch.toInt() == options_.batch,
      "[movielens] '",
      options_.checkpoint,
      "' was trained with --seed ",
      seed.toInt(),
      " --batch ",
      batch.toInt(),
      ", but got --seed ",
      options_.seed,
      " --batch ",
      options_.batch,
      ". Pass the same options, or choose another --checkpoint directory.");
}
