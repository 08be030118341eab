// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

/// A benchmark looks up one sum-pooled feature per table, which has `batch` bags of `bag`
/// ids each.
struct Workload {
  std::string name;
  int64_t tables = 0;
  int64_t rows = 0;
  int64_t dim = 0;
  int64_t batch = 0;
  int64_t bag = 0;
  bool is_zipf = false;
  double skew =
      1.0;  // for zipf; 1: p(rank) ~ 1 / rank; > 1: first ranks more often
  at::ScalarType dtype = at::kFloat;
  at::ScalarType slot_dtype = at::kFloat;

  int64_t ids_per_table() const {
    return batch * bag;
  }
};

/// Reads a JSON list of workloads.
std::vector<Workload> read_workloads(const std::string& path);

/// Draws the ids of `batches` batches, [batches, tables, batch * bag] int64. They are
/// uniform or zipf: rank floor(rows^(u^skew)) - 1, mapped to ids by a random permutation.
at::Tensor draw_ids(const Workload& workload, int64_t batches, uint64_t seed);

/// Reads such ids from `directory`/NAME.npy.
at::Tensor read_ids(const Workload& workload, const std::string& directory);
