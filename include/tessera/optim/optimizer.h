// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/custom_optimizer.h>
#include <tessera/optim/learning_rate.h>
#include <tessera/optim/slot_creation.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace tessera::optim {

// Every spec ends with the same options. They apply to each touched row in this
// order: sum the duplicates' gradients, clip the sum, decay the weight, apply
// the rule, clip the weight.
//
//   use_gradient_accumulation  false: the rule runs once per duplicate, in the
//                              order of the batch; gradients can't be clipped
//   clip_gradient_min, _max    limits of the summed gradient, elementwise
//   weight_decay_factor        weight -= factor * weight, before the rule
//   multiply_weight_decay_factor_by_learning_rate
//                              weight -= learning_rate * factor * weight
//   clip_weight_min, _max      limits of the updated weight
//   lazy (Adam: lazy_adam)     true: rows of the batch only; false: every row
//                              each step, with a gradient of zeros where the
//                              batch has none, which sweeps the whole table
//   gradient_accumulation_steps
//                              n > 1: gradients are collected, and every n-th
//                              pass applies their mean. Schedules use the
//                              number of passes, as in Keras
//   slot_creation              creates the slot tensors when the layer is made;
//                              unset: zeros or the spec's own initial value
//
// Shapes, unless said otherwise: gradient, weight and slots [dim], per row.
// validate() raises c10::ValueError for options out of the stated range.

namespace detail {

template <class Self, class Visit>
void visit_common_fields(Self& self, Visit& visit) {
  visit("use_gradient_accumulation", self.use_gradient_accumulation);
  visit("clip_weight_min", self.clip_weight_min);
  visit("clip_weight_max", self.clip_weight_max);
  visit("clip_gradient_min", self.clip_gradient_min);
  visit("clip_gradient_max", self.clip_gradient_max);
  visit("weight_decay_factor", self.weight_decay_factor);
  visit(
      "multiply_weight_decay_factor_by_learning_rate",
      self.multiply_weight_decay_factor_by_learning_rate);
  visit("gradient_accumulation_steps", self.gradient_accumulation_steps);
  if constexpr (requires { self.lazy; }) {
    visit("lazy", self.lazy);
  }
  if constexpr (requires { self.slot_creation; }) {
    visit("slot_creation", self.slot_creation);
  }
}

}  // namespace detail

/// Stochastic gradient descent.
///
///   weight -= learning_rate * gradient
///
/// Source:  tf.tpu.experimental.embedding.SGD.
struct SGD {
  LearningRate learning_rate = 0.01;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;

  bool operator==(const SGD&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    detail::visit_common_fields(self, visit);
  }
};

/// Gradient descent with momentum.
///
///   momenta  = momentum * momenta + gradient
///   weight  -= learning_rate * momenta
///
/// Nesterov: weight -= learning_rate * (gradient + momentum * momenta), with
/// the new momenta. With scale_momentum_by_learning_rate the slot holds steps:
///
///   momenta = momentum * momenta - learning_rate * gradient
///   weight += momenta        (Nesterov: momentum * momenta - rate * gradient)
///
/// Slots:   momenta.
/// Range:   momentum in [0, 1].
/// Source:  the TPU embedding configuration's momentum; tf.keras SGD for the
///          scaled form.
/// Differs: torch::optim::SGD is the unscaled form, with dampening besides. The
///          forms agree while the learning rate does not change.
struct Momentum {
  LearningRate learning_rate = 0.001;
  double momentum = 0.9;
  bool use_nesterov = false;
  bool scale_momentum_by_learning_rate = false;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const Momentum&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("momentum", self.momentum);
    visit("use_nesterov", self.use_nesterov);
    visit(
        "scale_momentum_by_learning_rate",
        self.scale_momentum_by_learning_rate);
    detail::visit_common_fields(self, visit);
  }
};

