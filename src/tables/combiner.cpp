// SPDX-License-Identifier: Apache-2.0
#include "src/tables/combiner_rule.h"

#include <tessera/common/shorten.h>

#include <vector>

#include "src/common/check.h"
#include "src/common/names.h"

namespace tessera {

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

std::string known_combiners() {
  std::vector<std::string> names;
  for_each_combiner(
      [&](Combiner combiner) { names.push_back(to_string(combiner)); });
  return join_names(names);
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

}  // namespace tessera
