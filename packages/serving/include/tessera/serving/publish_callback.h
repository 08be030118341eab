// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/serving/publisher.h>
#include <tessera/training/callback.h>

#include <chrono>
#include <cstdint>
#include <memory>

namespace tessera::serving {

// snippet: packages/serving/tests/serving_docs_test.cpp PublishCallback
/// Publishes the model during fit(), and once more at the end.
///
///   const auto publisher = std::make_shared<Publisher>(model, "published");
///   fit(batches,
///       step,
///       {.callbacks = {PublishCallback(publisher, {.every_seconds = 10.0})}});
///
/// A version has the step and the logs of the training. If a version can't be written, for
/// example because the disk is full, the callback warns and the training goes on. The rows
/// are then in the next version.
/// Errors:  c10::ValueError for a schedule that is empty or negative.
class PublishCallback : public training::Callback {
 public:
  /// When the callback publishes. At least one member must be set.
  struct Schedule {
    /// After every n-th step. 0: not by steps.
    int64_t every_steps = 0;
    /// After the first step that ends this many seconds after the last version. 0: not by
    /// time.
    double every_seconds = 0.0;
  };

  PublishCallback(std::shared_ptr<Publisher> publisher, Schedule schedule);

  void on_train_begin(training::Training& training) override;
  void on_step_end(training::Training& training) override;
  void on_train_end(training::Training& training) override;

 private:
  void publish(training::Training& training);
  void wait();

  std::shared_ptr<Publisher> publisher_;
  Schedule schedule_;
  std::chrono::steady_clock::time_point last_;
};

}  // namespace tessera::serving
