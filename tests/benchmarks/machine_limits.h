// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/benchmarks/embedding_workload.h"

#include <ATen/core/Tensor.h>

#include <optional>

/// The times of plain loops for a workload on this machine. The loops have no checks,
/// sorting, allocation or autograd. Their rows are on huge pages, and each run takes the
/// next batch. They have the instruction set of the active kernels.
struct MachineLimits {
  double gather_ms = 0.0;  // sums the rows of each bag in registers
  /// SGD on the rows of a batch, with the bags of each row given in advance. The gradients
  /// of a row are summed in registers.
  double sgd_update_ms = 0.0;
  double adagrad_update_ms = 0.0;  // the same with Adagrad
  double adam_update_ms = 0.0;  // the same with Adam, on these rows only
};

/// Measures the limits with the current number of threads, each with the best of several
/// prefetch distances. Returns nullopt for dims other than 16, 32, 64 and 128.
/// `ids` is [batches, tables, batch * bag] int64.
std::optional<MachineLimits> measure_limits(
    const Workload& workload,
    const at::Tensor& ids,
    int64_t repetitions);
