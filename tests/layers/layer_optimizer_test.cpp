// SPDX-License-Identifier: Apache-2.0
// Compares optimizers of tables on the host, in stock operators, with the kernels
// of Strategy::fused().
#include <torch/optim/schedulers/step_lr.h>

#include "optim/row_update.h"
#include "tests/layers/layer_test_util.h"
#include "tests/optim/all_specs.h"
#include "tests/temporary_folder.h"

namespace tessera::test::layer_optimizer_test {

constexpr int64_t kVocab = 7;  // the last two rows are never looked up
constexpr int64_t kDim = 5;

const Strategy kSparseHost = Strategy::host({.sparse_gradients = true});
const std::vector<Strategy> kParameterStrategies{
    kSparseHost,
    Strategy::host(),
    Strategy::padded()};

const std::vector<Strategy> kStrategies{
    kSparseHost,
    Strategy::host(),
    Strategy::padded(),
    Strategy::fused()};

TPUEmbedding make_layer(const optim::OptimizerSpec& spec, Strategy strategy) {
  const auto table = make_table(
      {.name = "t",
       .vocabulary_size = kVocab,
       .dim = kDim,
       .combiner = Combiner::kMean,
       .initializer = initializers::Uniform{.low = -1, .high = 1}});
  return layer_of(
      features_of({{"ids", table}, {"bags", table}}),
      spec,
      {.strategy = std::move(strategy), .seed = 3});
}

// A batch with one bag.
Features batch_of(
    const std::vector<int64_t>& ids,
    const std::vector<int64_t>& bag) {
  return {{"ids", at::tensor(ids, at::kLong)}, {"bags", ragged({bag})}};
}

// Trains on random batches with duplicates within and across features. In every
// other step the gradient of one feature is zero, or the feature is not in the loss. Its
// rows are touched all the same.
struct Trainer {
  explicit Trainer(TPUEmbedding trained)
      : layer(std::move(trained)), optimizer(layer) {}

  void step(int index) {
    std::mt19937 random(17 + index);
    const auto id = [&] {
      return static_cast<int64_t>(random() % (kVocab - 2));
    };
    const at::Tensor ids = at::tensor({id(), id(), id()}, at::kLong);
    const Rows bags{{id(), id(), id()}, {}, {id()}};
    std::vector<float> upstream;
    for (int64_t i = 0; i < 2 * 3 * kDim; ++i) {
      upstream.push_back(
          std::uniform_real_distribution<float>(-1.0F, 1.0F)(random));
    }
    const at::Tensor gradients =
        at::tensor(upstream, at::kFloat).view({2, 3, kDim});
    const auto activations =
        layer->forward({{"ids", ids}, {"bags", ragged(bags)}});
    at::Tensor loss = (activations["ids"] * gradients[0]).sum();
    if (index % 4 != 2) {
      loss = loss + (activations["bags"] * gradients[1] * (index % 2)).sum();
    }
    loss.backward();
    optimizer.step();
  }

  void steps(int from, int to) {
    for (int i = from; i < to; ++i) {
      step(i);
    }
  }

