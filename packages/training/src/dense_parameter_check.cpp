// SPDX-License-Identifier: Apache-2.0
#include "packages/training/src/dense_parameter_check.h"

#include "layers/all_finite.h"
#include "packages/training/src/optimizer_check.h"
#include "src/common/check.h"

namespace tessera::training {

void check_gradients(
    const std::vector<at::Tensor>& parameters,
    const char* unchanged) {
  std::vector<at::Tensor> refused;
  for (const at::Tensor& parameter : parameters) {
    if (parameter.grad().defined() && !all_finite(parameter.grad())) {
      refused.push_back(parameter);
    }
  }
  TESSERA_CHECK_VALUE(
      refused.empty(),
      "[fit] the gradients of parameters must be finite, but NaN or infinity is in that of {}. {} Check the loss and the data, lower the learning rate, or set FitOptions::non_finite_gradients to NonFiniteGradients::kApply.",
      parameter_list(refused),
      unchanged);
}

}  // namespace tessera::training
