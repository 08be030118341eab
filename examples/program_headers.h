// SPDX-License-Identifier: Apache-2.0
// The headers that most examples read. They are precompiled once.
#include "cmake/libtorch_headers.h"

#include <CLI/CLI.hpp>
#include <tessera/tessera.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
