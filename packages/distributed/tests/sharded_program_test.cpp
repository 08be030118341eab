// SPDX-License-Identifier: Apache-2.0
// Sharded layers in a program: other calls between theirs, loading and saving, and
// failures on one rank alone.
#include <tessera/engine/sum_gradients.h>
#include <tessera/export/export_torchscript.h>
#include <tessera/layers/combined.h>
#include <tessera/layers/prefetch.h>
#include <tessera/optim/optimizers.h>
#include <tessera/serialization/checkpoint.h>

#include "packages/distributed/tests/sharded_layers.h"
#include "serialization/checkpoint_writer.h"
#include "serialization/disk.h"
#include "tests/layers/layer_test_util.h"

namespace tessera::sharded_program_test {

// Row 1, which all ranks use, and a row that only this rank uses.
at::Tensor own_ids() {
  return int64s({1, 2 + rank()});
}

at::Tensor ids_of_all() {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < ranks(); ++i) {
    ids.push_back(1);
    ids.push_back(2 + i);
  }
  return at::tensor(ids, at::kLong);
}

void train(TPUEmbedding& layer, const at::Tensor& ids, int steps) {
  for (int step = 0; step < steps; ++step) {
    (activation_of(layer, ids) - 0.5).square().sum().backward();
  }
}

// --- beside a layer --------------------------------------------------------------

TEST(ShardedProgramTest, LookupsInTheBackgroundKeepTheirOrder) {
  const Strategy strategy = sharded();
  TPUEmbedding a(small_options(strategy));
  TPUEmbedding b(small_options(strategy));
  // A second strategy on the same backend shares the group.
  TPUEmbedding c(small_options(sharded()));
  EXPECT_EQ(state_of(a).ranks, state_of(c).ranks);
  const SharedFolder folder;
  const at::Tensor dense = at::zeros({3}).requires_grad_(true);
  for (int step = 0; step < 20; ++step) {
    auto of_a = a->begin_forward({{"user", own_ids()}});
    auto of_b = b->begin_forward({{"user", own_ids()}});
    auto of_c = c->begin_forward({{"user", own_ids()}});
    {
      const at::NoGradGuard no_grad;
      activation_of(a, own_ids());
    }
    dense.mutable_grad() = at::ones({3});
    distributed::sum_gradients({dense}, strategy);
    EXPECT_EQ(dense.grad()[0].item<float>(), static_cast<float>(ranks()));
    if (step == 10) {
      a->save_checkpoint(folder / "run");
    }
    const auto loss = a->finish_forward(std::move(of_a))["user"].sum() +
        b->finish_forward(std::move(of_b))["user"].sum() +
        c->finish_forward(std::move(of_c))["user"].sum();
    loss.backward();
  }
  EXPECT_TRUE(at::equal(all_rows(a), all_rows(b)));
  EXPECT_TRUE(at::equal(all_rows(a), all_rows(c)));
}

// Errors distinguish layers that look the same.
TEST(ShardedProgramTest, NamesAnotherLayerOnOneRank) {
  NEEDS_TWO_RANKS();
  const Strategy strategy = sharded();
  TPUEmbedding a(small_options(strategy));
  TPUEmbedding b(small_options(strategy));
  TPUEmbedding& own = is_last() ? a : b;
  const SharedFolder folder;
  const std::string text = " of sharded layer ";
  EXPECT_TORCH_ERROR((activation_of(own, own_ids())), text);
  const at::Tensor of_a = activation_of(a, own_ids()).sum();
  const at::Tensor of_b = activation_of(b, own_ids()).sum();
  EXPECT_TORCH_ERROR(((is_last() ? of_a : of_b).backward()), text);
  EXPECT_TORCH_ERROR((own->save_checkpoint(folder / "run")), text);
  EXPECT_TORCH_ERROR((all_rows(own)), text);
  EXPECT_VALUE_ERROR(
      (a->read_rows("users", is_last() ? 1 : 0, 5)), "reads other rows");
  train(a, own_ids(), 1);
  EXPECT_EQ(a->iterations(), 1);
  EXPECT_EQ(b->iterations(), 0);
}

