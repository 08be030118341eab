// SPDX-License-Identifier: Apache-2.0
#pragma once

// The numbers of one update, with this step's learning rate. Formulas:
// include/tessera/optim/optimizer.h; what they do to a row: row_rules-inl.h.

#include <cstddef>
#include <variant>

namespace tessera::kernels {

struct SgdRule {
  float learning_rate = 0.0F;
};

struct AdagradRule {
  float learning_rate = 0.0F;
  float epsilon_inside = 0.0F;  // of the root
  float epsilon_outside = 0.0F;
};

struct AdagradMomentumRule {
  float learning_rate = 0.0F;
  float momentum = 0.0F;
  float beta_2 = 1.0F;
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
  float beta_1 = 0.0F;
  float beta_2 = 0.0F;
  float epsilon_inside = 0.0F;  // of the root, squared already
  float epsilon_outside = 0.0F;
  bool use_amsgrad = false;
};

struct MomentumRule {
  float learning_rate = 0.0F;
  float momentum = 0.0F;
  bool use_nesterov = false;
  /// The momentum holds steps (Keras) instead of gradients.
  bool is_scaled = false;
};

struct RmspropRule {
  float learning_rate = 0.0F;
  float rho = 0.0F;
  float momentum = 0.0F;
  float epsilon_inside = 0.0F;  // of the root
  float epsilon_outside = 0.0F;
  bool is_centered = false;
};

struct AdadeltaRule {
  float learning_rate = 0.0F;
  float rho = 0.0F;
  float epsilon = 0.0F;
};

struct ProximalAdagradRule {
  float learning_rate = 0.0F;
  float l1 = 0.0F;
  float l2 = 0.0F;
};

struct LionRule {
  float learning_rate = 0.0F;
  float beta_1 = 0.0F;
  float beta_2 = 0.0F;
};

struct RowWiseAdagradRule {
  float learning_rate = 0.0F;
  float epsilon = 0.0F;
};

struct LambRule {
  float learning_rate = 0.0F;
  float beta_1 = 0.0F;
  float beta_2 = 0.0F;
  float epsilon = 0.0F;
  float weight_decay = 0.0F;
  /// 1 / (1 - beta^t).
  float correction_1 = 1.0F;
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
    LambRule>;

/// Tensors that a rule may keep beside the table.
inline constexpr size_t kMaxSlots = 3;

}  // namespace tessera::kernels
