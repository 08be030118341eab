// SPDX-License-Identifier: Apache-2.0
// expects: use of deleted function|call to deleted
#include <tessera/optim/optimizer.h>
#include <tessera/optim/optimizers/adagrad.h>

const auto* adagrad =
    tessera::optim::OptimizerSpec("adagrad").get_if<tessera::optim::Adagrad>();