TEST(ShardedProgramTest, ABadIdInAPrefetchedBatchRaisesOnAll) {
  TPUEmbedding layer(small_options(sharded()));
  const std::vector<at::Tensor> batches{
      own_ids(), int64s({1, is_last() ? kVocab : 3}), own_ids()};
  int64_t seen = 0;
  const auto run = [&] {
    for (auto& item : prefetch(batches, layer, [](const at::Tensor& ids) {
           return Features{{"user", ids}};
         })) {
      item.activations["user"].sum().backward();
      ++seen;
    }
  };
  EXPECT_INDEX_ERROR(
      (run()), reported("[feature 'user'] table 'users' has ids in"));
  EXPECT_EQ(seen, 1);
  train(layer, own_ids(), 1);
  EXPECT_EQ(layer->iterations(), 2);
}

TEST(ShardedProgramTest, GradientsAreAccumulatedOverPasses) {
  const optim::SGD optimizer{
      .learning_rate = 0.1, .gradient_accumulation_steps = 2};
  for (const TablePlacement& placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    TPUEmbedding one(small_options(Strategy::fused(), optimizer));
    TPUEmbedding shard(small_options(placed(placement), optimizer));
    train(one, ids_of_all(), 5);
    train(shard, own_ids(), 5);
    expect_same_state(shard, one);
  }
}

// The checkpoint is saved in the middle of an accumulation, and any placement loads it.
TEST(ShardedProgramTest, AnAccumulationContinuesFromACheckpoint) {
  const optim::Adam optimizer{
      .learning_rate = 0.1,
      .bias_correction = true,
      .gradient_accumulation_steps = 3};
  const SharedFolder folder;
  TPUEmbedding one(small_options(Strategy::fused(), optimizer));
  train(one, ids_of_all(), 8);
  for (const TablePlacement& from : kPlacements) {
    const std::string run = folder / to_string(from);
    TPUEmbedding uninterrupted(small_options(placed(from), optimizer));
    train(uninterrupted, own_ids(), 4);
    uninterrupted->save_checkpoint(run, {.full_every = 5});
    train(uninterrupted, own_ids(), 1);
    uninterrupted->save_checkpoint(run, {.full_every = 5});
    train(uninterrupted, own_ids(), 3);
    EXPECT_EQ(uninterrupted->iterations(), 2);
    for (const TablePlacement& to : kPlacements) {
      SCOPED_TRACE(to_string(from) + " to " + to_string(to));
      TPUEmbedding resumed(small_options(placed(to), optimizer));
      train(resumed, own_ids(), 1);
      resumed->load_checkpoint(run);
      EXPECT_EQ(resumed->iterations(), 1);
      train(resumed, own_ids(), 3);
      if (from == to) {
        EXPECT_TRUE(at::equal(all_rows(resumed), all_rows(uninterrupted)));
      }
      expect_same_state(resumed, one);
    }
  }
}

TEST(ShardedProgramTest, AnArchiveOfAnAccumulationLoadsIntoShards) {
  const optim::Adagrad optimizer{
      .learning_rate = 0.1, .gradient_accumulation_steps = 3};
  TPUEmbedding one(small_options(Strategy::fused(), optimizer));
  train(one, ids_of_all(), 5);
  const std::string bytes = saved(one);
  train(one, ids_of_all(), 2);
  for (const TablePlacement& placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    TPUEmbedding shard(small_options(placed(placement), optimizer));
    load_bytes(shard, bytes);
    train(shard, own_ids(), 2);
    expect_same_state(shard, one);
  }
}

TEST(ShardedProgramTest, ACustomRuleIsNotCalledWithoutRows) {
  const auto rule = optim::CustomRule("last", [](optim::CustomRows& rows) {
    TORCH_CHECK_VALUE(rows.weights.size(0) > 0, "no rows");
    rows.weights.sub_(rows.gradients, rows.learning_rate);
  });
  const optim::CustomOptimizer optimizer{.learning_rate = 0.1, .rule = rule};
  TPUEmbedding one(small_options(Strategy::fused(), optimizer));
  TPUEmbedding shard(
      small_options(placed(TablePlacement::table_wise(0)), optimizer));
  train(one, ids_of_all(), 2);
  train(shard, own_ids(), 2);
  expect_same_state(shard, one);
}

