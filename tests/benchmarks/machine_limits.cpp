// SPDX-License-Identifier: Apache-2.0
// The loops are deliberately independent of Tessera's kernels. They use the compiler's
// vector types, so that sums stay in registers on every instruction set.
#include "tests/benchmarks/machine_limits.h"

#include "src/common/parallel.h"
#include "src/tables/table_memory.h"
#include "tests/benchmarks/benchmark.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

// No clones under the thread sanitizer, which would instrument their resolver. That runs
// before the sanitizer is ready.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define TESSERA_CLONES \
  __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TESSERA_CLONES
#endif
#define TESSERA_INLINE inline __attribute__((always_inline))

namespace {

using tessera::run_tasks;
using tessera::task_size;

// One cache line of floats at any address.
using Line = float __attribute__((vector_size(64), aligned(4), may_alias));
constexpr int64_t kFloatsPerLine = 16;

template <int kLines>
TESSERA_INLINE void prefetch_row(const float* row) {
#pragma GCC unroll 8
  for (int line = 0; line < kLines; ++line) {
    __builtin_prefetch(row + line * kFloatsPerLine);
  }
}

struct GatherTask {
  const float* table;
  const int64_t* ids;
  int64_t begin;  // of the ids; a multiple of `bag`
  int64_t end;
  int64_t last;  // no id after this one is prefetched
  int64_t bag;
  int64_t ahead;
  float* out;  // of the first bag
};

template <int kLines>
TESSERA_INLINE void gather_lines(const GatherTask& task) {
  constexpr int64_t kDim = kLines * kFloatsPerLine;
  float* out = task.out;
  for (int64_t i = task.begin; i < task.end; out += kDim) {
    Line sum[kLines] = {};
    for (const int64_t end = i + task.bag; i < end; ++i) {
      const int64_t soon = std::min(i + task.ahead, task.last);
      prefetch_row<kLines>(task.table + task.ids[soon] * kDim);
      const float* row = task.table + task.ids[i] * kDim;
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) {
        sum[line] +=
            *reinterpret_cast<const Line*>(row + line * kFloatsPerLine);
      }
    }
#pragma GCC unroll 8
    for (int line = 0; line < kLines; ++line) {
      *reinterpret_cast<Line*>(out + line * kFloatsPerLine) = sum[line];
    }
  }
}

// The ids of one table and batch, grouped by row.
struct Groups {
  std::vector<int64_t> rows = {};
  std::vector<int64_t> begin = {};  // [rows + 1], positions in `bags`
  std::vector<int64_t> bags = {};
};

Groups group(const int64_t* ids, int64_t count, int64_t bag) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [ids](int64_t a, int64_t b) {
    return ids[a] < ids[b];
  });
  Groups groups;
  for (const int64_t i : order) {
    if (groups.rows.empty() || groups.rows.back() != ids[i]) {
      groups.rows.push_back(ids[i]);
      groups.begin.push_back(static_cast<int64_t>(groups.bags.size()));
    }
    groups.bags.push_back(i / bag);
  }
  groups.begin.push_back(static_cast<int64_t>(groups.bags.size()));
  return groups;
}

struct UpdateTask {
  float* table;
  float* accumulators;
  const float* gradients;
  const Groups& groups;
  int64_t begin;  // of the groups
  int64_t end;
  int64_t ahead;
};

template <int kLines>
TESSERA_INLINE void update_lines(const UpdateTask& task) {
  constexpr int64_t kDim = kLines * kFloatsPerLine;
  constexpr float kRate = 0.01F;
  const Groups& groups = task.groups;
  for (int64_t i = task.begin; i < task.end; ++i) {
    const int64_t soon = std::min(i + task.ahead, task.end - 1);
    prefetch_row<kLines>(task.table + groups.rows[soon] * kDim);
    prefetch_row<kLines>(task.accumulators + groups.rows[soon] * kDim);
    prefetch_row<kLines>(
        task.gradients + groups.bags[groups.begin[soon]] * kDim);
    Line sum[kLines] = {};
    for (int64_t j = groups.begin[i]; j < groups.begin[i + 1]; ++j) {
      const float* gradient = task.gradients + groups.bags[j] * kDim;
#pragma GCC unroll 8
      for (int line = 0; line < kLines; ++line) {
        sum[line] +=
            *reinterpret_cast<const Line*>(gradient + line * kFloatsPerLine);
      }
    }
    float* __restrict row = task.table + groups.rows[i] * kDim;
    float* __restrict accumulator = task.accumulators + groups.rows[i] * kDim;
    for (int line = 0; line < kLines; ++line) {
      const auto* of_line = reinterpret_cast<const float*>(&sum[line]);
      for (int64_t j = 0; j < kFloatsPerLine; ++j) {
        const int64_t column = line * kFloatsPerLine + j;
        accumulator[column] += of_line[j] * of_line[j];
        row[column] -= kRate * of_line[j] / std::sqrt(accumulator[column]);
      }
    }
  }
}

// The functions gatherN and updateN, for rows of N cache lines. A template can't have
// clones.
#define TESSERA_LOOPS(lines)                               \
  TESSERA_CLONES void gather##lines(const GatherTask& t) { \
    gather_lines<lines>(t);                                \
  }                                                        \
  TESSERA_CLONES void update##lines(const UpdateTask& t) { \
    update_lines<lines>(t);                                \
  }
