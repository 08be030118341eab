// SPDX-License-Identifier: Apache-2.0
#pragma once

// All specs, for code that visits the one in an OptimizerSpec.

#include <tessera/optim/optimizer.h>
#include <tessera/optim/optimizers/adadelta.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/optim/optimizers/adagrad_momentum.h>
#include <tessera/optim/optimizers/adam.h>
#include <tessera/optim/optimizers/adamax.h>
#include <tessera/optim/optimizers/custom_optimizer.h>
#include <tessera/optim/optimizers/ftrl.h>
#include <tessera/optim/optimizers/lamb.h>
#include <tessera/optim/optimizers/lion.h>
#include <tessera/optim/optimizers/momentum.h>
#include <tessera/optim/optimizers/nadam.h>
#include <tessera/optim/optimizers/proximal_adagrad.h>
#include <tessera/optim/optimizers/rmsprop.h>
#include <tessera/optim/optimizers/row_wise_adagrad.h>
#include <tessera/optim/optimizers/sgd.h>

#include <utility>
#include <variant>

namespace tessera::optim {

using AllSpecs = std::variant<
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

namespace detail {

/// Any of the specs. A std::visit() that lacks a case does not compile.
struct OptimizerVariant : AllSpecs {
  using AllSpecs::AllSpecs;
};

}  // namespace detail

// snippet: tests/docs/reference_optim_test.cpp modify
/// Calls `change` with a copy of the spec inside, and replaces the spec by that copy.
///
///   modify(spec, [](auto& held) { held.learning_rate = 0.1; });
template <class Change>
void modify(OptimizerSpec& optimizer, Change&& change) {
  detail::OptimizerVariant changed = optimizer.variant();
  std::visit(std::forward<Change>(change), changed);
  optimizer = std::move(changed);
}

}  // namespace tessera::optim