TEST(ShardedProgramTest, SlotCreationGetsTheRowNumbersOfEachShard) {
  const optim::Adagrad optimizer{
      .learning_rate = 0.1,
      .slot_creation =
          optim::SlotCreation("numbered", [](const optim::SlotRequest& slot) {
            at::Tensor values = at::zeros(slot.shape);
            for (int64_t i = 0; i < slot.shape[0]; ++i) {
              values[i].fill_(
                  static_cast<double>(slot.first_row + i * slot.row_step + 1));
            }
            return values;
          })};
  for (const TablePlacement& placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    expect_same_state(
        TPUEmbedding(small_options(placed(placement), optimizer)),
        TPUEmbedding(small_options(Strategy::fused(), optimizer)));
  }
}

// --- a Combined ------------------------------------------------------------------

struct Stepped {
  explicit Stepped(const Strategy& strategy, CombinedOptions options = {})
      : layer([&] {
          TPUEmbeddingOptions of_layer = small_options(strategy);
          of_layer.apply = Apply::kOnStep;
          return TPUEmbedding(of_layer);
        }()),
        dense(at::zeros({2}).requires_grad_(true)) {
    std::vector<at::Tensor> parameters = layer->parameters();
    parameters.push_back(dense);
    combined = std::make_unique<Combined>(
        torch::optim::SGD(parameters, 0.1),
        std::vector<TPUEmbedding>{layer},
        options);
  }

  TPUEmbedding layer;
  at::Tensor dense;
  std::unique_ptr<Combined> combined;
};

TEST(ShardedCombinedTest, ANonFiniteGradientOnOneRankSkipsTheStepOnAll) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool in_table : {true, false}) {
    SCOPED_TRACE(in_table);
    Stepped stepped(sharded(), {.non_finite = NonFinite::kSkip});
    const at::Tensor before = all_rows(stepped.layer);
    const float factor = in_table && is_last() ? nan : 1.0F;
    (activation_of(stepped.layer, own_ids()) * factor).sum().backward();
    stepped.dense.mutable_grad() =
        at::full({2}, !in_table && is_last() ? nan : 1.0F);
    stepped.combined->step();
    EXPECT_EQ(stepped.combined->skipped_steps(), 1);
    EXPECT_TRUE(at::equal(all_rows(stepped.layer), before));
    stepped.combined->zero_grad();
    activation_of(stepped.layer, own_ids()).sum().backward();
    stepped.combined->step();
    EXPECT_EQ(stepped.layer->iterations(), 1);
  }
}

TEST(ShardedCombinedTest, ANonFiniteGradientOnOneRankIsRefusedOnAll) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Apply apply : {Apply::kInBackward, Apply::kOnStep}) {
    for (const TablePlacement& placement : kPlacements) {
      TPUEmbeddingOptions options = small_options(placed(placement));
      options.apply = apply;
      options.non_finite_gradients = NonFiniteGradients::kRefuse;
      TPUEmbedding layer(options);
      std::optional<Combined> combined;
      if (apply == Apply::kOnStep) {
        combined.emplace(
            torch::optim::SGD(layer->parameters(), 0.1),
            std::vector<TPUEmbedding>{layer});
      }
      const at::Tensor before = all_rows(layer);
      const auto train = [&](float factor) {
        (activation_of(layer, own_ids()) * factor).sum().backward();
        if (combined) {
          combined->step();
          combined->zero_grad();
        }
      };
      const std::string text =
          "[table 'users', feature 'user'] the gradients of rows must be "
          "finite, but index 0 of the batch gives NaN";
      const std::string text_on_step = is_last()
          ? text
          : "[TPUEmbedding] the gradients of rows must be finite, but some of "
            "rank " +
              std::to_string(ranks() - 1);
      EXPECT_VALUE_ERROR(
          train(is_last() ? nan : 1.0F),
          combined ? text_on_step : reported(text));
      EXPECT_TRUE(at::equal(all_rows(layer), before));
      if (combined) {
        combined->zero_grad();
      }
      train(1.0F);
      EXPECT_EQ(layer->iterations(), 1);
    }
  }
}

