// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/slot_creation.h>

#include <tessera/common/shorten.h>

#include "src/common/tensor_text.h"

#include <c10/util/Exception.h>

namespace tessera::optim {

at::Tensor SlotCreation::create(const SlotRequest& request) const {
  const std::string where = "[table '" + shorten(request.table) + "'] slot '" +
      shorten(request.name) + "': ";
  TORCH_CHECK_VALUE(
      function() != nullptr,
      where,
      "slot_creation is the placeholder of the callable '",
      shorten(name()),
      "'. Replace it by SlotCreation(\"",
      shorten(name()),
      "\", function).");
  at::Tensor slot = (*function())(request);
  TORCH_CHECK_VALUE(
      slot.defined() && slot.scalar_type() == at::kFloat && slot.is_cpu() &&
          slot.is_contiguous() &&
          slot.sizes() == c10::IntArrayRef(request.shape),
      where,
      "slot_creation must return a contiguous float32 cpu tensor of shape ",
      c10::IntArrayRef(request.shape),
      ", but got ",
      describe(slot),
      ".");
  return slot;
}

}  // namespace tessera::optim
