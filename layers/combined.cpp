// SPDX-License-Identifier: Apache-2.0
#include <tessera/layers/combined.h>

#include "src/common/check.h"
#include "src/common/checked_archive.h"
#include "src/common/rank_group.h"
#include "src/engine/finite_gradients.h"
#include "src/engine/pending_gradients.h"
#include "src/engine/strategies/embedding_strategy.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/tensor.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/Type.h>
#include <torch/optim/lbfgs.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <exception>
#include <limits>
#include <string>
#include <typeinfo>

namespace tessera {

namespace {

// Calls visit(gradient) for every gradient in `groups`.
template <class Visit>
void for_each_gradient(
    const std::vector<torch::optim::OptimizerParamGroup>& groups,
    Visit visit) {
  for (const auto& group : groups) {
    for (const at::Tensor& parameter : group.params()) {
      if (parameter.grad().defined()) {
        visit(parameter.grad());
      }
    }
  }
}

// The values of a gradient. A sparse gradient's values are summed per row.
at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.layout() == at::kSparse ? gradient.coalesce()._values()
                                          : gradient;
}

bool has_parameter(
    const torch::optim::Optimizer& optimizer,
    const at::Tensor& tensor) {
  return std::ranges::any_of(optimizer.param_groups(), [&](const auto& group) {
    return std::ranges::any_of(group.params(), [&](const auto& parameter) {
      return parameter.is_same(tensor);
    });
  });
}

// The class of an optimizer, such as "torch::optim::Adam".
std::string kind_of(const torch::optim::Optimizer& optimizer) {
  return c10::demangle(typeid(optimizer).name());
}

std::unique_ptr<torch::optim::OptimizerOptions> defaults_of(
    const std::unique_ptr<torch::optim::Optimizer>& dense) {
  TESSERA_CHECK_VALUE(
      dense != nullptr,
      "[Combined] expected a dense optimizer, but got nullptr. Pass an optimizer such as torch::optim::Adam(model->parameters(), 1e-3).");
  return dense->defaults().clone();
}

}  // namespace

// The tables of one layer.
struct Combined::Tables {
  std::shared_ptr<PendingGradients> pending;
  std::shared_ptr<PendingGradients::Claim> claim;
};

// Lends the param groups to the dense optimizer while the result exists.
auto Combined::lend_groups() {
  const auto swap = [this] {
    std::swap(param_groups_, dense_->param_groups());
  };
  swap();
  return c10::make_scope_exit(swap);
}

Combined::Combined(
    std::unique_ptr<torch::optim::Optimizer> dense,
    std::vector<TPUEmbedding> layers,
    CombinedOptions options)
    : Optimizer(
          std::vector<torch::optim::OptimizerParamGroup>{},
          defaults_of(dense)),
      dense_(std::move(dense)),
      options_(options) {
  TESSERA_CHECK_VALUE(
      !layers.empty(),
      "[Combined] layers must not be empty. Pass the layers whose tables step() updates.");
  TESSERA_CHECK_VALUE(
      dynamic_cast<const torch::optim::LBFGS*>(dense_.get()) == nullptr,
      "[Combined] the dense optimizer must not be LBFGS, which calls its closure several times per step, because the tables are updated once per step. Use another dense optimizer.");
  for (const TPUEmbedding& layer : layers) {
    TESSERA_CHECK_VALUE(
        !layer.is_empty(),
        "[Combined] expected a layer, but got an empty holder. Make the layer before its optimizer.");
  }
  for (const TPUEmbedding& layer : layers) {
    const auto is_same = [&](const TPUEmbedding& other) {
      return other.ptr() == layer.ptr();
    };
    TESSERA_CHECK_VALUE(
        std::ranges::count_if(layers, is_same) == 1,
        "[Combined] each layer must be listed once, but a layer is listed twice. Remove one of them.");
    const std::shared_ptr<PendingGradients> pending =
        layer->strategy_->pending();
    TESSERA_CHECK_VALUE(
        pending != nullptr,
        "[Combined] expected a layer on Strategy::fused() or distributed::sharded_strategy() with Apply::kOnStep, but got one on Strategy::{}() with {}. Set TPUEmbeddingOptions::apply to Apply::kOnStep. A layer on Strategy::host() or padded() needs no Combined: its tables are parameters, which any optimizer updates.",
        layer->options().strategy.name(),
        layer->options().apply == Apply::kOnStep ? "kOnStep" : "kInBackward");
    TESSERA_CHECK_VALUE(
        has_parameter(*dense_, pending->virtual_variable()),
        "[Combined] the dense optimizer must hold the virtual_variable of each layer, because zero_grad() reaches the tables through it, but one is missing. Make the dense optimizer from the parameters() of the model that holds the layers.");
    tables_.push_back({pending, pending->claim()});
  }
  std::swap(param_groups_, dense_->param_groups());
}

