// SPDX-License-Identifier: Apache-2.0
#include <tessera/training/early_stopping.h>

#include <torch/serialize/archive.h>

#include "packages/training/src/model_files.h"
#include "src/common/check.h"
#include "src/common/names.h"
#include "src/common/rank_group.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace tessera::training {

namespace {

constexpr const char* kEarlyStopping = "[EarlyStopping]";
constexpr const char* kBestEpoch = "early_stopping_epoch";
constexpr const char* kBest = "early_stopping_best";

// The epoch whose weights a directory holds, and its monitored value.
struct SavedBest {
  int64_t epoch = -1;
  double value = 0.0;
};

SavedBest read_saved(torch::serialize::InputArchive& archive) {
  c10::IValue epoch, value;
  if (archive.try_read(kBestEpoch, epoch) && epoch.isInt() &&
      archive.try_read(kBest, value) && value.isDouble()) {
    return {.epoch = epoch.toInt(), .value = value.toDouble()};
  }
  return {};
}

[[noreturn]] void refuse(
    const std::string& directory,
    const SavedBest& saved,
    const SavedBest& expected) {
  TESSERA_CHECK_VALUE(
      saved.epoch >= 0,
      "[EarlyStopping] '{}' has no best weights, but must have those of epoch {} with the value {}. Pass the directory that this training has written to, and no other training.",
      directory,
      expected.epoch,
      fmt::to_string(expected.value));
  TESSERA_CHECK_VALUE(
      false,
      "[EarlyStopping] '{}' has the weights of epoch {} with the value {}, but must have those of epoch {} with the value {}. Pass the directory that this training has written to, and no other training.",
      directory,
      saved.epoch,
      fmt::to_string(saved.value),
      expected.epoch,
      fmt::to_string(expected.value));
}

}  // namespace

EarlyStopping::EarlyStopping(EarlyStoppingOptions options)
    : options_(std::move(options)), better_(options_.better) {
  TESSERA_CHECK_VALUE(
      options_.patience >= 0,
      "[EarlyStopping] patience must be >= 0, but got {}. Set it to the number of epochs to wait.",
      options_.patience);
  TESSERA_CHECK_VALUE(
      options_.min_delta >= 0.0 && std::isfinite(options_.min_delta),
      "[EarlyStopping] min_delta must be finite and >= 0, but got {}. Set it to the smallest change that is an improvement.",
      options_.min_delta);
  TESSERA_CHECK_VALUE(
      options_.directory.empty() || options_.restore_best != nullptr,
      "[EarlyStopping] directory is set, but restore_best is not. Set EarlyStoppingOptions::restore_best to the model whose best weights are saved there.");
}

EarlyStopping::~EarlyStopping() = default;

void EarlyStopping::check_better() const {
  TESSERA_CHECK_VALUE(
      better_ != Better::kUnknown,
      "[EarlyStopping] it is not known whether '{}' should rise or fall. Set EarlyStoppingOptions::better.",
      options_.monitor);
}

void EarlyStopping::on_train_begin(Training& training) {
  const std::vector<std::string> names = training.log_names();
  TESSERA_CHECK_VALUE(
      std::ranges::find(names, options_.monitor) != names.end(),
      "[EarlyStopping] '{}' is not logged. Set EarlyStoppingOptions::monitor to one of {}.",
      options_.monitor,
      join_names(names));
  better_ = options_.better == Better::kUnknown
      ? training.better(options_.monitor)
      : options_.better;
  check_better();
  TESSERA_CHECK_VALUE(
      options_.restore_best == nullptr || !options_.directory.empty() ||
          !sharded_strategy_of(*options_.restore_best),
      "[EarlyStopping] the best weights of sharded tables can't be kept in memory, because no process has all rows. Set EarlyStoppingOptions::directory.");
  if (!options_.directory.empty()) {
    check_model_directory(options_.directory, kEarlyStopping);
  }
  best_epoch_ = -1;
  best_ = 0.0;
  waited_ = 0;
  best_weights_.clear();
}

bool EarlyStopping::is_done() const {
  return waited_ >= std::max<int64_t>(1, options_.patience);
}

