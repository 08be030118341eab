// SPDX-License-Identifier: Apache-2.0
// memory_plan(), and the check of a layer's constructor.
#include <tessera/engine/embedding_engine.h>
#include <tessera/layers/partial_tpu_embedding.h>

#include <sys/resource.h>
#include <unistd.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::memory_plan_test {

constexpr int64_t kRows = 1000;
constexpr int64_t kDim = 16;

TPUEmbeddingOptions options_of(
    TableConfig config,
    optim::OptimizerSpec optimizer = optim::Adagrad{}) {
  config.name = "items";
  config.dim = kDim;
  config.vocabulary_size = config.keys ? 0 : kRows;
  return {
      .features = features_of({{"item", make_table(config)}}),
      .optimizer = std::move(optimizer)};
}

MemoryPlan::Table plan_of(
    const TableConfig& config,
    const optim::OptimizerSpec& optimizer = optim::Adagrad{}) {
  return memory_plan(options_of(config, optimizer)).tables.at(0);
}

/// Lowers RLIMIT_AS to what the process has now and `bytes` more.
class AddressSpace {
 public:
  explicit AddressSpace(int64_t bytes) {
    ::getrlimit(RLIMIT_AS, &before_);
    int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    limit = pages * ::sysconf(_SC_PAGESIZE) + bytes;
    rlimit now = before_;
    now.rlim_cur = static_cast<rlim_t>(limit);
    ::setrlimit(RLIMIT_AS, &now);
  }
  AddressSpace(const AddressSpace&) = delete;
  AddressSpace& operator=(const AddressSpace&) = delete;
  ~AddressSpace() {
    ::setrlimit(RLIMIT_AS, &before_);
  }

  int64_t limit = 0;

 private:
  rlimit before_{};
};

TEST(MemoryPlanTest, CountsRowsAndSlots) {
  EXPECT_EQ(plan_of({}).rows, kRows * kDim * 4);
  EXPECT_EQ(plan_of({}).slots, kRows * kDim * 4);
  EXPECT_EQ(plan_of({}).bytes(), kRows * kDim * 8);
  EXPECT_FALSE(plan_of({}).is_lazy);
  EXPECT_EQ(plan_of({.dtype = at::kBFloat16}).rows, kRows * kDim * 2);
  EXPECT_EQ(plan_of({.dtype = at::kChar}).rows, kRows * (kDim + 2));
  EXPECT_EQ(plan_of({}, optim::RowWiseAdagrad{}).slots, kRows * 4);
  EXPECT_EQ(plan_of({}, optim::Adam{}).slots, kRows * kDim * 8);
  EXPECT_EQ(
      plan_of({.slot_dtype = at::kBFloat16}, optim::Adam{}).slots,
      kRows * kDim * 4);
  EXPECT_EQ(
      plan_of({.slot_dtype = at::kBFloat16}, optim::RowWiseAdagrad{}).slots,
      kRows * 4);
  EXPECT_EQ(plan_of({}, optim::SGD{}).slots, 0);
  EXPECT_EQ(plan_of({.trainable = false}).slots, 0);
}

TEST(MemoryPlanTest, EqualsTheMemoryOfTheLayer) {
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kChar}) {
    const TPUEmbeddingOptions options =
        options_of({.dtype = dtype, .slot_dtype = at::kBFloat16});
    const MemoryPlan plan = memory_plan(options);
    const std::string summary = TPUEmbedding(options)->summary();
    const double mebibytes = static_cast<double>(plan.bytes()) / 1024 / 1024;
    EXPECT_CONTAINS(summary, fmt::format("{:.1f} MiB", mebibytes));
    EXPECT_CONTAINS(summary, "accumulators in bfloat16");
  }
}

TEST(MemoryPlanTest, HostTablesHaveNoSlots) {
  TPUEmbeddingOptions options = options_of({});
  options.strategy = Strategy::host();
  EXPECT_EQ(memory_plan(options).tables[0].slots, 0);
}

TEST(MemoryPlanTest, CountsABatch) {
  const MemoryPlan plan = memory_plan(options_of({}), 100);
  EXPECT_EQ(plan.step, 2 * 100 * kDim * 4);
  EXPECT_EQ(plan.bytes(), plan.step + plan.tables[0].bytes());
  EXPECT_VALUE_ERROR(
      memory_plan(options_of({}), -1), "batch_size must be >= 0, but got -1");
  EXPECT_VALUE_ERROR(memory_plan({}), "at least one feature");
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(memory_plan(options_of({}), kMost).bytes(), kMost);
}

