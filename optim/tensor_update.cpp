// SPDX-License-Identifier: Apache-2.0
#include "optim/tensor_update.h"

#include <tessera/common/shorten.h>

#include "optim/nadam_factors.h"
#include "src/common/check.h"
#include "src/common/tensor_text.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace tessera::optim {

namespace {

using at::Tensor;

// average = share * average + (1 - share) * value
void blend(Tensor& average, double share, const Tensor& value) {
  average.mul_(share).add_(value, 1.0 - share);
}

Tensor norm_of_rows(const Tensor& rows) {
  return at::linalg_vector_norm(rows, 2, {-1}, /*keepdim=*/true);
}

// One rule: what it does to the rows of a tensor.
struct Rule {
  const UpdateMoment& moment;
  const Tensor& gradient;
  Tensor& weight;
  std::vector<Tensor>& slots;

  double rate() const {
    return moment.learning_rate;
  }

  void operator()(const SGD&) {
    weight.sub_(gradient, rate());
  }

  void operator()(const Momentum& spec) {
    Tensor& momenta = slots[0];
    momenta.mul_(spec.momentum);
    if (spec.scale_momentum_by_learning_rate) {
      momenta.sub_(gradient, rate());
      weight.add_(
          spec.use_nesterov ? spec.momentum * momenta - rate() * gradient
                            : momenta);
      return;
    }
    momenta.add_(gradient);
    weight.sub_(
        spec.use_nesterov ? gradient + spec.momentum * momenta : momenta,
        rate());
  }

  void operator()(const Adagrad& spec) {
    Tensor& accumulators = slots[0];
    accumulators.addcmul_(gradient, gradient);
    weight.addcdiv_(
        gradient,
        spec.epsilon_inside_sqrt ? (accumulators + spec.epsilon).sqrt()
                                 : accumulators.sqrt() + spec.epsilon,
        -rate());
  }

  void operator()(const AdagradMomentum& spec) {
    Tensor& accumulators = slots[0];
    Tensor& momenta = slots[1];
    if (spec.beta2 == 1.0) {
      accumulators.addcmul_(gradient, gradient);
    } else {
      blend(accumulators, spec.beta2, gradient.square());
    }
    const Tensor scaled =
        gradient * (accumulators + spec.epsilon).pow(-1.0 / spec.exponent);
    momenta.mul_(spec.momentum).add_(scaled);
    weight.sub_(
        spec.use_nesterov ? spec.momentum * momenta + scaled : momenta, rate());
  }

  void operator()(const ProximalAdagrad& spec) {
    Tensor& accumulators = slots[0];
    accumulators.addcmul_(gradient, gradient);
    const Tensor rates = accumulators.rsqrt() * rate();
    const Tensor moved = weight - rates * gradient;
    const Tensor size =
        (moved.abs() - rates * spec.l1_regularization_strength).clamp_min(0.0);
    weight.copy_(
        moved.sign() * size / (1.0 + rates * spec.l2_regularization_strength));
  }

  void operator()(const RowWiseAdagrad& spec) {
    Tensor& accumulators = slots[0];
    accumulators.add_(gradient.square().mean(-1));
    weight.addcdiv_(
        gradient, (accumulators.sqrt() + spec.epsilon).unsqueeze(-1), -rate());
  }

  void operator()(const Adam& spec) {
    blend(slots[0], spec.beta_1, gradient);
    blend(slots[1], spec.beta_2, gradient.square());
    Tensor velocities = slots[1];
    if (spec.amsgrad) {
      slots[2].copy_(at::maximum(slots[2], velocities));
      velocities = slots[2];
    }
    double corrected = rate();
    if (spec.bias_correction) {
      const auto update = static_cast<double>(moment.update);
      corrected *= std::sqrt(1.0 - std::pow(spec.beta_2, update)) /
          (1.0 - std::pow(spec.beta_1, update));
    }
    weight.addcdiv_(
        slots[0],
        spec.sum_inside_sqrt ? (velocities + spec.epsilon * spec.epsilon).sqrt()
                             : velocities.sqrt() + spec.epsilon,
        -corrected);
  }