  TPUEmbedding layer;
  TableOptimizer optimizer;
};

std::vector<NamedSpec> all_specs() {
  std::vector<NamedSpec> specs = spec_variants();
  for (NamedSpec& named : spec_variants()) {
    optim::modify(named.spec, [](auto& spec) {
      spec.clip_gradient_min = -0.3;
      spec.clip_gradient_max = 0.5;
      spec.weight_decay_factor = 0.2;
      spec.multiply_weight_decay_factor_by_learning_rate = true;
      spec.clip_weight_max = 0.8;
      spec.gradient_accumulation_steps = 2;
    });
    specs.push_back({named.name + "WithStages", named.spec});
  }
  for (NamedSpec& named : spec_variants()) {
    optim::modify(named.spec, [](auto& spec) {
      if constexpr (requires { spec.lazy; }) {
        spec.lazy = false;
      } else if constexpr (requires { spec.lazy_adam; }) {
        spec.lazy_adam = false;
      }
    });
    if (optim::sweeps_all_rows(named.spec)) {
      specs.push_back({named.name + "AllRows", named.spec});
    }
  }
  return specs;
}

class LayerOptimizerTest : public testing::TestWithParam<NamedSpec> {};

INSTANTIATE_TEST_SUITE_P(
    Specs,
    LayerOptimizerTest,
    testing::ValuesIn(all_specs()),
    spec_name);

TEST_P(LayerOptimizerTest, TheHostTrainsLikeFused) {
  TPUEmbedding fused = make_layer(GetParam().spec, Strategy::fused());
  const at::Tensor initial = tables_of(fused)[0];
  Trainer(fused).steps(0, 8);
  EXPECT_FALSE(at::equal(tables_of(fused)[0], initial));
  for (const Strategy& strategy : kParameterStrategies) {
    SCOPED_TRACE(strategy.name());
    TPUEmbedding host = make_layer(GetParam().spec, strategy);
    Trainer(host).steps(0, 8);
    expect_close(tables_of(host)[0], tables_of(fused)[0], 2e-5, 2e-5);
    EXPECT_EQ(host->iterations(), fused->iterations());
  }
}

TEST_P(LayerOptimizerTest, CheckpointsCrossFromFusedToHostAndBack) {
  const auto make = [&](Strategy strategy) {
    return Trainer(make_layer(GetParam().spec, std::move(strategy)));
  };
  Trainer uninterrupted = make(Strategy::fused());
  uninterrupted.steps(0, 6);

  Trainer fused = make(Strategy::fused());
  fused.steps(0, 2);
  Trainer host = make(kSparseHost);
  copy_by_archive(fused.layer, host.layer);
  host.steps(2, 4);
  Trainer second_fused = make(Strategy::fused());
  copy_by_archive(host.layer, second_fused.layer);
  second_fused.steps(4, 6);
  expect_close(
      tables_of(second_fused.layer)[0],
      tables_of(uninterrupted.layer)[0],
      2e-5,
      2e-5);
  const int64_t iterations = second_fused.layer->iterations();
  EXPECT_EQ(
      iterations, 6 / optim::gradient_accumulation_steps_of(GetParam().spec));
  EXPECT_EQ(uninterrupted.layer->iterations(), iterations);
}

TEST(LayerOptimizerApiTest, ATableIsAParamGroupWithItsLearningRate) {
  TPUEmbedding host = make_layer(optim::SGD{.learning_rate = 1.0}, kSparseHost);
  const at::Tensor before = tables_of(host)[0];
  const auto optimizer = make_optimizer(host);
  torch::optim::StepLR scheduler(*optimizer, 1, 0.5);
  for (int i = 0; i < 2; ++i) {
    host->forward(batch_of({0}, {1}))["ids"].sum().backward();
    optimizer->step();
    optimizer->zero_grad();
    scheduler.step();
  }
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5);
  expect_close(tables_of(host)[0][0], before[0] - 2.0);
}

// A row that was looked up decays, even if its gradient is zero. Other rows do
// not decay.
TEST(LayerOptimizerApiTest, ADenseGradientUpdatesOnlyRowsThatWereLookedUp) {
  const optim::SGD decays{.learning_rate = 1.0, .weight_decay_factor = 0.5};
  for (const Strategy& strategy : kParameterStrategies) {
    for (const bool set_to_none : {true, false}) {
      SCOPED_TRACE(strategy.name() + (set_to_none ? " none" : " zeros"));
      TPUEmbedding host = make_layer(decays, strategy);
      write_table(host, "t", at::ones({kVocab, kDim}));
      const auto optimizer = make_optimizer(host);
      const auto backward = [&](int64_t row) {
        const auto activations = host->forward(batch_of({row}, {row}));
        (activations["ids"].sum() * 0 + activations["bags"].sum() * 0)
            .backward();
      };
      const auto rows = [&] { return tables_of(host)[0].select(1, 0); };
      // A step after two passes updates the rows of both.
      backward(0);
      backward(2);
      optimizer->step();
      expect_close(rows(), floats({7}, {.5, 1, .5, 1, 1, 1, 1}));
      optimizer->zero_grad(set_to_none);
      backward(1);
      optimizer->step();
      expect_close(rows(), floats({7}, {.5, .5, .5, 1, 1, 1, 1}));
      // Another step with the same gradient updates the same rows.
      optimizer->step();
      expect_close(rows(), floats({7}, {.5, .25, .5, 1, 1, 1, 1}));
    }
  }
}

