// SPDX-License-Identifier: Apache-2.0
#pragma once

// benchmark.h, and the headers of LibTorch and of the standard library that most benchmarks read. So a benchmark
// includes none of them, nor what they include, such as LibTorch's tensors.
#include "cmake/libtorch_headers.h"
#include "tests/benchmarks/benchmark.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>

#include <array>
#include <atomic>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>
