// SPDX-License-Identifier: Apache-2.0
#include "tests/benchmarks/embedding_workload.h"

#include <tessera/formats/npy.h>
#include <tessera/tables/table_config.h>

#include "src/common/check.h"
#include "tests/benchmarks/torch_benchmark.h"

std::vector<Workload> read_workloads(const std::string& path) {
  std::ifstream stream(path);
  TESSERA_CHECK_VALUE(
      stream.is_open(),
      "[benchmark] can't open the workloads '{}'. Name an existing JSON file.",
      path);
  std::vector<Workload> workloads;
  for (const auto& json : nlohmann::json::parse(stream)) {
    workloads.push_back(
        {.name = json.at("name"),
         .tables = json.at("tables"),
         .rows = json.at("rows"),
         .dim = json.at("dim"),
         .batch = json.at("batch"),
         .bag = json.at("bag"),
         .is_zipf = json.at("ids") == "zipf",
         .skew = json.value("skew", 1.0),
         .dtype = tessera::dtype_from_string(json.value("dtype", "float32")),
         .slot_dtype =
             tessera::dtype_from_string(json.value("slot_dtype", "float32"))});
  }
  return workloads;
}

at::Tensor draw_ids(const Workload& workload, int64_t batches, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  const auto rows = static_cast<double>(workload.rows);
  const at::Tensor ids = at::empty(
      {batches, workload.tables, workload.ids_per_table()}, at::kLong);
  for (int64_t table = 0; table < workload.tables; ++table) {
    std::vector<int64_t> row_of_rank(workload.rows);
    std::iota(row_of_rank.begin(), row_of_rank.end(), 0);
    std::shuffle(row_of_rank.begin(), row_of_rank.end(), random);
    for (int64_t batch = 0; batch < batches; ++batch) {
      int64_t* data = ids[batch][table].mutable_data_ptr<int64_t>();
      for (int64_t i = 0; i < workload.ids_per_table(); ++i) {
        const double u = uniform(random);
        const auto rank = static_cast<int64_t>(
            workload.is_zipf ? std::pow(rows, std::pow(u, workload.skew)) - 1.0
                             : u * rows);
        data[i] = row_of_rank[std::clamp<int64_t>(rank, 0, workload.rows - 1)];
      }
    }
  }
  return ids;
}

at::Tensor read_ids(const Workload& workload, const std::string& directory) {
  const std::string path = directory + "/" + workload.name + ".npy";
  const at::Tensor ids = tessera::load_npy(path);
  TESSERA_CHECK_VALUE(
      ids.dim() == 3 && ids.size(0) >= 1 && ids.size(1) == workload.tables &&
          ids.size(2) == workload.ids_per_table() &&
          ids.scalar_type() == at::kLong,
      "[benchmark] '{}' must have int64 ids [batches, {}, {}], but has {} {}.",
      path,
      workload.tables,
      workload.ids_per_table(),
      c10::toString(ids.scalar_type()),
      ids.sizes());
  return ids.clone();  // in memory, not in the pages of a file
}