TEST(ShardedCombinedTest, ClippingNeedsTheSameDenseGradients) {
  const Strategy strategy = placed(TablePlacement::data_parallel());
  Stepped stepped(strategy);
  activation_of(stepped.layer, own_ids()).sum().backward();
  stepped.dense.mutable_grad() =
      at::full({2}, static_cast<double>(10 * (rank() + 1)));
  if (ranks() > 1) {
    EXPECT_VALUE_ERROR(
        (stepped.combined->clip_grad_norm_(1.0)),
        "Call sum_gradients() on the dense parameters before clip_grad_norm_().");
  }
  distributed::sum_gradients({stepped.dense}, strategy);
  stepped.combined->clip_grad_norm_(1.0);
  stepped.combined->step();
  const EmbeddingState& state = state_of(stepped.layer);
  const at::Tensor& rows = state.tables[0].parameters;
  const std::string bytes = text_of(as_bytes(rows));
  for (const std::string& other : state.ranks->all_gather(bytes)) {
    EXPECT_TRUE(other == bytes);
  }
}

TEST(ShardedCombinedTest, ArgumentsAndPassesMustBeTheSame) {
  NEEDS_TWO_RANKS();
  Stepped stepped(sharded());
  const at::Tensor before = all_rows(stepped.layer);
  activation_of(stepped.layer, own_ids()).sum().backward();
  EXPECT_VALUE_ERROR(
      (stepped.combined->clip_grad_norm_(is_last() ? 1e-9 : 1000.0)),
      "clips or steps with other arguments");
  if (is_last()) {
    stepped.combined->zero_grad();
  }
  EXPECT_VALUE_ERROR(
      (stepped.combined->step()), "another number of backward() calls");
  EXPECT_TRUE(at::equal(all_rows(stepped.layer), before));
}

class FailingOptimizer : public torch::optim::SGD {
 public:
  using SGD::SGD;
  at::Tensor step(LossClosure closure = nullptr) override {
    TORCH_CHECK_VALUE(!is_last(), "no dense step here");
    return SGD::step(std::move(closure));
  }
};

TEST(ShardedCombinedTest, ADenseStepThatFailsOnOneRankChangesNoTable) {
  TPUEmbeddingOptions options = small_options(sharded());
  options.apply = Apply::kOnStep;
  TPUEmbedding layer(options);
  Combined combined(FailingOptimizer(layer->parameters(), 0.1), {layer});
  const at::Tensor before = all_rows(layer);
  activation_of(layer, own_ids()).sum().backward();
  EXPECT_VALUE_ERROR((combined.step()), reported("no dense step here"));
  EXPECT_TRUE(at::equal(all_rows(layer), before));
}

// --- loads and saves -----------------------------------------------------------------

TPUEmbedding trained_one() {
  TPUEmbedding layer(
      small_options(Strategy::fused(), optim::Adam{.learning_rate = 0.1}));
  train(layer, ids_of_all(), 3);
  return layer;
}

TEST(ShardedLoadTest, AnArchiveOfWholeTablesLoadsIntoShards) {
  TPUEmbedding one = trained_one();
  for (const TablePlacement& placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    TPUEmbedding shard(
        small_options(placed(placement), optim::Adam{.learning_rate = 0.1}));
    load_bytes(shard, saved(one));
    expect_same_state(shard, one, 0.0);
  }
}

TEST(ShardedLoadTest, SomeTablesOfACheckpointLoadIntoShards) {
  const SharedFolder folder;
  TPUEmbedding one = trained_one();
  if (rank() == 0) {
    one->save_checkpoint(folder / "run");
  }
  const at::Tensor rows = one->read_rows("users", 0, kVocab);
  for (const TablePlacement& placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    const auto options_of = [&](int64_t rows) {
      TPUEmbeddingOptions options = small_options(
          placed(placement), optim::Adam{.learning_rate = 0.1}, rows);
      options.seed = 5;
      return options;
    };
    TPUEmbedding shard(options_of(kVocab));
    const at::Tensor slot = state_of(shard).tables[0].slots[0].values.clone();
    all_rows(shard);  // all ranks wait here until rank 0 has saved
    shard->load_checkpoint(
        folder / "run", {.tables = {"users"}, .slots = false});
    EXPECT_TRUE(at::equal(all_rows(shard), rows));
    EXPECT_TRUE(at::equal(state_of(shard).tables[0].slots[0].values, slot));
    EXPECT_EQ(shard->iterations(), 0);

    // A larger table keeps its additional rows.
    TPUEmbedding larger(options_of(kVocab + 6));
    const at::Tensor before = larger->read_rows("users", 0, kVocab + 6);
    larger->load_checkpoint(folder / "run", {.grown = true});
    const at::Tensor after = larger->read_rows("users", 0, kVocab + 6);
    EXPECT_TRUE(at::equal(after.slice(0, 0, kVocab), rows));
    EXPECT_TRUE(at::equal(after.slice(0, kVocab), before.slice(0, kVocab)));
  }
}

