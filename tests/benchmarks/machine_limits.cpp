// SPDX-License-Identifier: Apache-2.0
// The loops are deliberately independent of Tessera's kernels. They use the compiler's
// vector types, so that sums stay in registers on every instruction set.
#include "tests/benchmarks/machine_limits.h"

#include "src/common/active_kernels.h"
#include "src/common/parallel.h"
#include "src/tables/table_memory.h"
#include "tests/benchmarks/benchmark.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#define TESSERA_INLINE inline __attribute__((always_inline))

namespace {

using tessera::run_tasks;
using tessera::task_size;

constexpr int64_t kFloatsPerLine = 16;

// A vector of floats at any address. The instruction set must have vectors of its size,
// because GCC keeps sums of larger vectors in memory.
template <int kFloats>
struct VectorOf {
  typedef float Type
      __attribute__((vector_size(kFloats * 4), aligned(4), may_alias));
};

// `locality` is that of __builtin_prefetch(): 3 for the first-level cache, 2 for the second.
template <int kLines, int locality>
TESSERA_INLINE void prefetch_row(const float* row) {
#pragma GCC unroll 8
  for (int line = 0; line < kLines; ++line) {
    __builtin_prefetch(row + line * kFloatsPerLine, 0, locality);
  }
}

// How many rows ahead of its use a row is prefetched.
struct Ahead {
  int64_t near;  // to the first-level cache
  int64_t far;  // to the second-level cache; 0: not at all
};

struct GatherTask {
  const float* table;
  const int64_t* ids;
  int64_t begin;  // of the ids; a multiple of `bag`
  int64_t end;
  int64_t last;  // no id after this one is prefetched
  int64_t bag;
  Ahead ahead;
  float* out;  // of the first bag
};

template <int kFloats, int kLines>
TESSERA_INLINE void gather_lines(const GatherTask& task) {
  using Vector = typename VectorOf<kFloats>::Type;
  constexpr int64_t kDim = kLines * kFloatsPerLine;
  constexpr int kVectors = kDim / kFloats;
  float* out = task.out;
  for (int64_t i = task.begin; i < task.end; out += kDim) {
    Vector sum[kVectors] = {};
    for (const int64_t end = i + task.bag; i < end; ++i) {
      if (task.ahead.far > 0) {
        const int64_t later = std::min(i + task.ahead.far, task.last);
        prefetch_row<kLines, 2>(task.table + task.ids[later] * kDim);
      }
      const int64_t soon = std::min(i + task.ahead.near, task.last);
      prefetch_row<kLines, 3>(task.table + task.ids[soon] * kDim);
      const float* row = task.table + task.ids[i] * kDim;
#pragma GCC unroll 32
      for (int vector = 0; vector < kVectors; ++vector) {
        sum[vector] += *reinterpret_cast<const Vector*>(row + vector * kFloats);
      }
    }
#pragma GCC unroll 32
    for (int vector = 0; vector < kVectors; ++vector) {
      *reinterpret_cast<Vector*>(out + vector * kFloats) = sum[vector];
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

enum class Rule { kSgd, kAdagrad, kAdam };

// How many slots a row has.
constexpr int slots_of(Rule rule) {
  switch (rule) {
    case Rule::kSgd:
      return 0;
    case Rule::kAdagrad:
      return 1;
    case Rule::kAdam:
      return 2;
  }
  return 0;
}

struct UpdateTask {
  float* table;
  std::array<float*, 2> slots;
  const float* gradients;
  const Groups& groups;
  int64_t begin;  // of the groups
  int64_t end;
  Ahead ahead;
};

template <int kLines, Rule kRule, int locality>
TESSERA_INLINE void prefetch_for_update(const UpdateTask& task, int64_t group) {
  constexpr int64_t kDim = kLines * kFloatsPerLine;
  const int64_t row = task.groups.rows[std::min(group, task.end - 1)];
  prefetch_row<kLines, locality>(task.table + row * kDim);
  for (int slot = 0; slot < slots_of(kRule); ++slot) {
    prefetch_row<kLines, locality>(task.slots[slot] + row * kDim);
  }
}

// A function that returned the vector would need AVX in its callers, too.
template <int kFloats>
TESSERA_INLINE void take_square_root(typename VectorOf<kFloats>::Type& values) {
  for (int i = 0; i < kFloats; ++i) {
    values[i] = std::sqrt(values[i]);
  }
}

template <int kFloats, int kLines, Rule kRule>
TESSERA_INLINE void update_lines(const UpdateTask& task) {
  using Vector = typename VectorOf<kFloats>::Type;
  constexpr int64_t kDim = kLines * kFloatsPerLine;
  constexpr int kVectors = kDim / kFloats;
  constexpr float kRate = 0.01F;
  const Groups& groups = task.groups;
  for (int64_t i = task.begin; i < task.end; ++i) {
    if (task.ahead.far > 0) {
      prefetch_for_update<kLines, kRule, 2>(task, i + task.ahead.far);
    }
    prefetch_for_update<kLines, kRule, 3>(task, i + task.ahead.near);
    const int64_t soon = std::min(i + task.ahead.near, task.end - 1);
    prefetch_row<kLines, 3>(
        task.gradients + groups.bags[groups.begin[soon]] * kDim);
    Vector sum[kVectors] = {};
    for (int64_t j = groups.begin[i]; j < groups.begin[i + 1]; ++j) {
      const float* of_bag = task.gradients + groups.bags[j] * kDim;
#pragma GCC unroll 32
      for (int vector = 0; vector < kVectors; ++vector) {
        sum[vector] +=
            *reinterpret_cast<const Vector*>(of_bag + vector * kFloats);
      }
    }
#pragma GCC unroll 32
    for (int vector = 0; vector < kVectors; ++vector) {
      const int64_t offset = groups.rows[i] * kDim + vector * kFloats;
      const Vector gradient = sum[vector];
      Vector step = gradient;
      if constexpr (kRule == Rule::kAdagrad) {
        auto& accumulator = *reinterpret_cast<Vector*>(task.slots[0] + offset);
        Vector root = accumulator + gradient * gradient;
        accumulator = root;
        take_square_root<kFloats>(root);
        step /= root;
      } else if constexpr (kRule == Rule::kAdam) {
        auto& first = *reinterpret_cast<Vector*>(task.slots[0] + offset);
        auto& second = *reinterpret_cast<Vector*>(task.slots[1] + offset);
        Vector root = 0.999F * second + 0.001F * gradient * gradient;
        second = root;
        take_square_root<kFloats>(root);
        step = 0.9F * first + 0.1F * gradient;
        first = step;
        step /= root + 1e-8F;
      }
      *reinterpret_cast<Vector*>(task.table + offset) -= kRate * step;
    }
  }
}

struct Loops {
  void (*gather)(const GatherTask&);
  void (*update_sgd)(const UpdateTask&);
  void (*update_adagrad)(const UpdateTask&);
  void (*update_adam)(const UpdateTask&);
};

// The functions of one instruction set, whose vectors have `floats` floats, for rows of
// kLines cache lines.
#define TESSERA_LOOPS(isa, floats, attribute)           \
  template <int kLines>                                 \
  attribute void gather_##isa(const GatherTask& task) { \
    gather_lines<floats, kLines>(task);                 \
  }                                                     \
  template <int kLines, Rule kRule>                     \
  attribute void update_##isa(const UpdateTask& task) { \
    update_lines<floats, kLines, kRule>(task);          \
  }                                                     \
  template <int kLines>                                 \
  Loops loops_##isa() {                                 \
    return {                                            \
        gather_##isa<kLines>,                           \
        update_##isa<kLines, Rule::kSgd>,               \
        update_##isa<kLines, Rule::kAdagrad>,           \
        update_##isa<kLines, Rule::kAdam>};             \
  }
TESSERA_LOOPS(default, 4, )
#if defined(__x86_64__)
TESSERA_LOOPS(avx2, 8, __attribute__((target("arch=x86-64-v3"))))
TESSERA_LOOPS(avx512, 16, __attribute__((target("arch=x86-64-v4"))))
#endif

template <int kLines>
Loops loops_of_kernels() {
#if defined(__x86_64__)
  const std::string& isa = tessera::active_kernels().isa;
  if (isa == "avx512" || isa.starts_with("avx3")) {  // Highway's avx3_dl, ...
    return loops_avx512<kLines>();
  }
  if (isa.starts_with("avx2")) {
    return loops_avx2<kLines>();
  }
#endif
  return loops_default<kLines>();
}

std::optional<Loops> loops_for(int64_t dim) {
  switch (dim) {
    case 16:
      return loops_of_kernels<1>();
    case 32:
      return loops_of_kernels<2>();
    case 64:
      return loops_of_kernels<4>();
    case 128:
      return loops_of_kernels<8>();
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
  constexpr std::array<Ahead, 10> kDistances = {
      {{2, 0},
       {4, 0},
       {8, 0},
       {16, 0},
       {32, 0},
       {64, 0},
       {4, 16},
       {4, 64},
       {8, 128},
       {16, 256}}};
  for (const Ahead& ahead : kDistances) {
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
      ids.size(0), repetitions, [&](int64_t batch, const Ahead& ahead) {
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

void measure_updates(
    const Workload& workload,
    const at::Tensor& ids,
    float* rows,
    const Loops& loops,
    int64_t repetitions,
    MachineLimits& limits) {
  const int64_t per_table = workload.ids_per_table();
  const int64_t table_size = workload.rows * workload.dim;
  std::array<at::Tensor, 2> slots;
  for (at::Tensor& slot : slots) {
    slot =
        tessera::allocate_rows(workload.tables * workload.rows, workload.dim);
    slot.fill_(0.1);
  }
  const at::Tensor gradients =
      at::randn({workload.tables * workload.batch, workload.dim});
  const int64_t* all = ids.const_data_ptr<int64_t>();
  std::vector<Groups> groups;
  for (int64_t i = 0; i < ids.size(0) * workload.tables; ++i) {
    groups.push_back(group(all + i * per_table, per_table, workload.bag));
  }
  const int64_t bytes = workload.tables * per_table * row_bytes(workload);
  const int64_t parts = count_parts(workload, 4 * bytes);
  auto* first_slots = slots[0].mutable_data_ptr<float>();
  auto* second_slots = slots[1].mutable_data_ptr<float>();
  const float* gradient = gradients.const_data_ptr<float>();
  const auto measure = [&](void (*update)(const UpdateTask&)) {
    return best_median(
        ids.size(0), repetitions, [&](int64_t batch, const Ahead& ahead) {
          run_tasks(workload.tables * parts, bytes, [&](int64_t task) {
            const int64_t table = task / parts;
            const Groups& of_table = groups[batch * workload.tables + table];
            const auto count = static_cast<int64_t>(of_table.rows.size());
            update(
                {.table = rows + table * table_size,
                 .slots =
                     {first_slots + table * table_size,
                      second_slots + table * table_size},
                 .gradients = gradient + table * workload.batch * workload.dim,
                 .groups = of_table,
                 .begin = count * (task % parts) / parts,
                 .end = count * (task % parts + 1) / parts,
                 .ahead = ahead});
          });
        });
  };
  limits.sgd_update_ms = measure(loops.update_sgd);
  limits.adagrad_update_ms = measure(loops.update_adagrad);
  limits.adam_update_ms = measure(loops.update_adam);
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
  measure_updates(workload, ids, rows, *loops, repetitions, limits);
  return limits;
}
