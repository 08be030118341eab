// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/distributed/sharded_strategy.h>
#include <tessera/engine/table_module.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/sgd.h>

#include "packages/distributed/tests/rank_test_main.h"
#include "src/common/rank_group.h"
#include "src/engine/embedding_state.h"
#include "src/tables/key_table_rows.h"
#include "tests/features/feature_builders.h"
#include "tests/temporary_folder.h"

// Skips the test if there is only one rank.
#define NEEDS_TWO_RANKS()                       \
  if (::tessera::test::ranks() == 1) {          \
    GTEST_SKIP() << "the test needs two ranks"; \
  }

namespace tessera::test {

inline int64_t rank() {
  return backend().getRank();
}
inline int64_t ranks() {
  return backend().getSize();
}
inline bool is_last() {
  return rank() == ranks() - 1;
}

inline Strategy sharded(ShardingOptions options = {}) {
  return distributed::sharded_strategy(
      c10::intrusive_ptr<c10d::Backend>::unsafe_reclaim_from_nonowning(
          &backend()),
      std::move(options));
}

inline std::shared_ptr<RankGroup> group() {
  return std::get<Strategy::Sharded>(sharded().options()).ranks;
}

/// A folder of rank 0 that all ranks see.
class SharedFolder {
 public:
  SharedFolder() {
    path_ = group_->broadcast(Rendezvous::kReadRows, [&] {
      own_.emplace();
      return own_->path().string();
    });
  }
  // Waits until all ranks have finished with it.
  ~SharedFolder() {
    group_->barrier(Rendezvous::kReadRows);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::string operator/(const std::string& name) const {
    return path_ + "/" + name;
  }

 private:
  std::shared_ptr<RankGroup> group_ = group();
  std::optional<TemporaryFolder> own_;
  std::string path_;
};

inline const EmbeddingState& state_of(const TPUEmbedding& layer) {
  return TableModule::of(*layer)->state();
}

/// Compares the keys of this rank, and their rows, with those of a table that has all.
inline void expect_same_keys(const TableState& part, const TableState& all) {
  const KeyIndex& index = part.key_rows->index();
  const auto first = static_cast<uint32_t>(part.rows.numbers.first);
  std::vector<KeyEntry> expected;
  for (const KeyEntry& entry : all.key_rows->index().sorted_entries()) {
    if (index.owns(entry.key)) {
      expected.push_back(entry);
      expected.back().row -= first;
    }
  }
  EXPECT_EQ(index.sorted_entries(), expected);
  const auto sketch = all.key_rows->index().sketch();
  const auto own = index.sketch();
  EXPECT_TRUE(std::equal(
      own.begin(),
      own.end(),
      sketch.begin() +
          static_cast<std::ptrdiff_t>(
              sketch.size() * index.owned().begin /
              index.partitions().count())));
}

/// Compares local rows and slots with those of a layer that has all of them.
inline void expect_same_state(
    const TPUEmbedding& layer,
    const TPUEmbedding& whole,
    double tolerance = 1.0) {
  const EmbeddingState& part = state_of(layer);
  const EmbeddingState& all = state_of(whole);
  EXPECT_EQ(part.passes, all.passes);
  for (size_t i = 0; i < part.tables.size(); ++i) {
    SCOPED_TRACE(part.tables[i].name);
    const LocalRows& rows = part.tables[i].rows;
    const bool is_float = part.tables[i].config->dtype == at::kFloat;
    const auto compare = [&](const at::Tensor& local, const at::Tensor& full) {
      const at::Tensor expected = rows.count == 0
          ? full.slice(0, 0, 0)
          : full.slice(
                0,
                rows.numbers.first,
                rows.numbers[rows.count - 1] + 1,
                rows.numbers.step);
      expect_close(
          local,
          expected,
          tolerance * (is_float ? 2e-4 : 2e-2),
          tolerance * (is_float ? 2e-5 : 2e-2));
    };
    if (part.tables[i].key_rows != nullptr) {
      expect_same_keys(part.tables[i], all.tables[i]);
    }
    compare(part.tables[i].parameters, all.tables[i].parameters);
    for (size_t slot = 0; slot < part.tables[i].slots.size(); ++slot) {
      SCOPED_TRACE(part.tables[i].slots[slot].name);
      compare(
          part.tables[i].slots[slot].values, all.tables[i].slots[slot].values);
    }
  }
}

inline constexpr int64_t kVocab = 11;
inline constexpr int64_t kDim = 3;

inline TPUEmbeddingOptions small_options(
    Strategy strategy,
    optim::OptimizerSpec optimizer = optim::SGD{.learning_rate = 1.0},
    int64_t rows = kVocab) {
  return {
      .features =
          {{"user",
            feature_of(
                {.name = "users",
                 .vocabulary_size = rows,
                 .dim = kDim,
                 .combiner = Combiner::kSum})}},
      .optimizer = std::move(optimizer),
      .strategy = std::move(strategy)};
}

inline at::Tensor all_rows(const TPUEmbedding& layer) {
  return layer->read_rows("users", 0, kVocab);
}

inline at::Tensor activation_of(TPUEmbedding& layer, const at::Tensor& ids) {
  return layer->forward({{"user", ids}})["user"];
}

inline const std::vector<TablePlacement> kPlacements{
    TablePlacement::row_wise(),
    TablePlacement::row_wise(RowSplit::kMod),
    TablePlacement::data_parallel(),
    TablePlacement::table_wise(0)};

inline Strategy placed(const TablePlacement& placement) {
  return sharded({.placement = {{"users", placement}}});
}

/// How this rank reports an error of the last rank.
inline std::string reported(const std::string& message) {
  return is_last()
      ? message
      : "since rank " + std::to_string(ranks() - 1) + " raised: " + message;
}

}  // namespace tessera::test
