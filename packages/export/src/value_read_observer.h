// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>

#include <memory>
#include <string>

namespace tessera::exporting {

/// Notices when C++ code reads a value of a tensor while LibTorch's tracer records. Such
/// a value would be a constant of the record. It observes the thread that made it.
class ValueReadObserver {
 public:
  ValueReadObserver();
  ~ValueReadObserver();

  ValueReadObserver(const ValueReadObserver&) = delete;
  ValueReadObserver& operator=(const ValueReadObserver&) = delete;

  /// The last operator before the first value was read. Empty: none was read.
  const std::string& after() const {
    return after_;
  }

 private:
  static std::unique_ptr<at::ObserverContext> begin(
      const at::RecordFunction& function);
  static void end(
      const at::RecordFunction& function,
      at::ObserverContext* context);

  at::CallbackHandle handle_;
  ValueReadObserver* outer_;
  std::string last_ = "the first operator";
  std::string after_;
  int depth_ = 0;  // of operators that call operators
};

/// Refuses a record in which a value was read.
/// Errors:  c10::ValueError beginning with `where`.
void check_no_reads(
    const ValueReadObserver& observer,
    const std::string& where);

}  // namespace tessera::exporting
