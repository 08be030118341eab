// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/engine/strategy.h>

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>

/// This process, among those that train together.
struct Process {
  tessera::Strategy strategy = tessera::Strategy::fused();
  int64_t rank = 0;
  int64_t ranks = 1;
  /// Copies the dense weights of rank 0 to all ranks.
  std::function<void(const torch::nn::Module&)> broadcast = [](const auto&) {};
};

/// Joins the processes that train together. The environment says which rank this is. Each
/// rank has all small tables, and the other tables are spread over the ranks. It is in
/// ranks.cpp for movielens_ranks, and in one_process.cpp for movielens, which is built
/// without the package for several processes.
/// Errors:  c10::ValueError in movielens.
Process join_processes();