TEST(ShardedLoadTest, RefusesAnotherCheckpointOnOneRank) {
  const SharedFolder folder;
  TPUEmbedding layer(small_options(sharded()));
  layer->save_checkpoint(folder / "first");
  train(layer, own_ids(), 1);
  layer->save_checkpoint(folder / "second");
  const at::Tensor before = all_rows(layer);
  if (ranks() > 1) {
    EXPECT_VALUE_ERROR(
        (layer->load_checkpoint(folder / (is_last() ? "second" : "first"))),
        "loads another checkpoint");
    EXPECT_TRUE(at::equal(all_rows(layer), before));
  }
  layer->save_checkpoint(
      folder / "extra", {.extra = [](torch::serialize::OutputArchive&) {}});
  EXPECT_VALUE_ERROR(
      (layer->load_checkpoint(
          folder / "extra",
          {.extra =
               [](torch::serialize::InputArchive&) {
                 TORCH_CHECK_VALUE(!is_last(), "not here");
               }})),
      reported("not here"));
}

TEST(ShardedSaveTest, OldCheckpointsAreRemoved) {
  const SharedFolder folder;
  TPUEmbedding layer(small_options(sharded()));
  for (int i = 0; i < 5; ++i) {
    train(layer, own_ids(), 1);
    layer->save_checkpoint(folder / "run", {.keep_last = 2});
  }
  EXPECT_EQ(
      list_checkpoints(folder / "run"),
      (Texts{"checkpoint_000004", "checkpoint_000005"}));
}

TEST(ShardedSaveTest, AnIncrementIsSmallAndLoads) {
  const SharedFolder folder;
  for (const TablePlacement& placement : kPlacements) {
    SCOPED_TRACE(to_string(placement));
    const std::string run = folder / to_string(placement);
    TPUEmbedding layer(small_options(placed(placement)));
    layer->save_checkpoint(run, {.full_every = 5});
    train(layer, own_ids(), 1);
    layer->save_checkpoint(run, {.full_every = 5});
    const at::Tensor rows = all_rows(layer);
    int64_t bytes = 0;
    for (const auto& file :
         std::filesystem::directory_iterator(run + "/checkpoint_000002")) {
      if (file.path().filename().string().find("parameters") !=
          std::string::npos) {
        bytes += static_cast<int64_t>(file.file_size());
      }
    }
    const int64_t touched = ranks() + 1;
    const bool is_whole =
        ranks() > 1 && placement == TablePlacement::row_wise(RowSplit::kMod);
    EXPECT_EQ(bytes, (is_whole ? kVocab : touched) * kDim * 4);
    TPUEmbedding again(small_options(sharded()));
    again->load_checkpoint(run);
    EXPECT_TRUE(at::equal(all_rows(again), rows));
  }
}

// Fails when the last rank writes its rows.
class FailingDisk : public Disk {
 public:
  void sync(OutputFile& file) override {
    TORCH_CHECK(!is_last(), "can't sync ", file.path.string());
    Disk::sync(file);
  }
};

TEST(ShardedSaveTest, ADiskThatFailsOnOneRankFailsTheSave) {
  const SharedFolder folder;
  TPUEmbedding layer(small_options(sharded()));
  layer->save_checkpoint(folder / "run", {.full_every = 5});
  train(layer, int64s({1, kVocab - 1}), 1);  // rows of the last rank, too
  auto& state = const_cast<EmbeddingState&>(state_of(layer));
  FailingDisk disk;
  EXPECT_TORCH_ERROR(
      (save_checkpoint(
          state,
          layer->options().features,
          folder / "run",
          {.full_every = 5},
          disk)),
      "can't sync");
  all_rows(layer);  // rank 0 has removed the files
  EXPECT_EQ(list_checkpoints(folder / "run").size(), 1);
  int64_t entries = 0;
  for (const auto& entry :
       std::filesystem::directory_iterator(folder / "run")) {
    entries += entry.is_directory() ? 1 : 0;
  }
  EXPECT_EQ(entries, 1);
  // The touched rows are still known.
  layer->save_checkpoint(folder / "run", {.full_every = 5});
  TPUEmbedding again(small_options(sharded()));
  again->load_checkpoint(folder / "run");
  EXPECT_TRUE(at::equal(all_rows(again), all_rows(layer)));
}

