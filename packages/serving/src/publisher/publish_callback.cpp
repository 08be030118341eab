// SPDX-License-Identifier: Apache-2.0
#include <tessera/serving/publish_callback.h>

#include "src/common/check.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

namespace tessera::serving {

PublishCallback::PublishCallback(
    std::shared_ptr<Publisher> publisher,
    PublishSchedule schedule)
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
  const bool is_due = (schedule_.every_steps > 0 &&
                       training.progress().step % schedule_.every_steps == 0) ||
      (schedule_.every_seconds > 0.0 &&
       passed.count() >= schedule_.every_seconds);
  if (is_due) {
    publish(training);
  }
}

void PublishCallback::on_train_end(training::Training& training) {
  publish(training);
  try {
    publisher_->wait();
  } catch (const c10::Error& error) {
    TORCH_WARN(error.what_without_backtrace());
  }
}

void PublishCallback::publish(training::Training& training) {
  last_ = std::chrono::steady_clock::now();
  PublishInfo info{.step = training.progress().step};
  const training::Logs logs = training.logs();
  for (const auto& [name, value] : logs.entries()) {
    info.metrics[name] = value;
  }
  try {
    publisher_->publish(info);
  } catch (const c10::Error& error) {
    TORCH_WARN(
        error.what_without_backtrace(),
        " The training goes on, and the next version has these rows, too.");
  }
}

}  // namespace tessera::serving
