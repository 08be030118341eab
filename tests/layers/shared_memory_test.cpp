// SPDX-License-Identifier: Apache-2.0
// Gradients and weights that are views of the layer's own tables and slots.
#include <tessera/engine/embedding_engine.h>

#include "tests/layers/layer_test_util.h"
#include "tests/optim/all_specs.h"

namespace tessera::test::shared_memory_test {

constexpr int64_t kVocab = 600;  // enough rows for several tasks of an update
constexpr int64_t kDim = 8;

// A layer of two tables with Adagrad. The tests can read their slots. Table `b`
// may have another optimizer.
struct Fixture {
  explicit Fixture(
      Apply apply = Apply::kInBackward,
      const std::optional<optim::OptimizerSpec>& optimizer_of_b = {},
      const Strategy& strategy = Strategy::fused()) {
    const optim::OptimizerSpec adagrad = optim::Adagrad{
        .learning_rate = 1.0,
        .slot_creation =
            optim::SlotCreation("keep", [&](const optim::SlotRequest& request) {
              slots.push_back(at::full(request.shape, 0.5, at::kFloat));
              return slots.back();
            })};
    const auto table = [&](const char* name,
                           const optim::OptimizerSpec& optimizer) {
      return FeatureConfig{
          .table = make_table(
              {.name = name,
               .vocabulary_size = kVocab,
               .dim = kDim,
               .combiner = Combiner::kSum,
               .initializer = initializers::RowId{},
               .optimizer = optimizer})};
    };
    layer = TPUEmbedding(TPUEmbeddingOptions{
        .features =
            {{"a", table("a", adagrad)},
             {"b", table("b", optimizer_of_b.value_or(adagrad))}},
        .strategy = strategy,
        .apply = apply});
  }

  at::Tensor rows(const char* table) const {
    return layer->embedding_tables()[table];
  }

