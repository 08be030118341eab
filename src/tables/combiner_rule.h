// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/tables/combiner.h>

#include <cmath>
#include <optional>
#include <string>

namespace tessera {

// This header, combiner.cpp and combiner_operators.h define the combiners. For a bag of
// rows x with weights w, a combiner gives
//
//   sum(w x) / denominator(sum(term(w)))
//
// Each function is a switch over all combiners, so that a new combiner does not compile
// until every switch has it.

/// The combiner that is declared after this one, if there is one.
std::optional<Combiner> next_combiner(Combiner combiner);

template <class Visit>
void for_each_combiner(Visit&& visit) {
  for (std::optional<Combiner> combiner = Combiner::kSum; combiner;
       combiner = next_combiner(*combiner)) {
    visit(*combiner);
  }
}

/// The names of all combiners, separated by commas.
std::string known_combiners();

/// Whether the combiner divides the sum. If not, weights <= 0 are as valid as others.
inline bool is_divided(Combiner combiner) {
  switch (combiner) {
    case Combiner::kSum:
      return false;
    case Combiner::kMean:
    case Combiner::kSqrtn:
      break;
  }
  return true;
}

/// The term that a weight adds to the total.
inline double combiner_term(Combiner combiner, double weight) {
  switch (combiner) {
    case Combiner::kSum:
    case Combiner::kMean:
      return weight;
    case Combiner::kSqrtn:
      break;
  }
  return weight * weight;
}

/// The denominator for the total of the terms.
inline double combiner_denominator(Combiner combiner, double total) {
  switch (combiner) {
    case Combiner::kSum:
      return 1.0;
    case Combiner::kMean:
      return total;
    case Combiner::kSqrtn:
      break;
  }
  return std::sqrt(total);
}

/// The factor of a sum: 1 / denominator, or 0 if the denominator is 0. 1 / denominator may
/// overflow a float. Such a denominator counts as zero.
inline float combiner_scale(Combiner combiner, double total) {
  const auto scale =
      static_cast<float>(1.0 / combiner_denominator(combiner, total));
  return std::isinf(scale) ? 0.0F : scale;
}

/// The derivative of the denominator with respect to one weight, times scale^2. `scale`
/// is 1 / denominator. The derivative of an output y = scale * sum(w x) with respect to
/// the weight of x is
///
///   scale * x - combiner_weight_factor * sum(w x)
inline double combiner_weight_factor(
    Combiner combiner,
    double weight,
    double scale) {
  switch (combiner) {
    case Combiner::kSum:
      return 0.0;
    case Combiner::kMean:
      return scale * scale;
    case Combiner::kSqrtn:
      break;
  }
  return weight * scale * scale * scale;
}

}  // namespace tessera
