// SPDX-License-Identifier: Apache-2.0
#include "src/tables/combiner_operators.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>
#include <fmt/format.h>

#include <string_view>

namespace tessera {

namespace {

const char* is_divided_script(Combiner combiner) {
  return is_divided(combiner) ? "True" : "False";
}

const char* term_script(Combiner combiner) {
  switch (combiner) {
    case Combiner::kSum:
    case Combiner::kMean:
      return "weight";
    case Combiner::kSqrtn:
      break;
  }
  return "weight * weight";
}

const char* denominator_script(Combiner combiner) {
  switch (combiner) {
    case Combiner::kSum:
      return "torch.ones_like(total)";
    case Combiner::kMean:
      return "total";
    case Combiner::kSqrtn:
      break;
  }
  return "total.sqrt()";
}

// Returns a TorchScript method that takes the name of a combiner and returns the
// `expression` of that combiner.
std::string method(
    std::string_view signature,
    const char* (*expression)(Combiner)) {
  std::string text = fmt::format("def {}:\n", signature);
  for_each_combiner([&](Combiner combiner) {
    text += fmt::format(
        "    if combiner == \"{}\":\n        return {}\n",
        to_string(combiner),
        expression(combiner));
  });
  return text +
      fmt::format(
             "    raise ValueError(\"[Combiner] combiner must be one of {}, but "
             "got '{{}}'. Use one of these names.\".format(combiner))\n\n",
             known_combiners());
}

}  // namespace

at::Tensor combiner_term(Combiner combiner, const at::Tensor& weights) {
  switch (combiner) {
    case Combiner::kSum:
    case Combiner::kMean:
      return weights;
    case Combiner::kSqrtn:
      break;
  }
  return weights * weights;
}

at::Tensor combiner_denominator(Combiner combiner, const at::Tensor& total) {
  switch (combiner) {
    case Combiner::kSum:
      return at::ones_like(total);
    case Combiner::kMean:
      return total;
    case Combiner::kSqrtn:
      break;
  }
  return total.sqrt();
}

std::string combiner_script() {
  return method("is_divided(self, combiner: str) -> bool", is_divided_script) +
      method("combiner_term(self, combiner: str, weight: Tensor) -> Tensor",
             term_script) +
      method("combiner_denominator(self, combiner: str, total: Tensor) -> Tensor",
             denominator_script);
}

}  // namespace tessera
