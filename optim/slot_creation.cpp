// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/slot_creation.h>

#include <tessera/common/shorten.h>

#include "src/common/check.h"
#include "src/common/tensor_text.h"

namespace tessera::optim {

at::Tensor SlotCreation::create(const SlotRequest& request) const {
  const std::string where = "[table '" + shorten(request.table) + "'] slot '" +
      shorten(request.name) + "': ";
  TESSERA_CHECK_VALUE(
      function() != nullptr,
      "{}slot_creation is the placeholder of the callable '{}'. Replace it by SlotCreation(\"{}\", function).",
      where,
      shorten(name()),
      shorten(name()));
  at::Tensor slot = (*function())(request);
  TESSERA_CHECK_VALUE(
      slot.defined() && slot.scalar_type() == at::kFloat && slot.is_cpu() &&
          slot.is_contiguous() &&
          slot.sizes() == c10::IntArrayRef(request.shape),
      "{}slot_creation must return a contiguous float32 cpu tensor of shape {}, but got {}.",
      where,
      c10::IntArrayRef(request.shape),
      describe(slot));
  return slot;
}

}  // namespace tessera::optim