// With one table per feature, autograd alone would give a table whose feature is not in
// the loss no gradient.
TEST(LayerOptimizerApiTest, ATableOutsideTheLossIsTouchedOnEveryStrategy) {
  const auto table = [](const char* name) {
    return constant_table(name, 3, 1, 1.0);
  };
  const Nest<FeatureConfig> features =
      features_of({{"a", table("a")}, {"b", table("b")}});
  const Features batch{{"a", int64s({0})}, {"b", int64s({1})}};
  for (const Strategy& strategy : kStrategies) {
    SCOPED_TRACE(strategy.name());
    TPUEmbedding layer = layer_of(
        features,
        optim::Momentum{.learning_rate = 0.5, .momentum = 0.5},
        {.strategy = strategy});
    TableOptimizer optimizer(layer);
    for (const bool is_in_loss : {true, false}) {
      const auto activations = layer->forward(batch);
      at::Tensor loss = activations["a"].sum();
      if (is_in_loss) {
        loss = loss + activations["b"].sum();
      }
      loss.backward();
      optimizer.step();
    }
    // Row 1 of b moves by -0.5 * 1, then by -0.5 * 0.5. The other rows are not touched.
    expect_close(
        layer->embedding_tables()["b"].view({3}),
        floats({3}, {1.0, 0.25, 1.0}));
    EXPECT_EQ(layer->iterations(), 2);
  }
}

// The same with an optimizer of LibTorch, and with two losses of one forward pass, each
// of which adds to the gradients.
TEST(LayerOptimizerApiTest, GradientsOfTwoLossesOfOneForwardAddUp) {
  for (const Strategy& strategy : kParameterStrategies) {
    SCOPED_TRACE(strategy.name());
    TPUEmbedding host = make_layer(optim::SGD{}, strategy);
    const at::Tensor before = tables_of(host)[0];
    torch::optim::SGD optimizer(host->parameters(), 1.0);
    const auto activations = host->forward(batch_of({0}, {1}));
    activations["ids"].sum().backward({}, /*retain_graph=*/true);
    (activations["bags"].sum() * 2).backward();
    optimizer.step();
    at::Tensor expected = before.clone();
    expected[0] -= 1;
    expected[1] -= 2;
    expect_close(tables_of(host)[0], expected);
  }
}

// Activations are results of one node, and may be changed in place as on
// Strategy::fused().
TEST(LayerOptimizerApiTest, ActivationsMayBeChangedInPlace) {
  for (const Strategy& strategy : kParameterStrategies) {
    SCOPED_TRACE(strategy.name());
    TPUEmbedding host = make_layer(optim::SGD{.learning_rate = 1.0}, strategy);
    const at::Tensor before = tables_of(host)[0];
    const auto optimizer = make_optimizer(host);
    const auto activations = host->forward(batch_of({0}, {1}));
    at::Tensor ids = activations["ids"];
    ids.mul_(3);
    ids.sum().backward();
    optimizer->step();
    expect_close(tables_of(host)[0][0], before[0] - 3);
  }
}

TEST(LayerOptimizerApiTest, ADenseGradientSetByTheUserUpdatesItsRows) {
  TPUEmbedding host =
      make_layer(optim::SGD{.learning_rate = 1.0}, Strategy::host());
  write_table(host, "t", at::ones({kVocab, kDim}));
  const auto optimizer = make_optimizer(host);
  at::Tensor gradient = at::zeros({kVocab, kDim});
  gradient[3].fill_(0.25);
  host->parameters()[0].mutable_grad() = gradient;
  optimizer->step();
  expect_close(
      tables_of(host)[0].select(1, 0), floats({7}, {1, 1, 1, .75, 1, 1, 1}));
}

TEST(LayerOptimizerApiTest, ACustomRuleIsNotCalledWithoutRows) {
  for (const Strategy& strategy : kParameterStrategies) {
    int calls = 0;
    TPUEmbedding host = make_layer(
        optim::CustomOptimizer{
            .learning_rate = 1.0,
            .rule = optim::CustomRule(
                "count", [&](optim::CustomRows&) { ++calls; })},
        strategy);
    const auto optimizer = make_optimizer(host);
    const auto activations = host->forward(batch_of({}, {}));
    (activations["ids"].sum() + activations["bags"].sum()).backward();
    optimizer->step();
    EXPECT_EQ(calls, 0) << strategy.name();
  }
}