/// Adagrad. Each weight has its own step, falling with the squares it has seen.
///
///   accumulator += gradient^2
///   weight      -= learning_rate * gradient / sqrt(accumulator)
///
/// With an epsilon the denominator is sqrt(accumulator) + epsilon, or with
/// epsilon_inside_sqrt sqrt(accumulator + epsilon).
///
/// Slots:   accumulators, from initial_accumulator_value.
/// Range:   initial_accumulator_value > 0, epsilon >= 0.
/// Source:  tf.tpu.experimental.embedding.Adagrad; Duchi et al. 2011.
/// Differs: torch::optim::Adagrad adds eps outside the root and starts at 0;
///          Keras 3 adds epsilon inside the root, older Keras outside.
struct Adagrad {
  LearningRate learning_rate = 0.001;
  double initial_accumulator_value = 0.1;
  double epsilon = 0.0;
  bool epsilon_inside_sqrt = false;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const Adagrad&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("initial_accumulator_value", self.initial_accumulator_value);
    visit("epsilon", self.epsilon);
    visit("epsilon_inside_sqrt", self.epsilon_inside_sqrt);
    detail::visit_common_fields(self, visit);
  }
};

/// Adagrad with momentum over the scaled gradient and a free exponent.
///
///   beta2 = 1:  accumulator += gradient^2
///   beta2 < 1:  accumulator  = beta2 * accumulator + (1 - beta2) * gradient^2
///   scaled      = gradient / (accumulator + epsilon)^(1 / exponent)
///   momenta     = momentum * momenta + scaled
///   weight     -= learning_rate * momenta
///
/// Nesterov: weight -= learning_rate * (momentum * momenta + scaled).
///
/// Slots:   accumulators and momenta, from 0.
/// Range:   momentum, beta2 in [0, 1], exponent > 0, epsilon > 0.
/// Source:  tf.tpu.experimental.embedding.AdagradMomentum.
struct AdagradMomentum {
  LearningRate learning_rate = 0.001;
  double momentum = 0.0;
  bool use_nesterov = false;
  double exponent = 2.0;
  double beta2 = 1.0;
  double epsilon = 1e-10;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const AdagradMomentum&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("momentum", self.momentum);
    visit("use_nesterov", self.use_nesterov);
    visit("exponent", self.exponent);
    visit("beta2", self.beta2);
    visit("epsilon", self.epsilon);
    detail::visit_common_fields(self, visit);
  }
};

/// Adagrad with an exact proximal step for l1 and l2.
///
///   accumulator += gradient^2
///   rate         = learning_rate / sqrt(accumulator)
///   moved        = weight - rate * gradient
///   weight       = sign(moved) * max(|moved| - rate * l1, 0) / (1 + rate * l2)
///
/// Slots:   accumulators, from initial_accumulator_value.
/// Range:   initial_accumulator_value > 0, l1, l2 >= 0.
/// Source:  tf.raw_ops.ResourceApplyProximalAdagrad; Duchi and Singer 2009.
struct ProximalAdagrad {
  LearningRate learning_rate = 0.001;
  double initial_accumulator_value = 0.1;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const ProximalAdagrad&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("initial_accumulator_value", self.initial_accumulator_value);
    visit("l1_regularization_strength", self.l1_regularization_strength);
    visit("l2_regularization_strength", self.l2_regularization_strength);
    detail::visit_common_fields(self, visit);
  }
};

/// Adagrad with one accumulator per row: a table's slot is 1 / dim of its size.
///
///   accumulator += mean over the row of gradient^2
///   weight      -= learning_rate * gradient / (sqrt(accumulator) + epsilon)
///
/// Slots:   accumulators [vocab], from initial_accumulator_value.
/// Range:   initial_accumulator_value >= 0, epsilon > 0.
/// Source:  FBGEMM's EXACT_ROWWISE_ADAGRAD.
struct RowWiseAdagrad {
  LearningRate learning_rate = 0.01;
  double initial_accumulator_value = 0.0;
  double epsilon = 1e-8;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const RowWiseAdagrad&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("initial_accumulator_value", self.initial_accumulator_value);
    visit("epsilon", self.epsilon);
    detail::visit_common_fields(self, visit);
  }
};

