// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/common/fields.h>

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace tessera::optim {

// A schedule is a function of the layer's step counter s = 0, 1, .... In the formulas, N
// is decay_steps. Source of all schedules but Warmup: keras.optimizers.schedules.
//
// Steps are counted in 64 bits, and the formulas are computed in float64. Keras converts
// the step to float32, which has no odd numbers above 2^24. So above this step, Keras may
// use the learning rate of a step nearby. Only CosineDecayRestarts uses float32 here, too.

// snippet: tests/docs/reference_optim_test.cpp ExponentialDecay
/// initial_learning_rate * decay_rate^(s / N). With staircase, s / N is rounded down.
///
///   // 0.1 for 1000 steps, then 0.096, then 0.09216, and so on.
///   const SGD sgd{
///       .learning_rate = ExponentialDecay{
///           .initial_learning_rate = 0.1,
///           .decay_steps = 1000,
///           .decay_rate = 0.96,
///           .staircase = true}};
///
/// Range:   decay_steps > 0.
struct ExponentialDecay {
  double initial_learning_rate = 0.001;
  double decay_steps = 1.0;
  double decay_rate = 0.96;
  bool staircase = false;

  bool operator==(const ExponentialDecay&) const = default;

  TESSERA_FIELDS(initial_learning_rate, decay_steps, decay_rate, staircase)
};

// snippet: tests/docs/reference_optim_test.cpp PiecewiseConstantDecay
/// values[i], where i is the first index with s <= boundaries[i], or the last value if
/// there is no such index.
///
///   // 0.1 up to step 1000, then 0.03 up to step 5000, then 0.01.
///   const SGD sgd{
///       .learning_rate = PiecewiseConstantDecay{
///           .boundaries = {1000, 5000}, .values = {0.1, 0.03, 0.01}}};
///
/// Range:   boundaries ascend; there is one value more than boundaries.
struct PiecewiseConstantDecay {
  std::vector<double> boundaries = {};
  std::vector<double> values = {0.001};

  bool operator==(const PiecewiseConstantDecay&) const = default;

  TESSERA_FIELDS(boundaries, values)
};

// snippet: tests/docs/reference_optim_test.cpp PolynomialDecay
/// (initial - end) * (1 - min(s, N) / N)^power + end.
///
/// With cycle, N * max(1, ceil(s / N)) replaces N, and s is not limited.
///
///   // Falls linearly from 0.1 to 0 in 10,000 steps.
///   const SGD sgd{
///       .learning_rate = PolynomialDecay{
///           .initial_learning_rate = 0.1,
///           .decay_steps = 10'000,
///           .end_learning_rate = 0.0}};
///
/// Range:   decay_steps > 0.
struct PolynomialDecay {
  double initial_learning_rate = 0.001;
  double decay_steps = 1.0;
  double end_learning_rate = 0.0001;
  double power = 1.0;
  bool cycle = false;

  bool operator==(const PolynomialDecay&) const = default;

  TESSERA_FIELDS(
      initial_learning_rate,
      decay_steps,
      end_learning_rate,
      power,
      cycle)
};

// snippet: tests/docs/reference_optim_test.cpp InverseTimeDecay
/// initial_learning_rate / (1 + decay_rate * s / N). With staircase, s / N is rounded
/// down.
///
///   // A half of 0.1 after 1000 steps, a third after 2000 steps, and so on.
///   const SGD sgd{
///       .learning_rate = InverseTimeDecay{
///           .initial_learning_rate = 0.1,
///           .decay_steps = 1000,
///           .decay_rate = 1.0}};
///
/// Range:   decay_steps > 0.
struct InverseTimeDecay {
  double initial_learning_rate = 0.001;
  double decay_steps = 1.0;
  double decay_rate = 0.5;
  bool staircase = false;

  bool operator==(const InverseTimeDecay&) const = default;

  TESSERA_FIELDS(initial_learning_rate, decay_steps, decay_rate, staircase)
};

// snippet: tests/docs/reference_optim_test.cpp CosineDecay
/// from * ((1 - alpha) * (1 + cos(pi * min(s, N) / N)) / 2 + alpha).
///
/// `from` is initial_learning_rate. With a warmup_target, the learning rate first rises
/// linearly from initial_learning_rate to warmup_target, in warmup_steps steps. Then the
/// decay starts: `from` is warmup_target, and s - warmup_steps replaces s.
///
///   // Rises from 0 to 0.1 in 1000 steps, then falls to 0 in 9000 steps.
///   const SGD sgd{
///       .learning_rate = CosineDecay{
///           .initial_learning_rate = 0.0,
///           .decay_steps = 9000,
///           .warmup_target = 0.1,
///           .warmup_steps = 1000}};
///
/// Range:   decay_steps > 0, warmup_steps >= 0.
struct CosineDecay {
  double initial_learning_rate = 0.001;
  double decay_steps = 1.0;
  double alpha = 0.0;
  std::optional<double> warmup_target = {};
  double warmup_steps = 0.0;

  bool operator==(const CosineDecay&) const = default;

  TESSERA_FIELDS(
      initial_learning_rate,
      decay_steps,
      alpha,
      warmup_target,
      warmup_steps)
};

// snippet: tests/docs/reference_optim_test.cpp CosineDecayRestarts
/// Cosine decay with restarts. Each period is t_mul times as long and m_mul times as
/// high as the previous one. With f = s / first_decay_steps:
///
///   t_mul = 1:  i = floor(f),  f = f - i
///   else:       i = floor(log(1 - f (1 - t_mul)) / log(t_mul)),
///               f = (f - (1 - t_mul^i) / (1 - t_mul)) / t_mul^i
///   initial * ((1 - alpha) * m_mul^i * (1 + cos(pi f)) / 2 + alpha)
///
/// Rounding decides at which step a restart is. So the formula is computed in float32, as
/// in Keras, up to the smaller of step 2^24 and step 1024 * first_decay_steps. Later steps
/// are computed in float64, because float32 can't tell them apart: with first_decay_steps =
/// 1000 and t_mul = 1, Keras's step 2^30 + 1 is off by up to 64 steps.
///
///   // Falls from 0.1 to 0 in 1000 steps, then from 0.05 to 0 in 2000 steps.
///   const SGD sgd{
///       .learning_rate = CosineDecayRestarts{
///           .initial_learning_rate = 0.1,
///           .first_decay_steps = 1000,
///           .t_mul = 2.0,
///           .m_mul = 0.5}};
///
/// Range:   first_decay_steps > 0, t_mul > 0.
/// Errors:  value_at() raises c10::ValueError after the last period. With t_mul < 1, all
///          periods end at step first_decay_steps / (1 - t_mul). Keras gives NaN there.
struct CosineDecayRestarts {
  double initial_learning_rate = 0.001;
  double first_decay_steps = 1.0;
  double t_mul = 2.0;
  double m_mul = 1.0;
  double alpha = 0.0;

  bool operator==(const CosineDecayRestarts&) const = default;

  TESSERA_FIELDS(initial_learning_rate, first_decay_steps, t_mul, m_mul, alpha)
};

/// All schedules but Warmup, which wraps one of these.
using PlainSchedule = std::variant<
    ExponentialDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
    InverseTimeDecay,
    CosineDecay,
    CosineDecayRestarts>;

// snippet: tests/docs/reference_optim_test.cpp Warmup
/// A linear rise from `start` in `steps` steps, to the value that `then` has at its step 0.
/// After the rise, the learning rate is that of `then` at step s - steps.
///
///   // Rises from 0 to 0.1 in 1000 steps, then falls to 0 in 9000 steps.
///   const SGD sgd{
///       .learning_rate = Warmup{
///           .steps = 1000,
///           .then = PolynomialDecay{
///               .initial_learning_rate = 0.1,
///               .decay_steps = 9000,
///               .end_learning_rate = 0.0}}};
///
/// Range:   steps > 0, start >= 0.
struct Warmup {
  double start = 0.0;
  double steps = 1.0;
  PlainSchedule then = ExponentialDecay{};

  bool operator==(const Warmup&) const = default;

  TESSERA_FIELDS(start, steps, then)
};

using Schedule = std::variant<
    ExponentialDecay,
    PiecewiseConstantDecay,
    PolynomialDecay,
    InverseTimeDecay,
    CosineDecay,
    CosineDecayRestarts,
    Warmup>;

/// The schedule's class name, the same as in Keras.
std::string name_of(const Schedule& schedule);

/// The learning rate at `step` >= 0.
double value_at(const Schedule& schedule, int64_t step);

/// Refuses options out of range; `where` begins the message.
/// Errors:  c10::ValueError.
void validate(const Schedule& schedule, const std::string& where);

}  // namespace tessera::optim