TEST(LayerOptimizerApiTest, IdsThatLookUpZerosTouchNoRow) {
  const auto table = make_table(
      {.name = "t",
       .vocabulary_size = 2,
       .dim = 1,
       .combiner = Combiner::kSum,
       .initializer = initializers::Constant{1.0},
       .optimizer =
           optim::SGD{.learning_rate = 1.0, .weight_decay_factor = 0.5}});
  for (const Strategy& strategy : kParameterStrategies) {
    SCOPED_TRACE(strategy.name());
    TPUEmbedding host(TPUEmbeddingOptions{
        .features =
            {{"a",
              FeatureConfig{
                  .table = table, .out_of_range = OutOfRange::kZero}}},
        .strategy = strategy});
    const auto optimizer = make_optimizer(host);
    host->forward({{"a", int64s({9, 1})}})["a"].sum().backward();
    optimizer->step();
    expect_close(tables_of(host)[0], floats({2, 1}, {1, -0.5}));
  }
}

TEST(LayerOptimizerApiTest, RefusesLayersThatItCannotTrain) {
  EXPECT_VALUE_ERROR(
      make_optimizer(make_layer(optim::SGD{}, Strategy::fused())),
      "[make_optimizer] expected a layer on Strategy::host() or padded(), but got "
      "one on fused()");
  EXPECT_VALUE_ERROR(
      make_optimizer(make_layer(
          optim::SGD{.use_gradient_accumulation = false}, kSparseHost)),
      "[table 't'] use_gradient_accumulation = false applies the "
      "gradients of a row one by one");
  const auto table = make_table({.vocabulary_size = 2, .dim = 1});
  EXPECT_VALUE_ERROR(
      make_optimizer(layer_of(
          FeatureConfig{.table = table}, {}, {.strategy = kSparseHost})),
      "no table of the layer has an optimizer");
}

// Makes slots by slot_creation, as in upstream's example.
struct SlotMaker {
  optim::Adam adam() {
    return {
        .learning_rate = 0.5,
        .slot_creation = optim::SlotCreation(
            "make", [this](const optim::SlotRequest& request) {
              made.push_back(at::full(
                  request.shape, request.initial_value + 1.0, at::kFloat));
              names.push_back(request.table + "/" + request.name);
              return made.back();
            })};
  }

  std::vector<at::Tensor> made;
  std::vector<std::string> names;
};

TEST(LayerOptimizerApiTest, SlotCreationIsCalledWhenTheLayerIsMade) {
  for (const Strategy& strategy : kStrategies) {
    SCOPED_TRACE(strategy.name());
    SlotMaker maker;
    TPUEmbedding layer = make_layer(maker.adam(), strategy);
    const std::vector<std::string> names{"t/momenta", "t/velocities"};
    EXPECT_EQ(maker.names, names);
    EXPECT_TENSOR_EQ(slot_of(layer, 0, "momenta"), maker.made[0]);

    // The slots are trained, saved and copied. The function is not called again.
    Trainer(layer).steps(0, 2);
    EXPECT_FALSE(at::equal(maker.made[0], at::ones({kVocab, kDim})));
    EXPECT_TENSOR_EQ(slot_of(layer, 0, "momenta"), maker.made[0]);
    EXPECT_TENSOR_EQ(slot_of(layer, 0, "velocities"), maker.made[1]);
    const TPUEmbedding copy = clone_of(layer);
    EXPECT_EQ(test::saved(copy), test::saved(layer));
    EXPECT_EQ(maker.names, names);
  }
}

// The user's own optimizer, which owns its slots as upstream's does.
struct SlotOwner {
  at::Tensor add_slot(
      const at::Tensor& table,
      const std::string& name,
      double initial_value) {
    return slots[table.unsafeGetTensorImpl()][name] =
               at::full_like(table, initial_value).set_requires_grad(false);
  }

  std::map<const at::TensorImpl*, std::map<std::string, at::Tensor>> slots;
};

