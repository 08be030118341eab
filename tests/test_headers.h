// SPDX-License-Identifier: Apache-2.0
// The headers of other projects that most tests read. They are precompiled once.
#include "cmake/libtorch_headers.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <limits>
#include <random>
#include <sstream>
#include <thread>
