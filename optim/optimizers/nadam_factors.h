// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/optimizers/nadam.h>

#include "optim/moving_average.h"

#include <cmath>
#include <cstdint>

namespace tessera::optim {

namespace detail {

/// The logarithm of 0.96^schedule_decay.
inline double log_of_base(const Nadam& spec) {
  return spec.schedule_decay * std::log(0.96);
}

inline double mu(const Nadam& spec, double update) {
  return spec.beta_1 * (1.0 - 0.5 * std::exp(log_of_base(spec) * update));
}

/// Computes mu(1) * ... * mu(updates). With q = 0.96^schedule_decay, this is
/// beta_1^updates times the product of 1 - q^s / 2 over s = 1, ..., updates. The
/// logarithm of that product is
///
///   -sum over k of (1 / 2)^k / k * (q^k + q^2k + ... + q^(updates k)).
///
/// Each term is a geometric series. So the product needs only the update counter, and
/// every update takes the same time.
inline double product_of_mu(const Nadam& spec, double updates) {
  constexpr int kTerms = 64;  // further terms are below the precision of double
  const double log_base = log_of_base(spec);
  double log_of_product = 0.0;
  double half_to_k = 1.0;
  for (int k = 1; k <= kTerms; ++k) {
    half_to_k *= 0.5;
    const double log_power = k * log_base;
    const double sum = log_power == 0.0 ? updates
                                        : std::exp(log_power) *
            std::expm1(log_power * updates) / std::expm1(log_power);
    log_of_product -= half_to_k / k * sum;
  }
  return std::pow(spec.beta_1, updates) * std::exp(log_of_product);
}

}  // namespace detail

/// The factors of Nadam's update number t = 1, 2, .... All rows have the same ones. Keras
/// keeps the product of mu as a float32 variable. Here, it is computed from t, so
/// checkpoints do not store it.
struct NadamFactors {
  double momentum = 0.0;  // mu(t + 1) / (1 - mu(1) * ... * mu(t + 1))
  double gradient = 1.0;  // (1 - mu(t)) / (1 - mu(1) * ... * mu(t))
  double velocity = 1.0;  // 1 / (1 - beta_2^t)
};

/// Takes the same time for every t.
inline NadamFactors nadam_factors(const Nadam& spec, int64_t update) {
  const auto now = static_cast<double>(update);
  const double product = detail::product_of_mu(spec, now);
  const double next = detail::mu(spec, now + 1.0);
  return {
      .momentum = next / (1.0 - product * next),
      .gradient = (1.0 - detail::mu(spec, now)) / (1.0 - product),
      .velocity = 1.0 / bias_correction(spec.beta_2, update)};
}

}  // namespace tessera::optim
