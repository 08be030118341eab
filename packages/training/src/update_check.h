// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tessera::training {

/// Warns if a step takes training batches from an EmbeddingEngine, but forgets to call
/// apply_gradients(). fit() has one.
///
/// It looks only at batches that the thread of fit() has dequeued, and only until the
/// first update of the engine. The gradients of a batch may be passed on in the step after
/// its own, so the warning comes at the end of the second step without an update.
class UpdateCheck {
 public:
  /// Watches the engines in `model` that have a table to train.
  void begin(const torch::nn::Module& model);
  void end_step() {
    if (!engines_.empty()) {
      check_engines();
    }
  }

 private:
  struct Watched {
    std::shared_ptr<const torch::nn::Module> engine = {};
    std::string name = {};  // in the model
    int64_t updates = 0;  // at the beginning
    bool is_waiting =
        false;  // a batch had no gradients at the end of the last step
  };

  void check_engines();

  std::vector<Watched> engines_;
};

}  // namespace tessera::training
