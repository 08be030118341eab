// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/optim/learning_rate.h>

#include "optim/common_options.h"

#include <string>

namespace tessera::optim {

/// Fills the config of one Keras class, refusing what that can't say.
class KerasWriter {
 public:
  /// `name` is the spec's.
  explicit KerasWriter(const std::string& name);

  /// Errors:  c10::ValueError unless `is_expressible`: that Keras 3 has no counterpart
  ///          for `what`.
  void require(bool is_expressible, const char* what) const;

  /// {"module": ..., "class_name": ..., "config": ...} with Keras's defaults and
  /// the options that all specs share.
  Json begin(const char* class_name, const CommonOptions& options) const;

 private:
  Json learning_rate(const LearningRate& rate) const;

  std::string where_;
};

}  // namespace tessera::optim
