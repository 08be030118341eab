// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/training/train_step.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace tessera::training {

/// Checks that the optimizer has every parameter that would get a gradient from
/// loss.backward(), unless `allow_unoptimized`. Virtual variables need no optimizer. It
/// visits each node of the autograd graph once, and changes nothing.
/// Errors:  c10::ValueError naming the parameters; and for a loss that depends on sharded
///          tables if `strategy` is not sharded.
void check_optimizer(
    const torch::optim::Optimizer& optimizer,
    const at::Tensor& loss,
    bool allow_unoptimized,
    const Strategy& strategy);

/// The parameters of all groups.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Lists parameters in a message, such as "'tower.weight' (Float of shape [1, 8])". The
/// names come from the model of the fit() that runs on this thread.
std::string parameter_list(const std::vector<at::Tensor>& parameters);

/// Checks that the gradients of the parameters that have one are finite.
/// Errors:  c10::ValueError naming the parameters. The message contains `unchanged`, a
///          sentence such as "Nothing was changed.".
void check_gradients(
    const std::vector<at::Tensor>& parameters,
    const char* unchanged);

/// What fit() adds to these checks. While a ParameterWatch lives, messages on this thread
/// use the names of the model's parameters, and steps take their strategy from here. For
/// steps that do not call check_optimizer(), it finds parameters that the model did not
/// have at the beginning, because an optimizer that was made before the training does not
/// have them.
class ParameterWatch {
 public:
  /// `model` may be nullptr.
  ParameterWatch(
      std::shared_ptr<torch::nn::Module> model,
      bool allow_unoptimized,
      Strategy strategy);
  ~ParameterWatch();
  ParameterWatch(const ParameterWatch&) = delete;
  ParameterWatch& operator=(const ParameterWatch&) = delete;

  /// The ParameterWatch of the fit() that runs on this thread, or nullptr.
  static const ParameterWatch* current();

  const torch::nn::Module* model() const {
    return model_.get();
  }
  bool allows_unoptimized() const {
    return allow_unoptimized_;
  }
  const Strategy& strategy() const {
    return strategy_;
  }
  /// Called by check_optimizer().
  void note_check() {
    has_checked_ = true;
  }
  bool has_checked() const {
    return has_checked_;
  }
  /// Looks for new parameters after the steps 1, 2, 4 and so on.
  /// Errors:  c10::ValueError naming a new parameter.
  void end_step();

 private:
  std::shared_ptr<torch::nn::Module> model_;
  bool allow_unoptimized_;
  Strategy strategy_;
  ParameterWatch* previous_;  // of a fit() around this fit()
  std::set<const at::TensorImpl*> known_;
  int64_t step_ = 0;
  int64_t next_check_ = 1;
  bool has_checked_ = false;
};

}  // namespace tessera::training
