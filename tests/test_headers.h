// SPDX-License-Identifier: Apache-2.0
// The headers of other projects and of the standard library that most tests read. They are precompiled once, and each
// source of a test is compiled with them. So it includes none of them, nor what they include, such as LibTorch's tensors.
#include "cmake/libtorch_headers.h"

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/sgd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <sstream>
#include <stdexcept>
#include <thread>
