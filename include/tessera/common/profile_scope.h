// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string_view>

namespace at {
struct RecordFunction;
}  // namespace at

namespace tessera {

// snippet: tests/docs/reference_training_test.cpp ProfileScope
/// Gives a name to the work between its construction and its destruction. LibTorch's
/// profilers show the work by this name, and training::Profile measures its time.
///
///   const auto scores_of = [&](const Batch& batch) {
///     const ProfileScope scope("scores");
///     return model->forward(batch.features).squeeze(1);
///   };
///
/// Without a profiler, a scope only checks that there is none. Scopes of one thread must
/// be nested, as local variables are. Tessera's own scopes have names that begin with
/// "tessera::", such as "tessera::lookup".
///
/// Source:  RECORD_USER_SCOPE of ATen/record_function.h.
class [[nodiscard]] ProfileScope {
 public:
  explicit ProfileScope(std::string_view name);
  ~ProfileScope();

  ProfileScope(const ProfileScope&) = delete;
  ProfileScope& operator=(const ProfileScope&) = delete;

 private:
  std::unique_ptr<at::RecordFunction> function_;  // nullptr without a profiler
};

}  // namespace tessera
