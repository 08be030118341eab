// SPDX-License-Identifier: Apache-2.0
#include "src/engine/lookup.h"

#include "src/common/active_kernels.h"
#include "src/common/parallel.h"
#include "src/common/step_memory.h"
#include "src/kernels/prefetch.h"
#include "src/tables/combiner_rule.h"
#include "src/tables/table_state.h"

#include <ATen/core/functional.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

namespace tessera {

namespace {

// The bytes of rows in one lookup task: up to 50 us of work, or 12 us if many threads
// share a small batch.
constexpr int64_t kMaxTaskBytes = int64_t{256} * 1024;
constexpr int64_t kMinTaskBytes = int64_t{64} * 1024;

struct LookupTask {
  size_t feature = 0;
  int64_t begin_bag = 0;
  int64_t end_bag = 0;
};

// The bytes that a lookup reads and writes, counted as if tables were float32.
int64_t bytes_of(const IdBags& bags) {
  const int64_t rows = bags.nnz() + bags.bags;
  return rows * bags.dim * static_cast<int64_t>(sizeof(float));
}

// Splits a feature's bags into tasks of about equal traffic.
void add_tasks(
    size_t feature,
    const IdBags& bags,
    int64_t task_bytes,
    std::vector<LookupTask>& tasks) {
  const int64_t parts =
      std::clamp<int64_t>(bytes_of(bags) / task_bytes, 1, bags.bags + 1);
  int64_t begin = 0;
  for (int64_t part = 1; part <= parts && begin < bags.bags; ++part) {
    int64_t end = bags.bags;
    if (part < parts && bags.offsets.empty()) {
      end = bags.bags * part / parts;
    } else if (part < parts) {
      const int64_t position = bags.nnz() * part / parts;
      const auto found =
          std::upper_bound(bags.offsets.begin(), bags.offsets.end(), position);
      end = std::clamp<int64_t>(
          found - bags.offsets.begin() - 1, begin, bags.bags);
    }
    if (end > begin) {
      tasks.push_back({feature, begin, end});
      begin = end;
    }
  }
}

void prefetch_rows(const IdBags& bags, const LookupTable& table) {
  const kernels::StoredRows rows = stored_rows(table.rows);
  const int64_t row_bytes = kernels::bytes_of_row(rows.storage, rows.dim);
  for (const uint32_t id : bags.ids) {
    kernels::prefetch_row(rows.data, row_bytes, id);
  }
}

void combine(
    const IdBags& feature,
    const LookupTable& table,
    const at::Tensor& activation,
    int64_t begin_bag,
    int64_t end_bag) {
  active_kernels().combine(
      {.table = stored_rows(table.rows),
       .ids = feature.ids.data(),
       .nnz = feature.nnz(),
       .offsets = feature.offsets.empty() ? nullptr : feature.offsets.data(),
       .weights = feature.weights.empty() ? nullptr : feature.weights.data(),
       .scales = feature.scales.empty() ? nullptr : feature.scales.data(),
       .buckets = table.buckets,
       .out = activation.mutable_data_ptr<float>(),
       .begin_bag = begin_bag,
       .end_bag = end_bag});
}

// A small batch reads only a few rows of each table, and the lookup would wait for one
// table after the other. All rows are therefore prefetched while the activations are
// allocated, before the first row is used.
std::vector<at::Tensor> lookup_small_batch(
    const std::vector<IdBags>& bags,
    const std::vector<LookupTable>& tables) {
  std::vector<at::Tensor> activations;
  activations.reserve(bags.size());
  for (size_t i = 0; i < bags.size(); ++i) {
    prefetch_rows(bags[i], tables[i]);
    activations.push_back(empty_in_step_memory(bags[i].activation_shape()));
  }
  for (size_t i = 0; i < bags.size(); ++i) {
    if (bags[i].bags > 0) {
      combine(bags[i], tables[i], activations[i], 0, bags[i].bags);
    }
  }
  return activations;
}

}  // namespace

std::vector<at::Tensor> lookup(
    const std::vector<IdBags>& bags,
    const std::vector<LookupTable>& tables) {
  int64_t bytes = 0;
  for (const IdBags& feature : bags) {
    bytes += bytes_of(feature);
  }
  if (bytes < kParallelBytes) {
    return lookup_small_batch(bags, tables);
  }
  // If the activations shared one storage, torch::save() of one of them would write all,
  // and resize_() could overwrite its neighbour.
  std::vector<at::Tensor> activations =
      c10::fmap(bags, [](const IdBags& feature) {
        return empty_in_step_memory(feature.activation_shape());
      });
  std::vector<LookupTask> tasks;
  tasks.reserve(bags.size());
  const int64_t task_bytes =
      task_size(bytes, bytes, kMinTaskBytes, kMaxTaskBytes);
  for (size_t i = 0; i < bags.size(); ++i) {
    add_tasks(i, bags[i], task_bytes, tasks);
  }
  run_tasks(std::ssize(tasks), bytes, [&](int64_t index) {
    const LookupTask& task = tasks[index];
    combine(
        bags[task.feature],
        tables[task.feature],
        activations[task.feature],
        task.begin_bag,
        task.end_bag);
  });
  return activations;
}

at::Tensor gather_rows(
    const IdBags& bags,
    const IdBags& found,
    const LookupTable& table) {
  at::Tensor rows = at::zeros({bags.nnz(), bags.dim}, at::kFloat);
  auto* out = rows.mutable_data_ptr<float>();
  const kernels::KernelTable& kernels = active_kernels();
  int64_t next = 0;  // position in `found`
  for (int64_t begin = 0; begin < bags.nnz();) {
    int64_t end = begin;
    while (end < bags.nnz() && bags.ids[end] != kZeroRow) {
      ++end;
    }
    kernels.combine(
        {.table = stored_rows(table.rows),
         .ids = found.ids.data() + next,
         .nnz = end - begin,
         .buckets = table.buckets,
         .out = out + begin * bags.dim,
         .end_bag = end - begin});
    next += end - begin;
    begin = end + 1;  // skips the row of zeros
  }
  return rows;
}

at::Tensor weight_gradient(
    const IdBags& bags,
    const at::Tensor& rows,
    const at::Tensor& gradient,
    int64_t count) {
  at::Tensor result = at::zeros({count}, at::kFloat);
  float* out = result.mutable_data_ptr<float>();
  const at::Tensor contiguous = gradient.resolve_neg().contiguous();
  const float* gradients = contiguous.const_data_ptr<float>();
  const float* x = rows.const_data_ptr<float>();
  for (int64_t bag = 0; bag < bags.bags; ++bag) {
    const float* g = gradients + bag * bags.dim;
    const double s = bags.scales.empty() ? 1.0 : bags.scales[bag];
    double weighted = 0.0;
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      const double dot =
          std::inner_product(g, g + bags.dim, x + i * bags.dim, 0.0);
      out[bags.position(i)] = static_cast<float>(s * dot);
      weighted += bags.weights[i] * dot;
    }
    if (!is_divided(bags.combiner)) {
      continue;
    }
    for (int64_t i = bags.begin(bag); i < bags.end(bag); ++i) {
      const double factor =
          combiner_weight_factor(bags.combiner, bags.weights[i], s);
      out[bags.position(i)] -= static_cast<float>(factor * weighted);
    }
  }
  return result;
}

}  // namespace tessera