/// Adam, by default the accelerator's: lazy and without bias correction.
///
///   momentum  = beta_1 * momentum + (1 - beta_1) * gradient
///   velocity  = beta_2 * velocity + (1 - beta_2) * gradient^2
///   weight   -= learning_rate * momentum / sqrt(velocity + epsilon^2)
///
/// With sum_inside_sqrt = false the denominator is sqrt(velocity) + epsilon.
/// With bias_correction the learning rate is multiplied by
/// sqrt(1 - beta_2^t) / (1 - beta_1^t), t = 1, 2, ... counting the table's
/// updates. With amsgrad the denominator takes the largest velocity so far.
///
/// Slots:   momenta, velocities, with amsgrad max_velocities; from 0.
/// Range:   beta_1, beta_2 in [0, 1), epsilon > 0.
/// Source:  tf.tpu.experimental.embedding.Adam; Kingma and Ba 2014.
/// Differs: torch::optim::Adam and Keras correct the bias of both moments, and
///          move every row; torch::optim::Adam adds epsilon after correcting
///          the velocity.
struct Adam {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool lazy_adam = true;
  bool sum_inside_sqrt = true;
  bool bias_correction = false;
  bool amsgrad = false;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  SlotCreation slot_creation = {};

  bool operator==(const Adam&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("beta_1", self.beta_1);
    visit("beta_2", self.beta_2);
    visit("epsilon", self.epsilon);
    visit("lazy_adam", self.lazy_adam);
    visit("sum_inside_sqrt", self.sum_inside_sqrt);
    visit("bias_correction", self.bias_correction);
    visit("amsgrad", self.amsgrad);
    detail::visit_common_fields(self, visit);
  }
};

/// Follow the regularised leader: l1 makes exact zeros.
///
///   p(a)         = a^-learning_rate_power
///   linear      += gradient + 2 * l2_shrinkage * weight
///                  - weight * (p(accumulator + gradient^2) - p(accumulator))
///                    / rate
///   accumulator += gradient^2
///   weight       = (clamp(linear, -l1, l1) - linear)
///                  / ((p(accumulator) + beta) / rate + 2 * l2)
///
/// With multiply_linear_by_learning_rate the linear slot, and l1, l2 and beta's
/// part with it, are multiplied by the learning rate: the same weights while
/// the rate is constant. A learning rate of 0 leaves a row as it is.
///
/// The weight is a function of the slots, so a row's initial weight is
/// forgotten on its first touch, as upstream does. keep_initial_weight starts
/// the linear slot at
///
///   -sign(w) * (|w| * ((p(accumulator) + beta) / rate + 2 * l2) + l1)
///
/// Slots:   accumulators, from initial_accumulator_value, and linears, from 0.
/// Range:   learning_rate_power <= 0, initial_accumulator_value > 0,
///          others >= 0.
/// Source:  tf.tpu.experimental.embedding.FTRL; McMahan et al. 2013.
struct FTRL {
  LearningRate learning_rate = 0.001;
  double learning_rate_power = -0.5;
  double l1_regularization_strength = 0.0;
  double l2_regularization_strength = 0.0;
  double beta = 0.0;
  double initial_accumulator_value = 0.1;
  bool multiply_linear_by_learning_rate = false;
  double l2_shrinkage_regularization_strength = 0.0;
  bool keep_initial_weight = false;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const FTRL&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("learning_rate_power", self.learning_rate_power);
    visit("l1_regularization_strength", self.l1_regularization_strength);
    visit("l2_regularization_strength", self.l2_regularization_strength);
    visit("beta", self.beta);
    visit("initial_accumulator_value", self.initial_accumulator_value);
    visit(
        "multiply_linear_by_learning_rate",
        self.multiply_linear_by_learning_rate);
    visit(
        "l2_shrinkage_regularization_strength",
        self.l2_shrinkage_regularization_strength);
    visit("keep_initial_weight", self.keep_initial_weight);
    detail::visit_common_fields(self, visit);
  }
};

