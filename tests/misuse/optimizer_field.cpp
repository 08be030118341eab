// SPDX-License-Identifier: Apache-2.0
// expects: no non-static data member named .learning_rates|field designator 'learning_rates' does not
#include <tessera/optim/optimizers/adagrad.h>

const tessera::optim::Adagrad adagrad{.learning_rates = 0.1};