  void operator()(const FTRL& spec) {
    if (rate() == 0.0) {
      return;  // The weight, a function of the slots, has no value.
    }
    Tensor& accumulators = slots[0];
    Tensor& linears = slots[1];
    const bool is_multiplied = spec.multiply_linear_by_learning_rate;
    const double unit = is_multiplied ? rate() : 1.0;
    const double inverse = is_multiplied ? 1.0 : 1.0 / rate();
    const double l1 = unit * spec.l1_regularization_strength;
    const double two_l2 = 2.0 * unit * spec.l2_regularization_strength;
    const auto power = [&] {
      return accumulators.pow(-spec.learning_rate_power);
    };
    const Tensor old_power = power();
    accumulators.addcmul_(gradient, gradient);
    const Tensor new_power = power();
    if (spec.keep_initial_weight) {
      const Tensor size =
          weight.abs() * ((old_power + spec.beta) * inverse + two_l2) + l1;
      linears.copy_(at::where(
          (linears == 0).logical_and(weight != 0),
          -at::copysign(size, weight),
          linears));
    }
    linears.add_(
        gradient + 2.0 * spec.l2_shrinkage_regularization_strength * weight,
        unit);
    linears.sub_((new_power - old_power) * inverse * weight);
    weight.copy_(
        (linears.clamp(-l1, l1) - linears) /
        ((new_power + spec.beta) * inverse + two_l2));
  }

  void operator()(const RMSprop& spec) {
    Tensor& mean_squares = slots[0];
    blend(mean_squares, spec.rho, gradient.square());
    Tensor square = mean_squares;
    if (spec.centered) {
      Tensor& means = slots.back();
      blend(means, spec.rho, gradient);
      square = mean_squares - means.square();
    }
    Tensor step = rate() * gradient /
        (spec.epsilon_inside_sqrt ? (square + spec.epsilon).sqrt()
                                  : square.sqrt() + spec.epsilon);
    if (spec.momentum > 0.0) {
      step = slots[1].mul_(spec.momentum).add_(step);
    }
    weight.sub_(step);
  }

  void operator()(const Adadelta& spec) {
    Tensor& accumulators = slots[0];
    Tensor& updates = slots[1];
    blend(accumulators, spec.rho, gradient.square());
    const Tensor delta = gradient * (updates + spec.epsilon).sqrt() /
        (accumulators + spec.epsilon).sqrt();
    blend(updates, spec.rho, delta.square());
    weight.sub_(delta, rate());
  }

  void operator()(const Lion& spec) {
    Tensor& momenta = slots[0];
    weight.sub_(
        (spec.beta_1 * momenta + (1.0 - spec.beta_1) * gradient).sign(),
        rate());
    blend(momenta, spec.beta_2, gradient);
  }

  void operator()(const LAMB& spec) {
    blend(slots[0], spec.beta_1, gradient);
    blend(slots[1], spec.beta_2, gradient.square());
    const auto update = static_cast<double>(moment.update);
    const double share_1 = 1.0 - std::pow(spec.beta_1, update);
    const double share_2 = 1.0 - std::pow(spec.beta_2, update);
    const Tensor direction =
        slots[0] / share_1 / ((slots[1] / share_2).sqrt() + spec.epsilon) +
        spec.weight_decay * weight;
    const Tensor weights = norm_of_rows(weight);
    const Tensor directions = norm_of_rows(direction);
    const Tensor trust = at::where(
        (weights > 0).logical_and(directions > 0),
        weights / directions,
        at::ones_like(weights));
    weight.sub_(trust * direction, rate());
  }

  void operator()(const Adamax& spec) {
    blend(slots[0], spec.beta_1, gradient);
    slots[1].copy_(at::maximum(spec.beta_2 * slots[1], gradient.abs()));
    const double share =
        1.0 - std::pow(spec.beta_1, static_cast<double>(moment.update));
    weight.addcdiv_(slots[0], slots[1] + spec.epsilon, -rate() / share);
  }

  void operator()(const Nadam& spec) {
    blend(slots[0], spec.beta_1, gradient);
    blend(slots[1], spec.beta_2, gradient.square());
    const NadamFactors factors = nadam_factors(spec, moment.update);
    weight.addcdiv_(
        factors.momentum * slots[0] + factors.gradient * gradient,
        (factors.velocity * slots[1]).sqrt() + spec.epsilon,
        -rate());
  }
};

// What a custom rule must leave, noted before it runs.
struct Layout {
  explicit Layout(const Tensor& tensor)
      : sizes(tensor.sizes().vec()), options(tensor.options()) {}

  bool is_of(const Tensor& tensor) const {
    return tensor.defined() && tensor.sizes() == at::IntArrayRef(sizes) &&
        tensor.dtype() == options.dtype() &&
        tensor.device() == options.device() &&
        tensor.layout() == options.layout();
  }