/// RMSprop: Adagrad that forgets.
///
///   square   = rho * square + (1 - rho) * gradient^2
///   mean     = rho * mean + (1 - rho) * gradient            (centered)
///   step     = learning_rate * gradient / sqrt(square [- mean^2] + epsilon)
///   momenta  = momentum * momenta + step                    (momentum > 0)
///   weight  -= momenta, or step without momentum
///
/// With epsilon_inside_sqrt = false the denominator is sqrt(...) + epsilon.
///
/// Slots:   mean_squares; momenta with momentum; means when centered; from 0.
/// Range:   rho, momentum in [0, 1], epsilon > 0.
/// Source:  the TPU embedding configuration's rms_prop; Hinton 2012.
/// Differs: torch::optim::RMSprop adds eps outside the root and multiplies by
///          the learning rate after the momentum.
struct RMSprop {
  LearningRate learning_rate = 0.001;
  double rho = 0.9;
  double momentum = 0.0;
  double epsilon = 1e-7;
  bool centered = false;
  bool epsilon_inside_sqrt = true;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const RMSprop&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("rho", self.rho);
    visit("momentum", self.momentum);
    visit("epsilon", self.epsilon);
    visit("centered", self.centered);
    visit("epsilon_inside_sqrt", self.epsilon_inside_sqrt);
    detail::visit_common_fields(self, visit);
  }
};

/// Adadelta: steps in the units of the weights.
///
///   accumulator = rho * accumulator + (1 - rho) * gradient^2
///   delta       = gradient * sqrt((update + epsilon) / (accumulator + epsilon))
///   update      = rho * update + (1 - rho) * delta^2
///   weight     -= learning_rate * delta
///
/// Slots:   accumulators and updates, from 0.
/// Range:   rho in [0, 1], epsilon > 0.
/// Source:  keras.optimizers.Adadelta; Zeiler 2012.
struct Adadelta {
  LearningRate learning_rate = 0.001;
  double rho = 0.95;
  double epsilon = 1e-7;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const Adadelta&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("rho", self.rho);
    visit("epsilon", self.epsilon);
    detail::visit_common_fields(self, visit);
  }
};

/// Lion: steps of one size, in the direction of the blended gradient's sign.
///
///   blend    = beta_1 * momenta + (1 - beta_1) * gradient
///   weight  -= learning_rate * sign(blend)
///   momenta  = beta_2 * momenta + (1 - beta_2) * gradient
///
/// Slots:   momenta, from 0.
/// Range:   beta_1, beta_2 in [0, 1].
/// Source:  keras.optimizers.Lion; Chen et al. 2023.
struct Lion {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.99;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const Lion&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("beta_1", self.beta_1);
    visit("beta_2", self.beta_2);
    detail::visit_common_fields(self, visit);
  }
};

/// LAMB: Adam whose step is as long as the row times the learning rate.
///
///   momentum, velocity   as Adam, bias corrected with t = 1, 2, ...
///   direction = momentum / (sqrt(velocity) + epsilon) + weight_decay * weight
///   weight   -= learning_rate * |weight| / |direction| * direction
///
/// The norms are of one row, as FBGEMM's; where one is 0 their ratio is 1.
///
/// Slots:   momenta, velocities; from 0.
/// Range:   beta_1, beta_2 in [0, 1), epsilon > 0, weight_decay >= 0.
/// Source:  FBGEMM's LAMB; You et al. 2019.
/// Differs: the paper takes the norms of a whole layer.
struct LAMB {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-6;
  double weight_decay = 0.0;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const LAMB&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("beta_1", self.beta_1);
    visit("beta_2", self.beta_2);
    visit("epsilon", self.epsilon);
    visit("weight_decay", self.weight_decay);
    detail::visit_common_fields(self, visit);
  }
};

/// Adamax: Adam that divides by a decaying maximum of |gradient| instead of the root
/// of the second moment.
///
///   momentum = beta_1 * momentum + (1 - beta_1) * gradient
///   norm     = max(beta_2 * norm, |gradient|)
///   weight  -= learning_rate / (1 - beta_1^t) * momentum / (norm + epsilon)
///
/// t = 1, 2, ... counts the table's updates.
///
/// Slots:   momenta, norms; from 0.
/// Range:   beta_1 in [0, 1), beta_2 in [0, 1], epsilon > 0.
/// Source:  keras.optimizers.Adamax; Kingma and Ba 2014, section 7.1.
struct Adamax {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const Adamax&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("beta_1", self.beta_1);
    visit("beta_2", self.beta_2);
    visit("epsilon", self.epsilon);
    detail::visit_common_fields(self, visit);
  }
};

