// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/export/src/pt2/polynomial.h"

#include <tessera/export/pt2_program.h>

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <string>
#include <vector>

namespace tessera::exporting {

/// Checks the arguments of a program. Each symbol in the sizes has one value in a call.
class InputCheck {
 public:
  using Sizes = std::vector<pt2::Polynomial>;

  /// `sizes` has the sizes of each input.
  InputCheck(
      std::vector<Pt2Value> inputs,
      std::vector<Sizes> sizes,
      std::string where);

  /// Errors:  those of Pt2Program::check(), beginning with `where`.
  void operator()(const std::vector<at::Tensor>& tensors) const;

  size_t num_symbols() const {
    return num_symbols_;
  }

 private:
  void check_shape(
      size_t input,
      const at::Tensor& tensor,
      bool fits,
      const char* reason) const;

  std::vector<Pt2Value> inputs_;
  std::vector<Sizes> sizes_;
  std::string where_;
  size_t num_symbols_ = 0;
};

}  // namespace tessera::exporting