  std::vector<int64_t> sizes;
  at::TensorOptions options;
};

// `result` stands where `original` stood, which may have been resized, too.
void check_result(
    const Tensor& result,
    const Tensor& original,
    const Layout& layout,
    const std::string& what,
    const std::string& where) {
  const Tensor& wrong = layout.is_of(result) ? original : result;
  TESSERA_CHECK_VALUE(
      layout.is_of(wrong),
      "{} the custom rule must leave {} as {}, but left {}.",
      where,
      what,
      describe(layout.options, layout.sizes),
      describe(wrong));
}

// The user's rule, with a check of what it leaves.
void run_rule(
    const CustomOptimizer& spec,
    const UpdateMoment& moment,
    const Tensor& gradients,
    TensorRows& rows,
    const std::string& where) {
  const TensorRows before = rows;
  const Layout layout(rows.weights);
  const std::vector<Layout> slot_layouts(rows.slots.begin(), rows.slots.end());
  CustomRows custom{
      .weights = rows.weights,
      .slots = rows.slots,
      .gradients = gradients.clone(),
      .learning_rate = moment.learning_rate,
      .update = moment.update};
  (*spec.rule.function())(custom);
  check_result(custom.weights, before.weights, layout, "weights", where);
  TESSERA_CHECK_VALUE(
      custom.slots.size() == before.slots.size(),
      "{} the custom rule must leave {} slots, but left {}.",
      where,
      before.slots.size(),
      custom.slots.size());
  for (size_t i = 0; i < before.slots.size(); ++i) {
    check_result(
        custom.slots[i],
        before.slots[i],
        slot_layouts[i],
        "slot '" + shorten(spec.slots[i].name) + "'",
        where);
  }
  // Copies: a rule may have put one of the tensors in another's place.
  for (Tensor& slot : custom.slots) {
    slot = slot.clone();
  }
  before.weights.copy_(custom.weights);
  for (size_t i = 0; i < before.slots.size(); ++i) {
    before.slots[i].copy_(custom.slots[i]);
  }
}

template <class Spec>
void run_rule(
    const Spec& spec,
    const UpdateMoment& moment,
    const Tensor& gradients,
    TensorRows& rows,
    const std::string& /*where*/) {
  Rule{moment, gradients, rows.weights, rows.slots}(spec);
}

template <class Spec>
void update(
    const Spec& spec,
    const UpdateMoment& moment,
    Tensor gradients,
    TensorRows& rows,
    const std::string& where) {
  if (spec.clip_gradient_min || spec.clip_gradient_max) {
    gradients = gradients.clamp(spec.clip_gradient_min, spec.clip_gradient_max);
  }
  if (spec.weight_decay_factor) {
    const double scale = spec.multiply_weight_decay_factor_by_learning_rate
        ? moment.learning_rate
        : 1.0;
    rows.weights.sub_(rows.weights * (*spec.weight_decay_factor * scale));
  }
  run_rule(spec, moment, gradients, rows, where);
  if (spec.clip_weight_min || spec.clip_weight_max) {
    rows.weights.clamp_(spec.clip_weight_min, spec.clip_weight_max);
  }
}

}  // namespace

std::vector<int64_t> slot_shape(const SlotSpec& slot, at::IntArrayRef weights) {
  return slot.is_per_row ? weights.slice(0, weights.size() - 1).vec()
                         : weights.vec();
}

void update_rows(
    const OptimizerSpec& optimizer,
    const UpdateMoment& moment,
    at::Tensor gradients,
    TensorRows& rows,
    const std::string& where) {
  const at::NoGradGuard no_grad;
  std::visit(
      [&](const auto& spec) {
        update(spec, moment, std::move(gradients), rows, where);
      },
      optimizer);
}

TensorRows gather_rows(const TensorRows& rows, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  TensorRows gathered{.weights = rows.weights.index_select(0, ids)};
  for (const Tensor& slot : rows.slots) {
    gathered.slots.push_back(slot.index_select(0, ids));
  }
  return gathered;
}

void scatter_rows(
    const TensorRows& from,
    const at::Tensor& ids,
    const TensorRows& to) {
  const at::NoGradGuard no_grad;
  to.weights.index_copy_(0, ids, from.weights);
  for (size_t i = 0; i < to.slots.size(); ++i) {
    to.slots[i].index_copy_(0, ids, from.slots[i]);
  }
}

}  // namespace tessera::optim