// Source:  slot_variable_creation_fn of tf.tpu.experimental.embedding.
TEST(LayerOptimizerApiTest, SlotCreationGetsTheTable) {
  for (const Strategy& strategy : kStrategies) {
    SCOPED_TRACE(strategy.name());
    SlotOwner owner;
    at::Tensor table;
    TPUEmbedding layer = make_layer(
        optim::Adam{
            .slot_creation = optim::SlotCreation(
                "add_slot",
                [&](const optim::SlotRequest& request) {
                  table = request.parameters;
                  return owner.add_slot(
                      request.parameters, request.name, request.initial_value);
                })},
        strategy);
    EXPECT_TENSOR_EQ(table, tables_of(layer)[0]);
    EXPECT_EQ(table.data_ptr(), layer->embedding_tables()["t"].data_ptr());
    if (!strategy.is_fused()) {
      EXPECT_TRUE(table.is_same(layer->parameters()[0]));
    }
    auto& slots = owner.slots.at(table.unsafeGetTensorImpl());
    EXPECT_TENSOR_EQ(slot_of(layer, 0, "momenta"), slots.at("momenta"));
    EXPECT_EQ(slots.size(), 2U);
  }
}

// Without slot_creation, a layer on the host has no slots until make_optimizer().
// The user may bring another optimizer.
TEST(LayerOptimizerApiTest, WithoutSlotCreationTheHostMakesSlotsOnRequest) {
  TPUEmbedding layer = make_layer(optim::Adam{}, Strategy::host());
  EXPECT_THROW(slot_of(layer, 0, "momenta"), c10::Error);
  make_optimizer(layer);
  EXPECT_EQ(
      slot_of(layer, 0, "momenta").sizes(), at::IntArrayRef({kVocab, kDim}));
}

TEST(LayerOptimizerApiTest, AFailingSlotCreationFailsTheConstructor) {
  const optim::Adam adam{
      .slot_creation =
          optim::SlotCreation("fails", [](const optim::SlotRequest& request) {
            TORCH_CHECK_VALUE(request.name != "velocities", "no memory today");
            return at::zeros(request.shape);
          })};
  for (const Strategy& strategy : kStrategies) {
    EXPECT_VALUE_ERROR(make_layer(adam, strategy), "no memory today");
  }
}

TEST(LayerOptimizerApiTest, EachSlotNeedsItsOwnMemory) {
  const at::Tensor shared = at::zeros({kVocab + 1, kDim});
  int calls = 0;
  // Return the same tensor for both slots, then two that overlap.
  for (const int64_t step : {0, 1}) {
    const optim::Adam adam{
        .slot_creation =
            optim::SlotCreation("shares", [&](const optim::SlotRequest&) {
              const int64_t begin = step * (calls++ % 2);
              return shared.slice(0, begin, begin + kVocab);
            })};
    for (const Strategy& strategy : {Strategy::fused(), Strategy::host()}) {
      EXPECT_VALUE_ERROR(
          make_layer(adam, strategy),
          "[table 't'] slot 'velocities': slot_creation must return a new tensor "
          "each time");
    }
  }
}

TEST(LayerOptimizerApiTest, ErrorsShowHowASlotDiffers) {
  using Make = std::function<at::Tensor(at::IntArrayRef)>;
  expect_refusals<Make>(
      {{[](auto shape) {
          return at::zeros({shape[1], shape[0]}).t();
        },
        "but got Float of shape [7, 5] with strides [1, 7]."},
       {[](auto shape) { return at::empty(shape, at::Device(at::kMeta)); },
        "] on meta."},
       {[](auto shape) { return at::zeros(shape).to_sparse(); },
        "] in Sparse layout."},
       {[](auto) { return at::Tensor(); }, "but got no tensor."},
       {[](auto) {
          return at::zeros({1, 1});
        },
        "slot 'accumulators'"},
       {[](auto shape) { return at::zeros(shape, at::kDouble); },
        "slot 'accumulators'"}},
      [](const Make& make) {
        make_layer(
            optim::Adagrad{
                .slot_creation = optim::SlotCreation(
                    "mine",
                    [&](const optim::SlotRequest& request) {
                      return make(request.shape);
                    })},
            Strategy::fused());
      });
}

TEST(LayerOptimizerApiTest, FusedTrainsTheTensorThatSlotCreationMade) {
  std::vector<at::Tensor> made;
  const optim::Adagrad adagrad{
      .learning_rate = 1.0,
      .slot_creation =
          optim::SlotCreation("make", [&](const optim::SlotRequest& request) {
            EXPECT_EQ(request.name, "accumulators");
            EXPECT_EQ(request.table, "t");
            return made.emplace_back(at::zeros(request.shape));
          })};
  TPUEmbedding layer = make_layer(adagrad, Strategy::fused());
  const at::Tensor before = layer->read_rows("t", 0, kVocab);
  layer->forward(batch_of({1}, {}))["ids"].sum().backward();
  ASSERT_EQ(made.size(), 1);
  expect_close(made[0][1], at::ones({kDim}));
  expect_close(made[0][0], at::zeros({kDim}));
  // From zeros, the first step of a gradient of 1 is the learning rate.
  expect_close(layer->read_rows("t", 1, 2)[0], before[1] - 1.0F);
}

