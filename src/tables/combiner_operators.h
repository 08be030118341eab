// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "src/tables/combiner_rule.h"

#include <ATen/core/Tensor.h>

#include <string>

namespace tessera {

/// The functions of combiner_rule.h in stock LibTorch operators, element by element.
at::Tensor combiner_term(Combiner combiner, const at::Tensor& weights);
at::Tensor combiner_denominator(Combiner combiner, const at::Tensor& total);

/// The methods is_divided, combiner_term and combiner_denominator in TorchScript, for
/// modules that know the combiner by its name.
std::string combiner_script();

}  // namespace tessera