TESSERA_LOOPS(1)
TESSERA_LOOPS(2)
TESSERA_LOOPS(4)
TESSERA_LOOPS(8)

struct Loops {
  void (*gather)(const GatherTask&);
  void (*update)(const UpdateTask&);
};

std::optional<Loops> loops_for(int64_t dim) {
  switch (dim) {
    case 16:
      return Loops{gather1, update1};
    case 32:
      return Loops{gather2, update2};
    case 64:
      return Loops{gather4, update4};
    case 128:
      return Loops{gather8, update8};
    default:
      return std::nullopt;
  }
}

// The timed runs with one prefetch distance take at least this long in total.
constexpr double kMinMs = 20.0;

// Returns the least median of run(batch, distance) in ms over several distances.
template <class Run>
double best_median(int64_t batches, int64_t repetitions, Run run) {
  double best = std::numeric_limits<double>::infinity();
  for (const int64_t ahead : {2, 4, 8, 16, 32, 64}) {
    const auto times = sorted_ms(
        {.least = repetitions, .least_ms = kMinMs},
        [&](int64_t i) { run(i % batches, ahead); });
    best = std::min(best, times[times.size() / 2]);
  }
  return best;
}

// The number of tasks per table for `bytes` of memory traffic, as in Tessera's lookups.
int64_t count_parts(const Workload& workload, int64_t bytes) {
  const int64_t task_bytes =
      task_size(bytes, bytes, int64_t{64} * 1024, int64_t{256} * 1024);
  return std::clamp<int64_t>(
      bytes / workload.tables / task_bytes, 1, workload.batch);
}

int64_t row_bytes(const Workload& workload) {
  return workload.dim * static_cast<int64_t>(sizeof(float));
}

double measure_gather(
    const Workload& workload,
    const at::Tensor& ids,
    float* rows,
    const Loops& loops,
    int64_t repetitions) {
  const int64_t per_table = workload.ids_per_table();
  const at::Tensor out =
      at::empty({workload.tables * workload.batch, workload.dim});
  const int64_t bytes = workload.tables * per_table * row_bytes(workload);
  const int64_t parts = count_parts(workload, bytes);
  const int64_t* all = ids.const_data_ptr<int64_t>();
  auto* sums = out.mutable_data_ptr<float>();
  return best_median(
      ids.size(0), repetitions, [&](int64_t batch, int64_t ahead) {
        run_tasks(workload.tables * parts, bytes, [&](int64_t task) {
          const int64_t table = task / parts;
          const int64_t first = workload.batch * (task % parts) / parts;
          const int64_t last = workload.batch * (task % parts + 1) / parts;
          loops.gather(
              {.table = rows + table * workload.rows * workload.dim,
               .ids = all + (batch * workload.tables + table) * per_table,
               .begin = first * workload.bag,
               .end = last * workload.bag,
               .last = per_table - 1,
               .bag = workload.bag,
               .ahead = ahead,
               .out = sums + (table * workload.batch + first) * workload.dim});
        });
      });
}

double measure_update(
    const Workload& workload,
    const at::Tensor& ids,
    float* rows,
    const Loops& loops,
    int64_t repetitions) {
  const int64_t per_table = workload.ids_per_table();
  const int64_t table_size = workload.rows * workload.dim;
  const at::Tensor slots =
      tessera::allocate_rows(workload.tables * workload.rows, workload.dim);
  slots.fill_(0.1);
  const at::Tensor gradients =
      at::randn({workload.tables * workload.batch, workload.dim});
  const int64_t* all = ids.const_data_ptr<int64_t>();
  std::vector<Groups> groups;
  for (int64_t i = 0; i < ids.size(0) * workload.tables; ++i) {
    groups.push_back(group(all + i * per_table, per_table, workload.bag));
  }
  const int64_t bytes = workload.tables * per_table * row_bytes(workload);
  const int64_t parts = count_parts(workload, 4 * bytes);
  auto* accumulators = slots.mutable_data_ptr<float>();
  const float* gradient = gradients.const_data_ptr<float>();
  return best_median(
      ids.size(0), repetitions, [&](int64_t batch, int64_t ahead) {
        run_tasks(workload.tables * parts, bytes, [&](int64_t task) {
          const int64_t table = task / parts;
          const Groups& of_table = groups[batch * workload.tables + table];
          const auto count = static_cast<int64_t>(of_table.rows.size());
          loops.update(
              {.table = rows + table * table_size,
               .accumulators = accumulators + table * table_size,
               .gradients = gradient + table * workload.batch * workload.dim,
               .groups = of_table,
               .begin = count * (task % parts) / parts,
               .end = count * (task % parts + 1) / parts,
               .ahead = ahead});
        });
      });
}

}  // namespace

std::optional<MachineLimits> measure_limits(
    const Workload& workload,
    const at::Tensor& ids,
    int64_t repetitions) {
  const std::optional<Loops> loops = loops_for(workload.dim);
  if (!loops) {
    return std::nullopt;
  }
  const at::Tensor memory =
      tessera::allocate_rows(workload.tables * workload.rows, workload.dim);
  memory.fill_(1.0);
  auto* rows = memory.mutable_data_ptr<float>();
  MachineLimits limits;
  limits.gather_ms = measure_gather(workload, ids, rows, *loops, repetitions);
  limits.update_ms = measure_update(workload, ids, rows, *loops, repetitions);
  return limits;
}