// A host layer with slot_creation loads the same files as one without.
TEST(LayerOptimizerApiTest, SlotCreationNeverMakesALoadFail) {
  using Layers = std::vector<std::pair<const char*, TPUEmbedding>>;
  SlotMaker saved_maker;
  TPUEmbedding trained = make_layer(optim::Adam{}, Strategy::fused());
  Trainer(trained).steps(0, 2);
  TPUEmbedding on_host = make_layer(optim::Adam{}, kSparseHost);
  Trainer on_host_trainer(on_host);
  on_host_trainer.steps(0, 2);
  const Layers saved{
      {"fused", trained},
      {"fused, another optimizer",
       make_layer(optim::Adagrad{}, Strategy::fused())},
      {"fused, no slots", make_layer(optim::SGD{}, Strategy::fused())},
      {"host", make_layer(optim::Adam{}, Strategy::host())},
      {"host with optimizer", on_host},
      {"host with slots", make_layer(saved_maker.adam(), Strategy::host())}};
  const TemporaryFolder folder;
  for (auto [name, from] : saved) {
    from->save_checkpoint(folder / name);
    for (const bool is_archive : {true, false}) {
      SCOPED_TRACE(name + std::string(is_archive ? " archive" : " directory"));
      SlotMaker maker;
      TPUEmbedding host = make_layer(maker.adam(), Strategy::host());
      const TPUEmbedding plain = make_layer(optim::Adam{}, Strategy::host());
      for (TPUEmbedding to : {host, plain}) {
        if (is_archive) {
          std::istringstream stream(test::saved(from));
          torch::load(to, stream);
        } else {
          to->load_checkpoint(folder / name);
        }
        expect_same_tables(to, tables_of(from));
        EXPECT_EQ(to->iterations(), from->iterations());
      }
      // Slots that fit are loaded. Other slots leave those of the layer unchanged.
      const bool fits = name == std::string("fused") ||
          name == std::string("host with optimizer") ||
          name == std::string("host with slots");
      expect_close(
          maker.made[0],
          fits ? slot_of(from, 0, "momenta") : at::ones({kVocab, kDim}));
      // make_optimizer() refuses tables that Strategy::fused() trained, if their slots
      // were not loaded.
      if (from->options().strategy.is_fused() && !fits) {
        EXPECT_VALUE_ERROR(make_optimizer(host), "Make the optimizer first");
      } else {
        make_optimizer(host);
      }
    }
  }
  // Every layer loads the file of a host layer with slot_creation, because no
  // optimizer has trained its tables.
  for (const auto& [name, to] : Layers{
           {"fused", make_layer(optim::Adam{}, Strategy::fused())},
           {"fused, no slots", make_layer(optim::SGD{}, Strategy::fused())},
           {"host", make_layer(optim::Adagrad{}, Strategy::host())}}) {
    SCOPED_TRACE(name);
    const TPUEmbedding from = make_layer(saved_maker.adam(), Strategy::host());
    std::istringstream stream(test::saved(from));
    TPUEmbedding loaded = to;
    torch::load(loaded, stream);
    expect_same_tables(loaded, tables_of(from));
    if (!loaded->options().strategy.is_fused()) {
      make_optimizer(loaded);
    }
  }
}

TEST(LayerOptimizerApiTest, MustBeMadeBeforeSlotsAreLoaded) {
  TPUEmbedding fused = make_layer(optim::Adagrad{}, Strategy::fused());
  std::istringstream stream(test::saved(fused));
  TPUEmbedding host = make_layer(optim::Adagrad{}, kSparseHost);
  torch::load(host, stream);
  EXPECT_VALUE_ERROR(
      make_optimizer(host),
      "[make_optimizer] the layer had no place for slots when it was loaded, so "
      "the saved slots were skipped. Make the optimizer first, then load.");
}

}  // namespace tessera::test::layer_optimizer_test
