// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>
#include <tessera/training/callback.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::training {

// snippet: tests/docs/reference_training_test.cpp Profile
/// Measures what the time of a training is spent on.
///
///   const auto profile = std::make_shared<Profile>();
///   fit(batches, step, {.callbacks = {profile}});
///   std::cout << profile->text();
///   for (const Profile::Row& row : profile->result()) {
///     std::cout << row.phase << " " << row.share << "\n";
///   }
///
/// Tessera has a ProfileScope for each of these phases, and your own scopes become
/// further phases:
///
///   next batch           the rest of the time that the source of the batches takes
///   reading              CriteoReader::next()
///   pipeline             FeaturePipeline::apply()
///   checking ids         the checks and copies of the ids of a batch
///   lookup               the lookup of the rows
///   waiting for lookups  the time until a lookup in the background is done
///   dense forward        the rest of the loss function of make_train_step()
///   dense backward       the rest of backward()
///   table update         the update of the rows, during backward() or step()
///   summing gradients    the sum of the gradients of dense parameters over all ranks
///   optimizer            the rest of the dense optimizer's step()
///   step                 the rest of the step function
///   metrics, callbacks, checkpoint, validation
///   other                everything outside of these phases
///
/// A phase does not contain the time of scopes within it, except for callbacks,
/// checkpoint and validation, which contain all of their time. The shares of all phases
/// add up to 1. A step function that was not made by make_train_step() has no dense
/// phases: their time is in "step".
///
/// Some work runs on other threads at the same time as the steps, such as reading files,
/// parsing lines, and lookups in the background. This work has rows of its own, without a
/// share. All threads of the process count.
///
/// Errors:  c10::Error at the beginning of fit() if a Profile measures another training
///          of this process at the same time.
class Profile : public Callback {
 public:
  /// The time of one phase of a training, which is the sum over all scopes with one name.
  struct Row {
    /// What the time was spent on, such as "lookup". For a ProfileScope of your own, this is
    /// the name of the scope. "other": the time outside of all scopes.
    std::string phase = {};
    /// The name of the ProfileScope, such as "tessera::lookup". Empty for "other".
    std::string scope = {};
    /// The time of the scopes, without that of scopes within them.
    double seconds = 0.0;
    /// The part of the training's time, in [0, 1]. 0 in the background.
    double share = 0.0;
    /// The number of scopes; 0 for "other".
    int64_t calls = 0;
    double microseconds_per_step = 0.0;
    /// Whether other threads than that of fit() did the work. Their times are added up.
    bool is_background = false;

    bool operator==(const Row&) const = default;

    TESSERA_FIELDS(
        phase,
        scope,
        seconds,
        share,
        calls,
        microseconds_per_step,
        is_background)
  };

  Profile();
  ~Profile() override;
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// The phases of the last fit(), or of the running one, in the order of a step. "other"
  /// comes next, and the phases in the background come last. Empty if no step has ended.
  std::vector<Row> result() const;
  /// The rows of result() as a table.
  std::string text() const;
  /// The steps and the seconds of the last fit(), without those before a resume.
  int64_t steps() const;
  double seconds() const;

  void on_train_begin(Training& training) override;
  void on_step_end(Training& training) override;
  void on_train_end(Training& training) override;

 private:
  class Recording;

  std::shared_ptr<Recording> recording_;  // nullptr before the first fit()
};

}  // namespace tessera::training
