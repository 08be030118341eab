// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <utility>
#include <vector>

namespace tessera {

/// Remembers which modules of a model are in train() and which in eval(). The destructor
/// restores these modes.
class ModeGuard {
 public:
  explicit ModeGuard(torch::nn::Module& model) {
    for (const auto& part : model.modules()) {
      modes_.emplace_back(part, part->is_training());
    }
  }
  ~ModeGuard() {
    restore();
  }
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

  void eval() const {
    modes_[0].first->eval();  // the model
  }
  /// If the model was in train(), its parts in eval() count as frozen and stay in eval().
  void train() const {
    const auto& [model, was_training] = modes_[0];
    if (was_training) {
      restore();
    } else {
      model->train();
    }
  }

 private:
  void restore() const {
    // Parents come first, because train() also sets the mode of the children.
    for (const auto& [part, mode] : modes_) {
      part->train(mode);
    }
  }

  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace tessera
