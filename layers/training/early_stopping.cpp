// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/training/early_stopping.h>

#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include "layers/training/model_files.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace tessera {

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)) {
  TORCH_CHECK_VALUE(
      options_.patience >= 0,
      "[EarlyStopping] patience must be >= 0, but got ",
      options_.patience,
      ".");
  TORCH_CHECK_VALUE(
      options_.min_delta >= 0.0 && std::isfinite(options_.min_delta),
      "[EarlyStopping] min_delta must be finite and >= 0, but got ",
      options_.min_delta,
      ".");
  TORCH_CHECK_VALUE(
      options_.directory.empty() || options_.restore_best != nullptr,
      "[EarlyStopping] a directory was given, but no model whose best weights "
      "would go there. Set EarlyStoppingOptions::restore_best.");
}

EarlyStopping::~EarlyStopping() = default;

void EarlyStopping::on_train_begin(Training& training) {
  const std::vector<std::string> names = training.log_names();
  TORCH_CHECK_VALUE(
      std::find(names.begin(), names.end(), options_.monitor) != names.end(),
      "[EarlyStopping] '",
      options_.monitor,
      "' is not logged. Monitor one of ",
      fmt::format("{}", fmt::join(names, ", ")),
      ".");
  const Better better = options_.better == Better::kUnknown
      ? training.better(options_.monitor)
      : options_.better;
  TORCH_CHECK_VALUE(
      better != Better::kUnknown,
      "[EarlyStopping] whether '",
      options_.monitor,
      "' should rise or fall is not known. Set EarlyStoppingOptions::better.");
  if (!options_.directory.empty()) {
    check_model_directory(options_.directory, "[EarlyStopping]");
  }
  is_higher_better_ = better == Better::kHigher;
  best_epoch_ = -1;
  best_ = 0.0;
  waited_ = 0;
  best_weights_.clear();
}

void EarlyStopping::stop_if_done(Training& training) const {
  if (waited_ >= std::max<int64_t>(1, options_.patience)) {
    training.stop(fmt::format(
        "{} has not improved for {} epochs", options_.monitor, waited_));
  }
}

// A training that had stopped and is resumed stays so.
void EarlyStopping::on_epoch_begin(Training& training) {
  stop_if_done(training);
}

void EarlyStopping::on_epoch_end(Training& training) {
  const double value = training.logs()[options_.monitor];
  const double gain = is_higher_better_ ? value - best_ : best_ - value;
  const bool is_first = best_epoch_ < 0 && !std::isnan(value);
  if (is_first || (best_epoch_ >= 0 && gain > options_.min_delta)) {
    best_ = value;
    best_epoch_ = training.progress().epoch;
    waited_ = 0;
    keep_best();
    return;
  }
  ++waited_;
  stop_if_done(training);
}

void EarlyStopping::keep_best() {
  if (options_.restore_best == nullptr) {
    return;
  }
  if (options_.directory.empty()) {
    best_weights_ = model_to_bytes(*options_.restore_best);
  } else {
    save_model(*options_.restore_best, options_.directory, {.keep_last = 1});
  }
}

void EarlyStopping::on_train_end(Training& training) {
  const bool is_last = best_epoch_ + 1 == training.progress().epoch &&
      training.progress().step_in_epoch == 0;
  if (options_.restore_best == nullptr || best_epoch_ < 0 || is_last) {
    return;
  }
  if (options_.directory.empty()) {
    model_from_bytes(*options_.restore_best, best_weights_);
  } else {
    load_model(*options_.restore_best, options_.directory);
  }
}

std::string EarlyStopping::state_name() const {
  return "EarlyStopping " + options_.monitor;
}

void EarlyStopping::save_state(torch::serialize::OutputArchive& archive) const {
  archive.write("best_epoch", c10::IValue(best_epoch_));
  archive.write("best", c10::IValue(best_));
  archive.write("waited", c10::IValue(waited_));
  if (!best_weights_.empty()) {
    const auto size = static_cast<int64_t>(best_weights_.size());
    const at::Tensor bytes = at::empty({size}, at::kByte);
    std::memcpy(
        bytes.mutable_data_ptr(), best_weights_.data(), best_weights_.size());
    archive.write("best_weights", bytes, true);
  }
}

void EarlyStopping::load_state(torch::serialize::InputArchive& archive) {
  c10::IValue best_epoch, best, waited;
  archive.read("best_epoch", best_epoch);
  archive.read("best", best);
  archive.read("waited", waited);
  best_epoch_ = best_epoch.toInt();
  best_ = best.toDouble();
  waited_ = waited.toInt();
  best_weights_.clear();
  if (at::Tensor bytes; archive.try_read("best_weights", bytes, true)) {
    best_weights_.assign(
        static_cast<const char*>(bytes.const_data_ptr()),
        static_cast<size_t>(bytes.numel()));
  }
  TORCH_CHECK_VALUE(
      options_.restore_best == nullptr || best_epoch_ < 0 ||
          !options_.directory.empty() || !best_weights_.empty(),
      "[EarlyStopping] the checkpoint has no best weights, but they are to be "
      "restored from it. Resume with the options that it was made with.");
}

}  // namespace tessera
