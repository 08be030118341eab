// SPDX-License-Identifier: Apache-2.0
#include <tessera/optim/schedule.h>

#include <algorithm>
#include <cmath>
#include <concepts>
#include <numbers>

#include "optim/range_checks.h"
#include "src/common/check.h"
#include "src/common/class_name.h"

namespace tessera::optim {

namespace {

double periods(double step, double decay_steps, bool staircase) {
  const double periods = step / decay_steps;
  return staircase ? std::floor(periods) : periods;
}

// Half a cosine wave, from 1 at 0 to 0 at 1.
double half_cosine(double progress) {
  return 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
}

double value(const ExponentialDecay& decay, double step) {
  return decay.initial_learning_rate *
      std::pow(
             decay.decay_rate,
             periods(step, decay.decay_steps, decay.staircase));
}

double value(const PiecewiseConstantDecay& decay, double step) {
  const auto boundary = std::ranges::lower_bound(decay.boundaries, step);
  return decay.values[boundary - decay.boundaries.begin()];
}

double value(const PolynomialDecay& decay, double step) {
  double length = decay.decay_steps;
  if (decay.cycle) {
    length *= std::max(1.0, std::ceil(step / length));
  } else {
    step = std::min(step, length);
  }
  return (decay.initial_learning_rate - decay.end_learning_rate) *
      std::pow(1.0 - step / length, decay.power) +
      decay.end_learning_rate;
}

double value(const InverseTimeDecay& decay, double step) {
  return decay.initial_learning_rate /
      (1.0 +
       decay.decay_rate * periods(step, decay.decay_steps, decay.staircase));
}

double value(const CosineDecay& decay, double step) {
  double from = decay.initial_learning_rate;
  if (decay.warmup_target) {
    if (step < decay.warmup_steps) {
      return from + (*decay.warmup_target - from) * step / decay.warmup_steps;
    }
    from = *decay.warmup_target;
    step -= decay.warmup_steps;
  }
  const double progress = std::min(step, decay.decay_steps) / decay.decay_steps;
  return from * ((1.0 - decay.alpha) * half_cosine(progress) + decay.alpha);
}

// A period of CosineDecayRestarts, and how much of it has passed, from 0 to 1.
template <class Float>
struct RestartPeriod {
  Float number;
  Float progress;
};

// Computes the period in float32, as Keras does. The rounding of the logarithms decides to
// which period the step of a restart belongs. With t_mul near 1, the rounding of 1 - t_mul
// matters, too.
RestartPeriod<float> period_in_float(
    const CosineDecayRestarts& decay,
    double step) {
  const auto t_mul = static_cast<float>(decay.t_mul);
  const float periods =
      static_cast<float>(step) / static_cast<float>(decay.first_decay_steps);
  if (t_mul == 1.0F) {
    const float number = std::floor(periods);
    return {number, periods - number};
  }
  const float number =
      std::floor(std::log(1.0F - periods * (1.0F - t_mul)) / std::log(t_mul));
  const float length = std::pow(t_mul, number);
  return {number, (periods - (1.0F - length) / (1.0F - t_mul)) / length};
}

RestartPeriod<double> period_in_double(
    const CosineDecayRestarts& decay,
    double step) {
  const double t_mul = decay.t_mul;
  if (t_mul == 1.0) {
    const double in_period = std::fmod(step, decay.first_decay_steps);  // exact
    return {
        std::round((step - in_period) / decay.first_decay_steps),
        in_period / decay.first_decay_steps};
  }
  const double periods = step / decay.first_decay_steps;
  const auto start_of = [&](double number) {
    return (std::pow(t_mul, number) - 1.0) / (t_mul - 1.0);
  };
  double number =
      std::floor(std::log1p(periods * (t_mul - 1.0)) / std::log(t_mul));
  // At a restart, the quotient of the logarithms may be a little less than a whole number.
  constexpr double kRounding = 1e-14;
  if (periods >= start_of(number + 1.0) * (1.0 - kRounding)) {
    number += 1.0;
  } else if (periods < start_of(number) * (1.0 - kRounding)) {
    number -= 1.0;
  }
  const double progress =
      (periods - start_of(number)) / std::pow(t_mul, number);
  return {number, std::isnan(progress) ? progress : std::max(0.0, progress)};
}

// Raises an error for a step after all periods. Keras gives NaN there.
template <class Float>
double value_in(
    const CosineDecayRestarts& decay,
    const RestartPeriod<Float>& period,
    double step) {
  TESSERA_CHECK_VALUE(
      decay.t_mul >= 1.0 || std::isfinite(period.progress),
      "[CosineDecayRestarts] step {} must be before the end of the last period, but with t_mul = {} all periods end at step {}. Increase first_decay_steps, or use t_mul >= 1.",
      static_cast<int64_t>(step),
      decay.t_mul,
      std::llround(decay.first_decay_steps / (1.0 - decay.t_mul)));
  const auto alpha = static_cast<Float>(decay.alpha);
  const Float amplitude =
      std::pow(static_cast<Float>(decay.m_mul), period.number);
  const Float wave = Float{0.5} * amplitude *
      (Float{1} + std::cos(std::numbers::pi_v<Float> * period.progress));
  return static_cast<Float>(decay.initial_learning_rate) *
      ((Float{1} - alpha) * wave + alpha);
}

double value(const CosineDecayRestarts& decay, double step) {
  // float32 has all whole numbers up to this one.
  constexpr double kMaxSteps = 1 << 24;
  // Up to here, float32 rounds steps by at most 1 / 32768 of the first period.
  constexpr double kMaxPeriods = 1 << 10;
  return step <= kMaxSteps && step <= kMaxPeriods * decay.first_decay_steps
      ? value_in(decay, period_in_float(decay, step), step)
      : value_in(decay, period_in_double(decay, step), step);
}

double value(const Warmup& warmup, double step) {
  const auto then = [&](double at) {
    return std::visit(
        [&](const auto& decay) { return value(decay, at); }, warmup.then);
  };
  if (step >= warmup.steps) {
    return then(step - warmup.steps);
  }
  return warmup.start + (then(0.0) - warmup.start) * step / warmup.steps;
}

template <class Decay>
requires(
    std::same_as<Decay, ExponentialDecay> ||
    std::same_as<
        Decay,
        InverseTimeDecay>) void check(const Decay& decay, const RangeChecks& checks) {
  checks.not_negative("initial_learning_rate", decay.initial_learning_rate);
  checks.not_negative("decay_rate", decay.decay_rate);
  checks.positive("decay_steps", decay.decay_steps);
}

void check(const PiecewiseConstantDecay& decay, const RangeChecks& checks) {
  TESSERA_CHECK_VALUE(
      decay.values.size() == decay.boundaries.size() + 1,
      "{} values must have one entry more than boundaries, but got {} values and {} boundaries. Add or remove entries.",
      checks.where(),
      decay.values.size(),
      decay.boundaries.size());
  for (const double value : decay.values) {
    checks.not_negative("values", value);
  }
  for (size_t i = 0; i < decay.boundaries.size(); ++i) {
    checks.finite("boundaries", decay.boundaries[i]);
    checks.check(
        i == 0 || decay.boundaries[i] > decay.boundaries[i - 1],
        "boundaries",
        "in strictly ascending order",
        decay.boundaries[i]);
  }
}

void check(const PolynomialDecay& decay, const RangeChecks& checks) {
  checks.not_negative("initial_learning_rate", decay.initial_learning_rate);
  checks.not_negative("end_learning_rate", decay.end_learning_rate);
  checks.not_negative("power", decay.power);
  checks.positive("decay_steps", decay.decay_steps);
}

void check(const CosineDecay& decay, const RangeChecks& checks) {
  checks.not_negative("initial_learning_rate", decay.initial_learning_rate);
  checks.not_negative("warmup_target", decay.warmup_target.value_or(0.0));
  checks.not_negative("warmup_steps", decay.warmup_steps);
  checks.finite("alpha", decay.alpha);
  checks.positive("decay_steps", decay.decay_steps);
}

void check(const CosineDecayRestarts& decay, const RangeChecks& checks) {
  checks.not_negative("initial_learning_rate", decay.initial_learning_rate);
  checks.finite("m_mul", decay.m_mul);
  checks.finite("alpha", decay.alpha);
  checks.positive("first_decay_steps", decay.first_decay_steps);
  checks.positive("t_mul", decay.t_mul);
}

void check(const Warmup& warmup, const RangeChecks& checks) {
  checks.not_negative("start", warmup.start);
  checks.positive("steps", warmup.steps);
  const RangeChecks own(
      checks.where() + " then " + class_name_of(warmup.then) + ":");
  std::visit([&](const auto& decay) { check(decay, own); }, warmup.then);
}

}  // namespace

std::string name_of(const Schedule& schedule) {
  return class_name_of(schedule);
}

double value_at(const Schedule& schedule, int64_t step) {
  return std::visit(
      [&](const auto& decay) {
        return value(decay, static_cast<double>(step));
      },
      schedule);
}

void validate(const Schedule& schedule, const std::string& where) {
  const RangeChecks checks(where + " " + name_of(schedule) + ":");
  std::visit([&](const auto& decay) { check(decay, checks); }, schedule);
}

}  // namespace tessera::optim