TEST(MemoryPlanTest, KeyTablesAreLazyUnlessPreallocated) {
  const MemoryPlan lazy =
      memory_plan(options_of({.keys = DynamicKeys{.capacity = kRows}}));
  EXPECT_TRUE(lazy.tables[0].is_lazy);
  EXPECT_EQ(lazy.bytes(), 0);
  EXPECT_EQ(lazy.lazy_bytes(), lazy.tables[0].bytes());
  EXPECT_GE(lazy.tables[0].rows, kRows * kDim * 4);
  EXPECT_GT(lazy.tables[0].keys, kRows * 8);
  const MemoryPlan taken = memory_plan(options_of(
      {.keys = DynamicKeys{.capacity = kRows, .preallocate = true}}));
  EXPECT_EQ(taken.lazy_bytes(), 0);
  EXPECT_EQ(taken.bytes(), lazy.lazy_bytes());
}

TEST(MemoryPlanTest, CountsTheKeysByWhichNarrowRowsRound) {
  const auto keys_of = [](at::ScalarType dtype, bool stochastic) {
    return plan_of(
        {.dtype = dtype,
         .stochastic_rounding = stochastic,
         .keys = DynamicKeys{.capacity = kRows}});
  };
  const MemoryPlan::Table plan = keys_of(at::kChar, true);
  EXPECT_EQ(
      plan.keys - keys_of(at::kChar, false).keys, plan.rows / (kDim + 2) * 8);
}

TEST(MemoryPlanTest, TablesBeyondInt64AreRefused) {
  TableConfig config{.name = "items", .dim = 280'000'000};
  config.vocabulary_size = 4'000'000'000;
  const TPUEmbeddingOptions options{
      .features = features_of({{"item", make_table(config)}}),
      .optimizer = optim::Adam{}};
  EXPECT_EQ(memory_plan(options).bytes(), std::numeric_limits<int64_t>::max());
  EXPECT_VALUE_ERROR(TPUEmbedding{options}, "the tables need");
}

TEST(MemoryPlanTest, APartialEmbeddingPassesTheOptionOn) {
  PartialTPUEmbeddingOptions options;
  options.features = options_of({}).features;
  options.optimizer = optim::Adagrad{};
  options.check_memory = false;
  EXPECT_NO_THROW(PartialTPUEmbedding{options});
}

TEST(MemoryPlanTest, TextNamesTheTables) {
  const MemoryPlan plan{
      .tables =
          {{.name = "users", .rows = 1 << 20, .slots = 1 << 19},
           {.name = "items",
            .rows = 1 << 21,
            .keys = 1 << 20,
            .is_lazy = true}},
      .step = 1 << 18,
      .limit = int64_t{1} << 30,
      .limit_name = "RLIMIT_AS"};
  EXPECT_EQ(
      to_string(plan),
      "table 'users': 1.5 MiB (rows 1.0 MiB, slots 0.5 MiB)\n"
      "table 'items': 3.0 MiB (rows 2.0 MiB, slots 0.0 MiB, keys 1.0 MiB, "
      "taken as keys come)\n"
      "a batch: 0.2 MiB\n"
      "1.8 MiB, and up to 3.0 MiB more as keys come, of 1024.0 MiB "
      "(RLIMIT_AS)\n");
}

TEST(MemoryPlanTest, ALayerThatCanNotFitIsRefusedBeforeItTakesMemory) {
  constexpr int64_t kGibibyte = int64_t{1} << 30;
  const AddressSpace space(kGibibyte);
  if (memory_plan(options_of({})).limit_name != "RLIMIT_AS") {
    GTEST_SKIP()
        << "the machine has less memory than the process has addresses";
  }
  TableConfig config{.name = "items", .dim = 1024};
  config.vocabulary_size = space.limit / 4096 + 1;
  TPUEmbeddingOptions options{
      .features = features_of({{"item", make_table(config)}})};
  EXPECT_EQ(memory_plan(options).limit, space.limit);
  EXPECT_VALUE_ERROR(
      TPUEmbedding{options}, "[TPUEmbeddingOptions] the tables need");
  EXPECT_VALUE_ERROR(TPUEmbedding{options}, "but RLIMIT_AS is");
  EXPECT_VALUE_ERROR(TPUEmbedding{options}, "table 'items'");
  EXPECT_VALUE_ERROR(
      EmbeddingEngine(EmbeddingEngineOptions{.features = options.features}),
      "[EmbeddingEngineOptions] the tables need");
  // Without the check, the allocation fails.
  options.check_memory = false;
  try {
    TPUEmbedding layer(options);
    FAIL() << "expected an error";
  } catch (const c10::Error& error) {
    EXPECT_CONTAINS(
        std::string(error.what()), "but the system can't provide them");
  }
}

TEST(MemoryPlanTest, ATableThatMayGrowTooLargeGivesAWarning) {
  const TPUEmbeddingOptions options =
      options_of({.keys = DynamicKeys{.capacity = int64_t{1} << 31}});
  if (memory_plan(options).lazy_bytes() <= memory_plan(options).limit) {
    GTEST_SKIP() << "the machine has enough memory";
  }
  Warnings warnings;
  TPUEmbedding layer(options);
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_CONTAINS(warnings.texts[0], "with all their keys, the tables would");
}

}  // namespace tessera::test::memory_plan_test
