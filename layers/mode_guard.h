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
  explicit ModeGuard(torch::nn::Module& model);
  ~ModeGuard();
  ModeGuard(const ModeGuard&) = delete;
  ModeGuard& operator=(const ModeGuard&) = delete;

  void eval() const;
  /// If the model was in train(), its parts in eval() count as frozen and stay in eval().
  void train() const;

 private:
  void restore() const;

  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace tessera