bool EarlyStopping::update(int64_t epoch, double value) {
  check_better();
  TESSERA_CHECK_VALUE(
      epoch >= 0,
      "[EarlyStopping] epoch must be >= 0, but got {}. Count epochs from 0.",
      epoch);
  const double improvement =
      better_ == Better::kHigher ? value - best_ : best_ - value;
  const bool is_best =
      best_epoch_ < 0 ? !std::isnan(value) : improvement > options_.min_delta;
  if (is_best) {
    best_ = value;
    best_epoch_ = epoch;
  }
  waited_ = is_best ? 0 : waited_ + 1;
  return is_best;
}

void EarlyStopping::stop_if_done(Training& training) const {
  if (is_done()) {
    std::string reason = fmt::format(
        "{} has not improved for {} epochs", options_.monitor, waited_);
    if (options_.restore_best != nullptr && best_epoch_ >= 0) {
      reason += ", " + best_record().text();
    }
    training.stop(reason);
  }
}

void EarlyStopping::on_epoch_end(Training& training) {
  const Ranks ranks = options_.restore_best == nullptr
      ? ranks_of(Strategy::fused())
      : ranks_of(*options_.restore_best, training.strategy());
  // Saving is collective, so all ranks must decide on the same value: that of rank 0.
  const double value = ranks->broadcast(
      Rendezvous::kTrain, [&] { return training.logs()[options_.monitor]; });
  if (update(training.progress().epoch, value)) {
    keep_best(training);
  }
  stop_if_done(training);
}

void EarlyStopping::keep_best(const Training& training) {
  if (options_.restore_best == nullptr) {
    return;
  }
  if (options_.directory.empty()) {
    best_weights_ = model_to_bytes(*options_.restore_best);
  } else {
    save_model(
        *options_.restore_best,
        ranks_of(*options_.restore_best, training.strategy()),
        options_.directory,
        {.keep_last = 1,
         .extra =
             [&](torch::serialize::OutputArchive& archive) {
               archive.write(kBestEpoch, c10::IValue(best_epoch_));
               archive.write(kBest, c10::IValue(best_));
             }},
        kEarlyStopping);
  }
}

void EarlyStopping::on_last_step(Training& training) {
  const bool is_last = best_epoch_ + 1 == training.progress().epoch &&
      training.progress().step_in_epoch == 0;
  if (options_.restore_best == nullptr || best_epoch_ < 0 || is_last) {
    return;
  }
  if (options_.directory.empty()) {
    model_from_bytes(*options_.restore_best, best_weights_);
  } else {
    const bool is_found = load_model(
        *options_.restore_best,
        ranks_of(*options_.restore_best, training.strategy()),
        options_.directory,
        kEarlyStopping,
        [&](torch::serialize::InputArchive& archive) {
          const SavedBest saved = read_saved(archive);
          if (saved.epoch != best_epoch_ || saved.value != best_) {
            refuse(options_.directory, saved, {best_epoch_, best_});
          }
        });
    if (!is_found) {
      refuse(options_.directory, {}, {best_epoch_, best_});
    }
  }
  training.set_restored(best_record());
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
  TESSERA_CHECK_VALUE(
      options_.restore_best == nullptr || best_epoch_ < 0 ||
          !options_.directory.empty() || !best_weights_.empty(),
      "[EarlyStopping] restore_best needs the best weights of the checkpoint, but it has none. Resume with the options with which the checkpoint was saved.");
  if (options_.restore_best != nullptr && !options_.directory.empty() &&
      best_epoch_ >= 0) {
    SavedBest saved;
    peek_model(
        *options_.restore_best,
        options_.directory,
        kEarlyStopping,
        [&](torch::serialize::InputArchive& from) {
          saved = read_saved(from);
        });
    // If the process died between an improvement and the next checkpoint, the directory
    // has a later epoch, which the resumed training reaches again. If it does not reach
    // that epoch, on_last_step() raises an error.
    const bool is_ahead = saved.epoch > best_epoch_;
    if (!is_ahead && (saved.epoch != best_epoch_ || saved.value != best_)) {
      refuse(options_.directory, saved, {best_epoch_, best_});
    }
  }
}

}  // namespace tessera::training
