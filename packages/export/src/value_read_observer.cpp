// SPDX-License-Identifier: Apache-2.0
#include "packages/export/src/value_read_observer.h"

#include <torch/csrc/jit/frontend/tracer.h>

#include <memory>
#include <utility>

#include "src/common/check.h"

namespace tessera::exporting {

namespace {

// LibTorch's callbacks have no data of their own.
thread_local ValueReadObserver* current = nullptr;

// Returns true for operators that give C++ a value of a tensor.
bool reads_value(const std::string& name) {
  return name == "aten::item" || name == "aten::_local_scalar_dense" ||
      name == "aten::is_nonzero" || name == "aten::equal" ||
      name == "aten::allclose";
}

}  // namespace

ValueReadObserver::ValueReadObserver()
    : handle_(
          at::addThreadLocalCallback(at::RecordFunctionCallback(begin, end)
                                         .scopes({at::RecordScope::FUNCTION}))),
      outer_(std::exchange(current, this)) {}

ValueReadObserver::~ValueReadObserver() {
  at::removeCallback(handle_);
  current = outer_;
}

std::unique_ptr<at::ObserverContext> ValueReadObserver::begin(
    const at::RecordFunction& function) {
  if (current == nullptr) {
    return nullptr;  // an operator has started another thread
  }
  // Reads inside another operator are harmless.
  if (current->depth_++ == 0 && torch::jit::tracer::isTracing()) {
    const std::string name = function.name();
    if (reads_value(name)) {
      current->after_ =
          current->after_.empty() ? current->last_ : current->after_;
    } else {
      current->last_ = name;
    }
  }
  return nullptr;
}

void ValueReadObserver::end(
    const at::RecordFunction& /*function*/,
    at::ObserverContext* /*context*/) {
  if (current != nullptr) {
    --current->depth_;
  }
}

void check_no_reads(
    const ValueReadObserver& observer,
    const std::string& where) {
  TESSERA_CHECK_VALUE(
      observer.after().empty(),
      "{} forward() must not read values of tensors, but it does so after {}, for example by item() or in a condition. The file would keep the value of the example. Compute the same with operators, such as at::where().",
      where,
      observer.after());
}

}  // namespace tessera::exporting
