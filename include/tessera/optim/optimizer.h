// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/optim/learning_rate.h>

#include <optional>
#include <string>
#include <type_traits>
#include <variant>

namespace tessera::optim {

// Every spec ends with the same options, applied to each touched row in this
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

/// Stochastic gradient descent.
///
///   weight -= learning_rate * gradient
///
/// Shapes:  gradient, weight [dim], per touched row.
/// Errors:  c10::ValueError from validate().
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

  bool operator==(const SGD&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit_common_fields(self, visit);
  }

  template <class Self, class Visit>
  static void visit_common_fields(Self& self, Visit&& visit) {
    visit("use_gradient_accumulation", self.use_gradient_accumulation);
    visit("clip_weight_min", self.clip_weight_min);
    visit("clip_weight_max", self.clip_weight_max);
    visit("clip_gradient_min", self.clip_gradient_min);
    visit("clip_gradient_max", self.clip_gradient_max);
    visit("weight_decay_factor", self.weight_decay_factor);
    visit(
        "multiply_weight_decay_factor_by_learning_rate",
        self.multiply_weight_decay_factor_by_learning_rate);
  }
};

/// Adagrad. Each weight has its own step, falling with the squares it has seen.
///
///   accumulator += gradient^2
///   weight      -= learning_rate * gradient / sqrt(accumulator)
///
/// Shapes:  gradient, weight, accumulator [dim], per touched row.
/// Range:   initial_accumulator_value > 0 (there is no epsilon).
/// Errors:  c10::ValueError from validate().
/// Source:  tf.tpu.experimental.embedding.Adagrad; Duchi et al. 2011.
/// Differs: torch::optim::Adagrad adds eps outside the root and starts at 0;
///          Keras adds epsilon inside the root.
struct Adagrad {
  LearningRate learning_rate = 0.001;
  double initial_accumulator_value = 0.1;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;

  bool operator==(const Adagrad&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("initial_accumulator_value", self.initial_accumulator_value);
    SGD::visit_common_fields(self, visit);
  }
};

/// Lazy Adam: momentum and scale of touched rows only, no bias correction.
///
///   momentum  = beta_1 * momentum + (1 - beta_1) * gradient
///   velocity  = beta_2 * velocity + (1 - beta_2) * gradient^2
///   weight   -= learning_rate * momentum / sqrt(velocity + epsilon^2)
///
/// With sum_inside_sqrt = false the denominator is sqrt(velocity) + epsilon.
///
/// Shapes:  gradient, weight, momentum, velocity [dim], per touched row.
/// Range:   beta_1, beta_2 in [0, 1), epsilon > 0.
/// Errors:  c10::ValueError from validate().
/// Source:  tf.tpu.experimental.embedding.Adam; Kingma and Ba 2014.
/// Differs: torch::optim::Adam and Keras correct the bias of both moments and
///          move every row.
struct Adam {
  LearningRate learning_rate = 0.001;
  double beta_1 = 0.9;
  double beta_2 = 0.999;
  double epsilon = 1e-7;
  bool sum_inside_sqrt = true;
  bool use_gradient_accumulation = true;
  std::optional<double> clip_weight_min = {};
  std::optional<double> clip_weight_max = {};
  std::optional<double> clip_gradient_min = {};
  std::optional<double> clip_gradient_max = {};
  std::optional<double> weight_decay_factor = {};
  bool multiply_weight_decay_factor_by_learning_rate = false;

  bool operator==(const Adam&) const = default;

  template <class Self, class Visit>
  static void visit_fields(Self& self, Visit&& visit) {
    visit("learning_rate", self.learning_rate);
    visit("beta_1", self.beta_1);
    visit("beta_2", self.beta_2);
    visit("epsilon", self.epsilon);
    visit("sum_inside_sqrt", self.sum_inside_sqrt);
    SGD::visit_common_fields(self, visit);
  }
};

/// How a table learns. A forgotten case does not compile.
using OptimizerSpec = std::variant<SGD, Adagrad, Adam>;

/// "SGD", "Adagrad", "Adam": the name in JSON and in summaries.
std::string name_of(const OptimizerSpec& optimizer);

/// Refuses options out of their range; `where` begins the message.
void validate(const OptimizerSpec& optimizer, const std::string& where);

}  // namespace tessera::optim
