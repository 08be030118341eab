// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/make_optimizer.h>

#include "optim/spec_optimizer.h"
#include "src/common/check.h"

#include <set>
#include <utility>

namespace tessera::optim {

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    std::vector<SpecGroup> groups) {
  TESSERA_CHECK_VALUE(
      !groups.empty(),
      "[make_optimizer] expected one group or more, but got none. Pass a group for each spec.");
  std::set<const void*> seen;
  for (const SpecGroup& group : groups) {
    check_without_fused(group.spec, "[make_optimizer]");
    TESSERA_CHECK_VALUE(
        !slot_creation_of(group.spec).is_set(),
        "[make_optimizer] slot_creation must be unset, because it creates only the slots of tables. Unset it for other parameters.");
    TESSERA_CHECK_VALUE(
        !group.parameters.empty(),
        "[make_optimizer] parameters must not be empty. Pass tensors such as the parameters() of a model.");
    for (size_t i = 0; i < group.parameters.size(); ++i) {
      const at::Tensor& parameter = group.parameters[i];
      const bool is_leaf = parameter.defined() && parameter.is_leaf();
      TESSERA_CHECK_VALUE(
          is_leaf && at::isFloatingType(parameter.scalar_type()),
          "[make_optimizer] parameter {} must be a leaf tensor of a floating-point type, but is {}. Pass tensors such as the parameters() of a model.",
          i,
          !parameter.defined() ? "undefined"
              : !is_leaf       ? "the result of an operation"
                               : c10::toString(parameter.scalar_type()));
      TESSERA_CHECK_VALUE(
          seen.insert(parameter.unsafeGetTensorImpl()).second,
          "[make_optimizer] each parameter must be given once, but parameter {} is given twice. Remove one of them, because a step updates a parameter once.",
          i);
    }
  }
  return std::make_unique<SpecOptimizer>(std::move(groups));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    const OptimizerSpec& spec,
    std::vector<at::Tensor> parameters) {
  std::vector<SpecGroup> groups(1);
  groups[0] = {.spec = spec, .parameters = std::move(parameters)};
  return make_optimizer(std::move(groups));
}

}  // namespace tessera::optim
