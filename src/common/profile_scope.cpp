// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/profile_scope.h>

#include <ATen/record_function.h>

#include <utility>

namespace tessera {

// Making a RecordFunction initializes several hundred bytes, so one is made only if there
// is a profiler.
ProfileScope::ProfileScope(std::string_view name) {
  if (auto callbacks =
          at::getStepCallbacksUnlessEmpty(at::RecordScope::USER_SCOPE)) {
    function_ = std::make_unique<at::RecordFunction>(std::move(*callbacks));
    function_->before(name);
  }
}

ProfileScope::~ProfileScope() = default;

}  // namespace tessera