Combined::Combined(Combined&& other) noexcept = default;

Combined::~Combined() = default;

void Combined::check_idle(const char* method) const {
  TESSERA_CHECK(
      dense_ != nullptr,
      "[Combined::{}] this Combined was moved from. Call the method on the Combined that it was moved to.",
      method);
  TESSERA_CHECK(
      !is_stepping_,
      "[Combined::{}] must not be called while step() runs, but a callable or a custom rule called it. Call it after step().",
      method);
}

double Combined::gradient_factor() const {
  if (options_.accumulation == Accumulation::kSum) {
    return 1.0;
  }
  int64_t passes = 1;
  for (const Tables& tables : tables_) {
    passes = std::max(passes, tables.pending->passes());
  }
  return 1.0 / static_cast<double>(passes);
}

void Combined::scale_dense(double factor) {
  if (factor != 1.0) {
    for_each_gradient(
        param_groups_, [&](at::Tensor gradient) { gradient.mul_(factor); });
  }
}

bool Combined::is_finite() const {
  bool is_finite = true;
  for_each_gradient(param_groups_, [&](const at::Tensor& gradient) {
    is_finite =
        is_finite && at::isfinite(values_of(gradient)).all().item<bool>();
  });
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const Tables& tables : tables_) {
    // norm() is collective, so call it even if is_finite is already false.
    const double largest = tables.pending->norm(kInfinity);
    is_finite = is_finite && std::isfinite(largest);
  }
  // Gradients of dense parameters may differ between ranks, but all ranks must make the same
  // decision.
  const std::vector<double> finite_flags = tables_[0].pending->gather(
      is_finite ? 1.0 : 0.0, static_cast<uint64_t>(options_.non_finite));
  return std::ranges::find(finite_flags, 0.0) == finite_flags.end();
}

// Returns rank 0's norm, so that all ranks scale by exactly the same factor.
double Combined::agree_on_norm(double norm, double max_norm) const {
  constexpr double kTolerance = 1e-3;
  const std::vector<double> norms =
      tables_[0].pending->gather(norm, std::bit_cast<uint64_t>(max_norm));
  for (size_t rank = 1; rank < norms.size(); ++rank) {
    const bool is_same =
        std::abs(norms[rank] - norms[0]) <= kTolerance * std::abs(norms[0]) ||
        (!std::isfinite(norms[rank]) && !std::isfinite(norms[0]));
    TESSERA_CHECK_VALUE(
        is_same,
        "[Combined::clip_grad_norm_] the norm of all gradients must be the same on all ranks, but is {} on rank 0 and {} on rank {}. Call sum_gradients() on the dense parameters before clip_grad_norm_().",
        norms[0],
        norms[rank],
        rank);
  }
  return norms[0];
}

