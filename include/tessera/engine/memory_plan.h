// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

namespace tessera {

/// Says what the tables of a layer need, and how much memory this process can have.
struct MemoryPlan {
  /// The bytes of the part of a table that this process holds.
  struct Table {
    std::string name = {};
    int64_t rows = 0;
    /// The slots that the layer itself keeps. Optimizers of torch::optim have others.
    int64_t slots = 0;
    /// The index of a key table that has all its keys.
    int64_t keys = 0;
    /// If true, the table takes memory as keys come, and may never need all of it. Key tables
    /// without DynamicKeys::preallocate do so.
    bool is_lazy = false;

    int64_t bytes() const;
  };
  std::vector<Table> tables = {};
  /// The bytes of the activations of one batch and of their gradients.
  int64_t step = 0;
  /// The smallest of three numbers of bytes: the limit of the cgroup, which has no swap,
  /// RLIMIT_AS, and the memory of the machine with its swap. If none of them is known, it is
  /// the largest int64_t. RLIMIT_AS limits addresses, which lazy tables take at once.
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
