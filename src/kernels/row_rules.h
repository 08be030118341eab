// SPDX-License-Identifier: Apache-2.0
#pragma once

// The numbers that the rules need for one update. The formulas are documented in
// include/tessera/optim/optimizers/, and row_rules-inl.h applies them to a row.

#include <cstddef>
#include <variant>

namespace tessera::kernels {

/// average = decay * average + one_minus_decay * value. Both factors are computed from a
/// double, because 1 - (float nearest to 0.999) has a relative error of 1e-5.
struct MovingAverage {
  float decay = 0.0F;
  float one_minus_decay = 1.0F;

  MovingAverage() = default;
  MovingAverage(double rate)  // NOLINT(google-explicit-constructor)
      : decay(static_cast<float>(rate)),
        one_minus_decay(static_cast<float>(1.0 - rate)) {}
};

struct SgdRule {
  float learning_rate = 0.0F;
};

struct AdagradRule {
  float learning_rate = 0.0F;
  float epsilon_inside = 0.0F;  // inside the root
  float epsilon_outside = 0.0F;
};

struct AdagradMomentumRule {
  float learning_rate = 0.0F;
  float momentum = 0.0F;
  /// The moving average of the accumulator. If its decay is 1, the accumulator is a
  /// sum.
  MovingAverage beta_2 = 1.0;
  float epsilon = 0.0F;
  float exponent = 2.0F;
  bool use_nesterov = false;
};

struct FtrlRule {
  float learning_rate = 0.0F;
  float learning_rate_power = -0.5F;
  float l1 = 0.0F;
  float l2 = 0.0F;
  float l2_shrinkage = 0.0F;
  float beta = 0.0F;
  bool multiply_linear_by_learning_rate = false;
  bool keep_initial_weight = false;
};

struct AdamRule {
  float learning_rate = 0.0F;
  MovingAverage beta_1 = {};
  MovingAverage beta_2 = {};
  float epsilon_inside = 0.0F;  // inside the root, already squared
  float epsilon_outside = 0.0F;
  bool use_amsgrad = false;
};

struct MomentumRule {
  float learning_rate = 0.0F;
  float momentum = 0.0F;
  bool use_nesterov = false;
  /// Whether the slot holds steps, as in Keras, instead of gradients.
  bool is_scaled = false;
};

struct RmspropRule {
  float learning_rate = 0.0F;
  MovingAverage rho = {};
  float momentum = 0.0F;
  float epsilon_inside = 0.0F;  // inside the root
  float epsilon_outside = 0.0F;
  bool is_centered = false;
};

struct AdadeltaRule {
  float learning_rate = 0.0F;
  MovingAverage rho = {};
  float epsilon = 0.0F;
};

struct ProximalAdagradRule {
  float learning_rate = 0.0F;
  float l1 = 0.0F;
  float l2 = 0.0F;
};

struct LionRule {
  float learning_rate = 0.0F;
  MovingAverage beta_1 = {};
  MovingAverage beta_2 = {};
};

struct RowWiseAdagradRule {
  float learning_rate = 0.0F;
  float epsilon = 0.0F;
};

struct LambRule {
  float learning_rate = 0.0F;
  MovingAverage beta_1 = {};
  MovingAverage beta_2 = {};
  float epsilon = 0.0F;
  float weight_decay = 0.0F;
  /// 1 / (1 - beta^t).
  float correction_1 = 1.0F;
  float correction_2 = 1.0F;
};

struct AdamaxRule {
  float learning_rate = 0.0F;
  MovingAverage beta_1 = {};
  float beta_2 = 0.0F;
  float epsilon = 0.0F;
  /// 1 / (1 - beta_1^t).
  float correction_1 = 1.0F;
};

struct NadamRule {
  float learning_rate = 0.0F;
  MovingAverage beta_1 = {};
  MovingAverage beta_2 = {};
  float epsilon = 0.0F;
  /// The direction is momentum_factor * momentum + gradient_factor * gradient.
  float momentum_factor = 0.0F;
  float gradient_factor = 1.0F;
  /// 1 / (1 - beta_2^t).
  float correction_2 = 1.0F;
};

using RowRule = std::variant<
    SgdRule,
    AdagradRule,
    AdagradMomentumRule,
    FtrlRule,
    AdamRule,
    MomentumRule,
    RmspropRule,
    AdadeltaRule,
    ProximalAdagradRule,
    LionRule,
    RowWiseAdagradRule,
    LambRule,
    AdamaxRule,
    NadamRule>;

/// The largest number of slots that a rule has.
inline constexpr size_t kMaxSlots = 3;

}  // namespace tessera::kernels