/// Nadam: Adam with Nesterov momentum. Its momentum factor mu(t) grows to beta_1.
///
///   momentum  = beta_1 * momentum + (1 - beta_1) * gradient
///   velocity  = beta_2 * velocity + (1 - beta_2) * gradient^2
///   mu(t)     = beta_1 * (1 - 0.5 * 0.96^(schedule_decay * t))
///   direction = mu(t + 1) / (1 - mu(1) * ... * mu(t + 1)) * momentum
///               + (1 - mu(t)) / (1 - mu(1) * ... * mu(t)) * gradient
///   weight   -= learning_rate * direction
///               / (sqrt(velocity / (1 - beta_2^t)) + epsilon)
///
/// t = 1, 2, ... counts the table's updates. mu needs no slot.
///
/// Slots:   momenta, velocities; from 0.
/// Range:   beta_1, beta_2 in [0, 1), epsilon > 0, schedule_decay >= 0.
/// Source:  keras.optimizers.Nadam; Dozat 2016.
/// Differs: schedule_decay is 1, as in Keras 3. torch.optim.NAdam of Python and legacy
///          Keras have 0.004.
struct Nadam {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  double schedule_decay = 1.0;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  bool lazy = true;
  SlotCreation slot_creation = {};

  bool operator==(const Nadam&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("beta_1", self.beta_1);
    visit("beta_2", self.beta_2);
    visit("epsilon", self.epsilon);
    visit("schedule_decay", self.schedule_decay);
    detail::visit_common_fields(self, visit);
  }
};

/// The user's own rule: a function of the touched rows.
///
///   CustomOptimizer{
///       .learning_rate = 0.1,
///       .rule = CustomRule("sign", [](CustomRows& rows) {
///         rows.weights.sub_(rows.gradients.sign(), rows.learning_rate);
///       })};
///
/// Slots:   as listed, from their initial values.
/// Range:   slot names unique, of letters, digits and _.
/// Errors:  what the rule throws, before any row of any table has changed.
/// Source:  tf.tpu.experimental.embedding.CustomOptimizer.
/// Differs: hyperparameters are what the function captures.
struct CustomOptimizer {
  LearningRate learning_rate = 0.01;
  CustomRule rule = {};
  std::vector<CustomSlot> slots = {};
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;
  int64_t gradient_accumulation_steps = 1;
  SlotCreation slot_creation = {};

  bool operator==(const CustomOptimizer&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("rule", self.rule);
    visit("slots", self.slots);
    detail::visit_common_fields(self, visit);
  }
};

/// One of the specs above. A forgotten case does not compile.
using OptimizerVariant = std::variant<
    SGD,
    Momentum,
    Adagrad,
    AdagradMomentum,
    ProximalAdagrad,
    RowWiseAdagrad,
    Adam,
    FTRL,
    RMSprop,
    Adadelta,
    Lion,
    LAMB,
    Adamax,
    Nadam,
    CustomOptimizer>;

/// How a table learns: a native spec, a name, or what Keras serializes.
///
///   OptimizerSpec spec = Adagrad{.learning_rate = 0.05};
///   OptimizerSpec spec = "adagrad";   // with defaults; names: optim/keras.h
///   OptimizerSpec spec = keras_json;  // Fidelity::kTpu of optim/keras.h
///
/// Errors:  c10::ValueError for text and JSON that can't be translated.
class OptimizerSpec : public OptimizerVariant {
 public:
  using OptimizerVariant::OptimizerVariant;

  OptimizerSpec() = default;
  // NOLINTBEGIN(google-explicit-constructor)
  OptimizerSpec(OptimizerVariant spec) : OptimizerVariant(std::move(spec)) {}
  OptimizerSpec(const char* keras);
  OptimizerSpec(const std::string& keras);
  OptimizerSpec(const nlohmann::json& keras);
  OptimizerSpec(const nlohmann::ordered_json& keras);
  // NOLINTEND(google-explicit-constructor)

  bool operator==(const OptimizerSpec&) const = default;
};

/// "SGD", "Adagrad", ...: the name in JSON and in summaries.
std::string name_of(const OptimizerSpec& optimizer);

/// Refuses options out of their range; `where` begins the message.
void validate(const OptimizerSpec& optimizer, const std::string& where);

/// Whether an update moves rows or slots beyond those of the batch.
bool sweeps_all_rows(const OptimizerSpec& optimizer);

}  // namespace tessera::optim
