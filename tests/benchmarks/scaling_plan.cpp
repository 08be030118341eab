// SPDX-License-Identifier: Apache-2.0
// Applies the cost model of docs/distributed.md to tables that are too large for one machine:
// those of MLPerf's DLRM-v2, with the number of rows scaled to the size in --terabytes.
#include <tessera/distributed/sharding_plan.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "tests/benchmarks/torch_benchmark.h"

namespace {

using namespace tessera;

struct Options : BenchmarkOptions {
  std::vector<int64_t>& hosts = option<std::vector<int64_t>>(
      "--hosts",
      {8, 64, 512},
      "",
      CLI::PositiveNumber);
  int64_t& global_batch = integer("--global-batch", 65'536);
  double& terabytes =
      real("--terabytes", 1.0, "of tables and slots", CLI::Range(0.2, 1000.0));
  double& gbit =
      real("--gbit", 100.0, "of a host's link, each way", CLI::PositiveNumber);
  double& latency_us = real("--latency-us", 20.0, "per exchange");
  double& message_us =
      real("--message-us", 3.0, "per message that a host sends");
  double& cores = real("--cores", 32.0, "per host", CLI::PositiveNumber);
};

// The time on one core for an id of 128 floats.
constexpr double kLookupNs = 150.0;
constexpr double kUpdateNs = 330.0;
constexpr int64_t kDim = 128;

// The rows of the 26 tables, and their ids per example.
// Source:  MLPerf Training, DLRM-DCNv2 reference.
struct Table {
  int64_t rows;
  int64_t hots;
};
const std::vector<Table> kTables{
    {40'000'000, 3},  {39'060, 2},      {17'295, 1},
    {7'424, 2},       {20'265, 6},      {3, 1},
    {7'122, 1},       {1'543, 1},       {63, 1},
    {40'000'000, 7},  {3'067'956, 3},   {405'282, 8},
    {10, 1},          {2'209, 6},       {11'938, 9},
    {155, 5},         {4, 1},           {976, 1},
    {14, 1},          {40'000'000, 12}, {40'000'000, 100},
    {40'000'000, 27}, {590'152, 10},    {12'973, 3},
    {108, 1},         {36, 1}};

struct Cost {
  distributed::ShardingPlan plan;
  double exchange_ms = 0.0;  // exchange of ids and rows
  double gradients_ms = 0.0;
  double work_ms = 0.0;
};

Cost cost_of(
    const Nest<FeatureConfig>& features,
    const std::map<std::string, double>& bag_lengths,
    int64_t hosts,
    const Options& options) {
  Cost cost{
      .plan = distributed::plan_sharding(
          features,
          optim::Adagrad{},
          {.ranks = hosts,
           .batch_size = std::max<int64_t>(1, options.global_batch / hosts),
           .bag_lengths = bag_lengths,
           .split = RowSplit::kMod})};
  double ids = 0.0;
  for (const auto& [path, length] : bag_lengths) {
    ids += length * static_cast<double>(options.global_batch) /
        static_cast<double>(hosts);
  }
  // Half of what is sent are rows, half gradients.
  const double half_ms =
      hosts == 1 ? 0.0 : 8e-6 * cost.plan.bytes_sent / options.gbit / 2.0;
  // Two messages to every host in a lookup, ids and rows, and two in an update.
  const double message_ms =
      2e-3 * options.message_us * static_cast<double>(hosts - 1);
  const double latency_ms = hosts == 1 ? 0.0 : options.latency_us / 1e3;
  cost.exchange_ms = 2.0 * latency_ms + message_ms + half_ms;
  cost.gradients_ms = latency_ms + message_ms + half_ms;
  cost.work_ms = 1e-6 * ids * (kLookupNs + kUpdateNs) / options.cores;
  return cost;
}

void print(const Options& options) {
  int64_t rows = 0;
  for (const Table& table : kTables) {
    rows += table.rows;
  }
  constexpr double kRowBytes = 2.0 * kDim * sizeof(float);
  const double scale =
      options.terabytes * 1e12 / (static_cast<double>(rows) * kRowBytes);
  Nest<FeatureConfig>::List features;
  std::map<std::string, double> bag_lengths;
  for (const Table& table : kTables) {
    bag_lengths[std::to_string(features.size())] =
        static_cast<double>(table.hots);
    features.emplace_back(FeatureConfig{
        .table = make_table(
            {.vocabulary_size = table.rows < 1'000'000
                 ? table.rows
                 : static_cast<int64_t>(
                       static_cast<double>(table.rows) * scale),
             .dim = kDim})});
  }
  std::cout << "hosts  batch/host  GB/host  MB sent  exchange ms  gradients ms "
               " work ms  examples/s\n";
  for (const int64_t hosts : options.hosts) {
    const Cost cost = cost_of(
        Nest<FeatureConfig>::list(features), bag_lengths, hosts, options);
    const auto bytes = static_cast<double>(*std::max_element(
        cost.plan.rank_bytes.begin(), cost.plan.rank_bytes.end()));
    // The exchange of the next batch overlaps with the work on this one.
    const double step_ms =
        cost.gradients_ms + std::max(cost.work_ms, cost.exchange_ms);
    std::printf(
        "%5lld  %10lld  %7.1f  %7.1f  %11.2f  %12.2f  %7.2f  %10.0f\n",
        static_cast<long long>(hosts),
        static_cast<long long>(options.global_batch / hosts),
        bytes / 1e9,
        cost.plan.bytes_sent / 1e6,
        cost.exchange_ms,
        cost.gradients_ms,
        cost.work_ms,
        1e3 * static_cast<double>(options.global_batch) / step_ms);
  }
  std::fflush(stdout);
  std::cout << "\n"
            << cost_of(
                   Nest<FeatureConfig>::list(features),
                   bag_lengths,
                   options.hosts.back(),
                   options)
                   .plan.to_string();
}

}  // namespace

TESSERA_BENCHMARK(
    "Plans DLRM-v2's tables over hosts and estimates their steps.",
    print)
