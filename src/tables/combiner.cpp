// SPDX-License-Identifier: Apache-2.0
#include "src/tables/combiner_rule.h"

#include <tessera/common/shorten.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/ones_like.h>

#include <string_view>
#include <vector>

#include "src/common/check.h"
#include "src/common/names.h"

namespace tessera {

namespace {

template <class Visit>
void for_each_combiner(Visit&& visit) {
  for (std::optional<Combiner> combiner = Combiner::kSum; combiner;
       combiner = next_combiner(*combiner)) {
    visit(*combiner);
  }
}

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

// The names of all combiners, separated by commas.
std::string known_combiners() {
  std::vector<std::string> names;
  for_each_combiner(
      [&](Combiner combiner) { names.push_back(to_string(combiner)); });
  return join_names(names);
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

std::optional<Combiner> next_combiner(Combiner combiner) {
  switch (combiner) {
    case Combiner::kSum:
      return Combiner::kMean;
    case Combiner::kMean:
      return Combiner::kSqrtn;
    case Combiner::kSqrtn:
      break;
  }
  return std::nullopt;
}

std::string to_string(Combiner combiner) {
  switch (combiner) {
    case Combiner::kSum:
      return "sum";
    case Combiner::kMean:
      return "mean";
    case Combiner::kSqrtn:
      break;
  }
  return "sqrtn";
}

Combiner combiner_from_string(std::string_view name) {
  std::optional<Combiner> found;
  for_each_combiner([&](Combiner combiner) {
    found = name == to_string(combiner) ? combiner : found;
  });
  TESSERA_CHECK_VALUE(
      found.has_value(),
      "[Combiner] combiner must be one of {}, but got '{}'. Use one of these names.",
      known_combiners(),
      shorten(name));
  return *found;
}

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
