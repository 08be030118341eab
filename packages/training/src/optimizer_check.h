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
/// loss.backward(), unless `unoptimized` allows others. Virtual variables need no
/// optimizer. It visits each node of the autograd graph once, and changes nothing.
/// Errors:  c10::ValueError beginning with `where`, naming the parameters; and for a loss
///          that depends on sharded tables if `strategy` is not sharded.
void check_optimizer(
    const torch::optim::Optimizer& optimizer,
    const at::Tensor& loss,
    Unoptimized unoptimized,
    const Strategy& strategy,
    const std::string& where);

/// The parameters of all groups.
std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer);

/// Lists parameters in a message, such as "'tower.weight' (Float of shape [1, 8])". The
/// names are those of the model of the fit() that runs on this thread.
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
      Unoptimized unoptimized,
      Strategy strategy);
  ~ParameterWatch();
  ParameterWatch(const ParameterWatch&) = delete;
  ParameterWatch& operator=(const ParameterWatch&) = delete;

  /// That of the fit() that runs on this thread, or nullptr.
  static const ParameterWatch* current();

  const torch::nn::Module* model() const {
    return model_.get();
  }
  Unoptimized unoptimized() const {
    return unoptimized_;
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
  Unoptimized unoptimized_;
  Strategy strategy_;
  ParameterWatch* previous_;  // of a fit() around this one
  std::set<const at::TensorImpl*> known_;
  int64_t step_ = 0;
  int64_t next_check_ = 1;
  bool has_checked_ = false;
};

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
