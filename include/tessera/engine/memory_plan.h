// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera {

/// What the tables of a layer need, and how much memory this process can have.
struct MemoryPlan {
  /// The bytes of the part of a table that this process holds.
  struct Table {
    std::string name = {};
    int64_t rows = 0;
    /// The slots that the layer itself keeps. Optimizers of torch::optim have others.
    int64_t slots = 0;
    /// The index of a key table that has all its keys.
    int64_t keys = 0;
    /// Whether memory is taken as keys come, so that it may never be needed. True for key
    /// tables without DynamicKeys::preallocate.
    bool is_lazy = false;

    int64_t bytes() const;
  };
  std::vector<Table> tables = {};
  /// The bytes of the activations of one batch and of their gradients.
  int64_t step = 0;
  /// The smallest of the limit of the cgroup, without swap, RLIMIT_AS, and memory with swap,
  /// in bytes. If none of them is known, it is the largest int64_t. RLIMIT_AS limits
  /// addresses, which lazy tables take at once.
  int64_t limit = 0;
  std::string limit_name = {};

  /// The bytes that are needed in any case: `step` and the tables that are not lazy.
  int64_t bytes() const;
  /// The bytes of lazy tables that have all their keys.
  int64_t lazy_bytes() const;
};
static_assert(std::is_aggregate_v<MemoryPlan>);

/// Returns a line for each table, and one with the sum and the limit.
std::string to_string(const MemoryPlan& plan);

}  // namespace tessera
