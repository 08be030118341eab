// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "packages/search/src/scan/row_set.h"
#include "src/kernels/kernels.h"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace tessera {

/// Rows in memory, one after the other from `first` on.
struct RowMemory {
  kernels::Storage storage = kernels::Storage::kFloat32;
  /// 8 or 4: the rows have the format of kernels::QuantizedRow, and kReadAfterRow bytes may
  /// be read behind each.
  int quantized_bits = 0;
  const void* first = nullptr;
  /// Rows that others replace, as in kernels::LocateArgs.
  const kernels::OverlaidWord* const* overlaid = nullptr;
};

/// The rows to scan. Their scores are dot(vector, row).
struct ScanRows {
  int64_t dim = 0;
  RowMemory rows = {};
  /// The float32 rows from which `rows` were quantized, or nothing. If there are such rows,
  /// they give the scores. Otherwise the numbers count that a lookup returns.
  RowMemory exact_rows = {};
  int64_t num_rows = 0;
};

struct ScanRequest {
  const float* vector = nullptr;  // [dim], finite
  int64_t k = 0;  // >= 1
  /// The row numbers to choose from, nullptr for all. Numbers at and above its size are not
  /// in it.
  const RowSet* allowed = nullptr;
  std::span<const int64_t> excluded = {};  // row numbers, ascending
};

struct ScoredRow {
  int64_t number = 0;
  float score = 0.0F;

  bool operator==(const ScoredRow&) const = default;
};

/// How a scan runs.
struct ScanOptions {
  int64_t num_threads = 1;  // of run_tasks, >= 1
  /// Runs task(0), ..., task(count - 1), such as run_tasks(). The default is one after the
  /// other on the calling thread.
  std::function<void(int64_t count, const std::function<void(int64_t)>& task)>
      run_tasks = [](int64_t count, const auto& task) {
        for (int64_t i = 0; i < count; ++i) {
          task(i);
        }
      };
  const kernels::KernelTable* kernels = nullptr;  // nullptr: active_kernels()
};

/// Finds the k rows with the highest scores for each request, best first. Equal scores are
/// ordered by row number. There are fewer results if fewer rows are allowed. Rows whose
/// score is NaN are never results.
///
/// Scores are sums of exact products in float64, rounded to float32. So results do not
/// depend on the instruction set, the number of threads, or the other requests. Up to 32
/// requests share one pass over the rows. Most rows that no request allows are not read.
/// Errors:  ValueError for k below 1 and for vectors with NaN or infinity.
std::vector<std::vector<ScoredRow>> scan(
    const ScanRows& rows,
    std::span<const ScanRequest> requests,
    const ScanOptions& options = {});

}  // namespace tessera
