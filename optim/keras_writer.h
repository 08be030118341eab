// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/json_value.h>
#include <tessera/optim/learning_rate.h>

#include "optim/common_options.h"

#include <string>

namespace tessera::optim {

/// Writes the config of one Keras class. It refuses what the class does not support.
class KerasWriter {
 public:
  /// `name` is the name of the spec, for messages.
  explicit KerasWriter(const std::string& name);

  /// Errors:  c10::ValueError unless `is_expressible`. It says that `what` has no
  ///          counterpart in Keras 3.
  void require(bool is_expressible, const char* what) const;

  /// Returns {"module": ..., "class_name": ..., "config": ...}. The config has Keras's
  /// defaults and the options that all specs share.
  Json begin(const char* class_name, const CommonOptions& options) const;

 private:
  Json learning_rate(const LearningRate& rate) const;

  std::string where_;
};

}  // namespace tessera::optim