// Damages the entries of tables that rank 0 receives from the last rank during a save.
class DamagingBackend : public c10d::Backend {
 public:
  DamagingBackend() : Backend(rank(), ranks()) {}

  // NOLINTNEXTLINE(readability-const-return-type): c10d declares it so.
  const std::string getBackendName() const override {
    return "damaging";
  }

  c10::intrusive_ptr<c10d::Work> alltoall_base(
      at::Tensor& output,
      at::Tensor& input,
      std::vector<int64_t>& output_splits,
      std::vector<int64_t>& input_splits,
      const c10d::AllToAllOptions& options) override {
    const int64_t from_last = output_splits.back();  // Gloo takes the vectors
    auto work = backend().alltoall_base(
        output, input, output_splits, input_splits, options);
    work->wait();
    constexpr int64_t kHeader = 64;  // of each rank's part
    if (rank() == 0 && output.scalar_type() == at::kByte &&
        from_last > kHeader) {
      auto* text = output.mutable_data_ptr<uint8_t>() + output.numel() -
          from_last + kHeader;
      if (text[0] == '[' && text[1] == '{') {
        text[0] = 'x';
      }
    }
    return work;
  }
};

TEST(ShardedSaveTest, ADamagedMessageToRank0FailsTheSaveOnAll) {
  NEEDS_TWO_RANKS();
  if (backend().getBackendName() == "mpi") {
    GTEST_SKIP() << "MpiBackend has no alltoall_base()";
  }
  const SharedFolder folder;
  TPUEmbedding layer(small_options(
      distributed::sharded_strategy(c10::make_intrusive<DamagingBackend>())));
  const std::string problem =
      "[save_checkpoint] expected JSON, but got syntax error";
  EXPECT_VALUE_ERROR(
      (layer->save_checkpoint(folder / "run")),
      rank() == 0 ? problem : "since rank 0 raised: " + problem);
  all_rows(layer);  // rank 0 has removed the files
  EXPECT_TRUE(list_checkpoints(folder / "run").empty());
}

TEST(ShardedSaveTest, OptionsMustBeUsableAndTheSame) {
  const SharedFolder folder;
  TPUEmbedding layer(small_options(sharded()));
  EXPECT_VALUE_ERROR(
      (layer->save_checkpoint(
          folder / "run", {.keep_last = is_last() ? 0 : 1})),
      reported("[save_checkpoint] keep_last must be >= 1, but got 0"));
  if (ranks() > 1) {
    EXPECT_VALUE_ERROR(
        (layer->save_checkpoint(folder / (is_last() ? "other" : "run"))),
        "saves into another directory");
    layer->save_checkpoint(folder / "run");
    EXPECT_VALUE_ERROR(
        (layer->load_checkpoint(folder / "run", {.slots = !is_last()})),
        "loads with other LoadOptions");
    EXPECT_TORCH_ERROR(
        (export_torchscript(layer, folder / "export.pt")),
        "[export_torchscript] the tables are spread over");
  }
  EXPECT_VALUE_ERROR(
      (layer->load_checkpoint(folder / "nothing")),
      "there is no checkpoint in");
}

TEST(ShardedErrorTest, RefusesToReadWholeTablesWithAnyPlacement) {
  NEEDS_TWO_RANKS();
  for (const TablePlacement& placement :
       {TablePlacement::table_wise(0), TablePlacement::data_parallel()}) {
    TPUEmbedding layer(small_options(placed(placement)));
    EXPECT_TORCH_ERROR(
        (layer->embedding_tables()),
        "[embedding_tables] the tables are spread over");
  }
}

}  // namespace tessera::sharded_program_test
