// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

struct Batch {
  at::Tensor users;
  at::Tensor clicks;
};
