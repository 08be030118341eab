// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/publish_callback.h>

#include "src/common/check.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <exception>
#include <utility>

namespace tessera::serving {

namespace {

// A version that can't be written must not end the training.
template <class Write>
void warn_of_errors(Write write) {
  try {
    write();
  } catch (const std::exception& error) {
    TORCH_WARN(
        reason_of(error),
        " The training goes on, and the next version has these rows, too.");
  }
}

}  // namespace

PublishCallback::PublishCallback(
    std::shared_ptr<Publisher> publisher,
    Schedule schedule)
    : publisher_(std::move(publisher)), schedule_(schedule) {
  TESSERA_CHECK_VALUE(
      publisher_ != nullptr,
      "[PublishCallback] expected a Publisher, but got nullptr. Pass one.");
  TESSERA_CHECK_VALUE(
      schedule_.every_steps >= 0 && schedule_.every_seconds >= 0.0 &&
          std::isfinite(schedule_.every_seconds) &&
          (schedule_.every_steps > 0 || schedule_.every_seconds > 0.0),
      "[PublishCallback] expected every_steps or every_seconds > 0, but got {} and {}. Set one of them.",
      schedule_.every_steps,
      schedule_.every_seconds);
}

void PublishCallback::on_train_begin(training::Training& /*training*/) {
  last_ = std::chrono::steady_clock::now();
}

void PublishCallback::on_step_end(training::Training& training) {
  const std::chrono::duration<double> passed =
      std::chrono::steady_clock::now() - last_;
  bool is_due = schedule_.every_steps > 0 &&
      training.progress().step % schedule_.every_steps == 0;
  if (schedule_.every_seconds > 0.0) {
    // Ranks have different clocks, but publish together.
    is_due = training.on_any_rank(
        is_due || passed.count() >= schedule_.every_seconds);
  }
  if (is_due) {
    publish(training);
  }
}

void PublishCallback::on_train_end(training::Training& training) {
  publish(training);
  wait();
}

void PublishCallback::wait() {
  warn_of_errors([&] { publisher_->wait(); });
}

void PublishCallback::publish(training::Training& training) {
  last_ = std::chrono::steady_clock::now();
  detail::PublishInfo info{.step = training.progress().step};
  const training::Logs logs = training.logs();
  info.metrics.insert(logs.entries().begin(), logs.entries().end());
  wait();  // so that an error of the version before does not prevent this one
  warn_of_errors([&] { publisher_->publish(info); });
}

}  // namespace tessera::serving