at::Tensor Combined::step(LossClosure closure) {
  check_idle("step");
  at::Tensor loss;
  if (closure != nullptr) {
    const at::AutoGradMode enable_grad(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  is_stepping_ = true;
  const auto reset_stepping =
      c10::make_scope_exit([&] { is_stepping_ = false; });
  for (const Tables& tables : tables_) {
    tables.pending->discard_if_zeroed();
  }
  if (options_.non_finite != NonFinite::kPass && !is_finite()) {
    TESSERA_CHECK_VALUE(
        options_.non_finite == NonFinite::kSkip,
        "[Combined::step] gradients must be finite, but at least one has NaN or infinity; nothing was changed. Find the operation that causes it, lower the learning rate, or set NonFinite::kSkip.");
    for (const Tables& tables : tables_) {
      tables.pending->discard();
    }
    ++skipped_steps_;
    return loss;
  }
  const double factor = gradient_factor();
  for (const Tables& tables : tables_) {
    tables.pending->prepare(factor);
  }
  scale_dense(factor);
  try {
    const std::exception_ptr error = error_of([&] {
      if (options_.non_finite == NonFinite::kPass) {
        check_dense_parameters();
      }
      const auto lease = lend_groups();
      dense_->step();
    });
    tables_[0].pending->confirm(error);
  } catch (...) {
    scale_dense(1.0 / factor);  // so that another step() can follow
    throw;
  }
  for (const Tables& tables : tables_) {
    tables.pending->apply();
  }
  return loss;
}

void Combined::zero_grad(bool set_to_none) {
  check_idle("zero_grad");
  Optimizer::zero_grad(set_to_none);
  for (const Tables& tables : tables_) {
    tables.pending->discard();
  }
}

double Combined::clip_grad_norm_(double max_norm, double norm_type) {
  check_idle("clip_grad_norm_");
  TESSERA_CHECK_VALUE(
      max_norm >= 0.0,
      "[Combined::clip_grad_norm_] max_norm must be >= 0, but got {}.",
      max_norm);
  TESSERA_CHECK_VALUE(
      norm_type > 0.0,
      "[Combined::clip_grad_norm_] norm_type must be > 0, but got {}.",
      norm_type);
  const at::NoGradGuard no_grad;
  std::vector<double> norms;
  for_each_gradient(param_groups_, [&](const at::Tensor& gradient) {
    const at::Tensor values = values_of(gradient);
    // LibTorch has no infinity norm of an empty tensor.
    if (values.numel() > 0) {
      norms.push_back(at::linalg_vector_norm(
                          values, norm_type, {}, /*keepdim=*/false, at::kDouble)
                          .item<double>());
    }
  });
  for (const Tables& tables : tables_) {
    tables.pending->discard_if_zeroed();
    norms.push_back(tables.pending->norm(norm_type));
  }
  const auto norm =
      at::linalg_vector_norm(at::tensor(norms), norm_type).item<double>();
  const double total = agree_on_norm(norm * gradient_factor(), max_norm);
  // LibTorch's clip_grad_norm_ adds the same epsilon to the norm.
  constexpr double kEpsilon = 1e-6;
  const double factor = max_norm / (total + kEpsilon);
  if (std::isfinite(total) && factor < 1.0) {
    scale_dense(factor);
    for (const Tables& tables : tables_) {
      tables.pending->scale(factor);
    }
  }
  return total;
}

void Combined::save(torch::serialize::OutputArchive& output) const {
  check_idle("save");
  CheckedArchive archive(output);
  // The lease returns the param groups at the end of this function, so `this` is
  // unchanged for the caller.
  const auto lease = const_cast<Combined&>(*this).lend_groups();
  torch::serialize::OutputArchive dense(archive.compilation_unit());
  dense_->save(dense);
  archive.write("dense_optimizer", c10::IValue(kind_of(*dense_)));
  archive.write("dense", dense);
  archive.finish();
}

void Combined::load(torch::serialize::InputArchive& archive) {
  check_idle("load");
  torch::serialize::InputArchive dense;
  c10::IValue kind;
  TESSERA_CHECK_VALUE(
      archive.try_read("dense_optimizer", kind) && kind.isString() &&
          archive.try_read("dense", dense),
      "[Combined::load] expected an archive that a Combined saved, but this one lacks 'dense_optimizer' or 'dense'. Load it into an optimizer of the class that saved it.");
  check_checksums(archive, "[Combined::load]");
  TESSERA_CHECK_VALUE(
      kind.toStringRef() == kind_of(*dense_),
      "[Combined::load] the dense optimizer is {}, but the archive was saved with {}. Make the Combined with an optimizer of that class.",
      kind_of(*dense_),
      kind.toStringRef());
  const auto lease = lend_groups();
  dense_->load(dense);
}

}  // namespace tessera