  std::vector<at::Tensor> slots;
  TPUEmbedding layer{nullptr};
};

// Looks up every row, the last one first, so that each row gets another row as its
// gradient.
Features reversed_ids() {
  const at::Tensor ids = at::arange(kVocab).flip(0);
  return {{"a", ids}, {"b", ids}};
}

using Gradient = std::function<at::Tensor(const Fixture&)>;

const std::vector<std::pair<const char*, Gradient>> kGradients{
    {"the table", [](const Fixture& fixture) { return fixture.rows("a"); }},
    {"the other table",
     [](const Fixture& fixture) { return fixture.rows("b"); }},
    {"a slot", [](const Fixture& fixture) { return fixture.slots.at(0); }},
    {"the other slot",
     [](const Fixture& fixture) { return fixture.slots.at(1); }},
    {"a separate tensor over the table's memory", [](const Fixture& fixture) {
       return at::from_blob(
           fixture.rows("a").mutable_data_ptr<float>(), {kVocab, kDim});
     }}};

TEST(SharedMemoryTest, AGradientMayBeATableOrASlot) {
  for (const auto& [what, gradient_of] : kGradients) {
    SCOPED_TRACE(what);
    Fixture shared;
    Fixture copied;
    for (Fixture* fixture : {&shared, &copied}) {
      const at::Tensor gradient = gradient_of(*fixture);
      const auto activations = fixture->layer->forward(reversed_ids());
      torch::autograd::backward(
          {activations["a"], activations["b"]},
          {fixture == &shared ? gradient : gradient.clone(),
           at::full({kVocab, kDim}, 2.0)});
    }
    EXPECT_TRUE(saved(shared.layer) == saved(copied.layer));
  }
}

TEST(SharedMemoryTest, GradientsAreReadBeforeTheTableChanges) {
  TPUEmbedding layer(
      FeatureConfig{.table = numbered_table("t", 4, 1)},
      optim::SGD{.learning_rate = 1.0});
  write_table(layer, "t", floats({4, 1}, {10, 20, 30, 40}));
  const at::Tensor table = layer->embedding_tables()["t"];
  // Rows 1 to 3 get the gradients 10, 20 and 30, which are rows 0 to 2.
  layer->forward(int64s({1, 2, 3})).leaf().backward(table.slice(0, 0, 3));
  expect_close(table, floats({4, 1}, {10, 10, 10, 10}));
}

TEST(SharedMemoryTest, AccumulatedGradientsAreACopy) {
  Fixture shared(Apply::kOnStep);
  Fixture copied(Apply::kOnStep);
  for (Fixture* fixture : {&shared, &copied}) {
    Combined optimizer(
        torch::optim::SGD(fixture->layer->parameters(), 0.1), {fixture->layer});
    for (int pass = 0; pass < 2; ++pass) {
      const at::Tensor rows = fixture->rows("b");
      fixture->layer->forward(reversed_ids())["a"].backward(
          fixture == &shared ? rows : rows.clone());
      const at::NoGradGuard no_grad;
      fixture->rows("b").mul_(0.5);  // must not change collected gradients
    }
    optimizer.step();
  }
  EXPECT_TRUE(saved(shared.layer) == saved(copied.layer));
}

TEST(SharedMemoryTest, ACustomRuleAndAFusedOneMayReadEachOthersTables) {
  const optim::OptimizerSpec custom = custom_spec(0.1);
  Fixture shared(Apply::kInBackward, custom);
  Fixture copied(Apply::kInBackward, custom);
  for (Fixture* fixture : {&shared, &copied}) {
    const auto rows = [&](const char* table) {
      const at::Tensor own_rows = fixture->rows(table);
      return fixture == &shared ? own_rows : own_rows.clone();
    };
    const auto activations = fixture->layer->forward(reversed_ids());
    torch::autograd::backward(
        {activations["a"], activations["b"]}, {rows("b"), rows("a")});
  }
  EXPECT_TRUE(saved(shared.layer) == saved(copied.layer));
}

TEST(SharedMemoryTest, WeightsOfFeaturesMayBeATable) {
  Fixture shared;
  Fixture copied;
  for (Fixture* fixture : {&shared, &copied}) {
    const at::Tensor rows = fixture->rows("b").flatten().slice(0, 8, 8 + 600);
    const at::Tensor weights = fixture == &shared ? rows : rows.clone();
    const at::Tensor trained = weights.detach().requires_grad_();
    const auto activations = fixture->layer->forward(
        {{"a",
          RaggedFeature::from_lengths(
              at::arange(kVocab).flip(0), at::full({300}, 2, at::kLong))},
         {"b", at::arange(kVocab)}},
        {{"a", trained}, {"b", std::nullopt}});
    (activations["a"].sum() + activations["b"].square().sum()).backward();
    EXPECT_TRUE(trained.grad().defined());
  }
  EXPECT_TRUE(saved(shared.layer) == saved(copied.layer));
}

TEST(SharedMemoryTest, TheHostTakesItsTablesAsGradients) {
  for (const Strategy& strategy :
       {Strategy::host(),
        Strategy::host({.sparse_gradients = true}),
        Strategy::padded()}) {
    for (const int64_t count : {int64_t{1}, kVocab}) {
      SCOPED_TRACE(strategy.name() + " " + std::to_string(count));
      Fixture shared(Apply::kInBackward, {}, strategy);
      Fixture copied(Apply::kInBackward, {}, strategy);
      for (Fixture* fixture : {&shared, &copied}) {
        const auto optimizer = make_optimizer(fixture->layer);
        const auto rows = [&](const char* table) {
          const at::Tensor own_rows = fixture->rows(table).slice(0, 0, count);
          return fixture == &shared ? own_rows : own_rows.clone();
        };
        const at::Tensor ids = at::arange(count).flip(0);
        const auto activations =
            fixture->layer->forward({{"a", ids}, {"b", ids}});
        torch::autograd::backward(
            {activations["a"], activations["b"]}, {rows("b"), rows("a")});
        optimizer->step();
      }
      EXPECT_TRUE(saved(shared.layer) == saved(copied.layer));
    }
  }
}

TEST(SharedMemoryTest, TheEngineTakesItsTableAsAGradient) {
  const auto table = numbered_table("t", 4, 1);
  EmbeddingEngine engine(
      {.features = features_of({{"f", table}}),
       .optimizer = optim::SGD{.learning_rate = 1.0}});
  engine.update_embedding_table("t", floats({4, 1}, {10, 20, 30, 40}));
  engine.enqueue({{"f", int64s({1, 0, 3, 2})}});
  engine.dequeue();
  engine.apply_gradients({{"f", engine.embedding_tables()["t"]}});
  expect_close(engine.read_rows("t", 0, 4), floats({4, 1}, {-10, 10, -10, 10}));
}

// A view of a table with gaps between its rows, which backward() must copy before it
// changes the table.
TEST(SharedMemoryTest, AGradientMayBeSomeColumnsOfItsOwnTable) {
  const auto tables_after =
      [](const std::function<at::Tensor(at::Tensor)>& of) {
        TPUEmbedding layer = layer_of(
            features_of({{"a", numbered_table("a", kVocab, 2 * kDim)}}),
            optim::SGD{.learning_rate = 1.0});
        const at::Tensor rows = layer->embedding_tables()["a"];
        const at::Tensor activation =
            layer->forward({{"a", at::arange(kVocab).flip(0)}})["a"];
        const at::Tensor half = of(rows.narrow(1, kDim, kDim));
        torch::autograd::backward(
            {activation.narrow(1, 0, kDim), activation.narrow(1, kDim, kDim)},
            {half, half});
        return rows.clone();
      };

  const at::Tensor shared = tables_after([](at::Tensor half) { return half; });
  const at::Tensor copied =
      tables_after([](const at::Tensor& half) { return half.clone(); });
  EXPECT_TENSOR_EQ(shared, copied);
}

}  // namespace tessera::test::shared_memory_test
