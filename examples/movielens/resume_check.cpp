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
  archive.write("validate", c10::IValue(options_.validate));
}

void ResumeCheck::load_state(torch::serialize::InputArchive& archive) {
  c10::IValue seed, batch, validate;
  archive.read("seed", seed);
  archive.read("batch", batch);
  archive.read("validate", validate);
  TORCH_CHECK_VALUE(
      seed.toInt() == options_.seed && batch.toInt() == options_.batch &&
          validate.toBool() == options_.validate,
      "[movielens] '",
      options_.checkpoint,
      "' was trained with --seed ",
      seed.toInt(),
      " --batch ",
      batch.toInt(),
      validate.toBool() ? " --validate" : "",
      ", but got --seed ",
      options_.seed,
      " --batch ",
      options_.batch,
      options_.validate ? " --validate" : "",
      ". Pass the same options, or choose another --checkpoint directory.");
}
