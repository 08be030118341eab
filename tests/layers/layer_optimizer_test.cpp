// SPDX-License-Identifier: Apache-2.0
// The tables' own optimizers on the host, in stock operators, beside the
// engine's kernels.
#include <tessera/layers/layer_optimizer.h>
#include <torch/optim/schedulers/step_lr.h>

#include "tests/layers/layer_test_util.h"
#include "tests/optim/all_specs.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace tessera {
namespace layer_optimizer_test {

constexpr int64_t kVocab = 7;  // of which the last two are never looked up
constexpr int64_t kDim = 5;

const Strategy kSparseHost = Strategy::host({.sparse_gradients = true});

TPUEmbedding make_layer(const optim::OptimizerSpec& spec, Strategy strategy) {
  const auto table = make_table(
      {.name = "t",
       .vocabulary_size = kVocab,
       .dim = kDim,
       .combiner = Combiner::kMean,
       .initializer = initializers::Uniform{.low = -1, .high = 1}});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"ids", FeatureConfig{.table = table}},
           {"bags", FeatureConfig{.table = table}}},
      .optimizer = spec,
      .strategy = std::move(strategy),
      .seed = 3});
}

// Random batches with duplicates in and across features; every other step's
// gradient is zero for one feature, whose rows are touched all the same.
class Trainer {
 public:
  void step(
      TPUEmbedding& layer,
      torch::optim::Optimizer* optimizer,
      int index) {
    std::mt19937 random(17 + index);
    const auto id = [&] {
      return static_cast<int64_t>(random() % (kVocab - 2));
    };
    const at::Tensor ids = at::tensor({id(), id(), id()}, at::kLong);
    const test::Rows bags{{id(), id(), id()}, {}, {id()}};
    std::vector<float> upstream;
    for (int64_t i = 0; i < 2 * 3 * kDim; ++i) {
      upstream.push_back(
          std::uniform_real_distribution<float>(-1.0F, 1.0F)(random));
    }
    const at::Tensor gradients =
        at::tensor(upstream, at::kFloat).view({2, 3, kDim});
    const auto activations =
        layer->forward({{"ids", ids}, {"bags", test::ragged(bags)}});
    ((activations["ids"] * gradients[0]).sum() +
     (activations["bags"] * gradients[1] * (index % 2)).sum())
        .backward();
    if (optimizer != nullptr) {
      optimizer->step();
      optimizer->zero_grad();
    }
  }

  void steps(
      TPUEmbedding& layer,
      torch::optim::Optimizer* optimizer,
      int from,
      int to) {
    for (int i = from; i < to; ++i) {
      step(layer, optimizer, i);
    }
  }
};

std::vector<test::NamedSpec> with_stages() {
  std::vector<test::NamedSpec> specs = test::spec_variants();
  for (test::NamedSpec& named : test::spec_variants()) {
    std::visit(
        [](auto& spec) {
          spec.clip_gradient_min = -0.3;
          spec.clip_gradient_max = 0.5;
          spec.weight_decay_factor = 0.2;
          spec.multiply_weight_decay_factor_by_learning_rate = true;
          spec.clip_weight_max = 0.8;
          spec.gradient_accumulation_steps = 2;
        },
        named.spec);
    specs.push_back({named.name + "WithStages", named.spec});
  }
  for (test::NamedSpec& named : test::spec_variants()) {
    const bool sweeps = std::visit(
        [](auto& spec) {
          if constexpr (requires { spec.lazy; }) {
            spec.lazy = false;
            return true;
          } else if constexpr (requires { spec.lazy_adam; }) {
            spec.lazy_adam = false;
            return true;
          }
          return false;
        },
        named.spec);
    if (sweeps) {
      specs.push_back({named.name + "AllRows", named.spec});
    }
  }
  return specs;
}

class LayerOptimizerTest : public testing::TestWithParam<test::NamedSpec> {};

INSTANTIATE_TEST_SUITE_P(
    Specs,
    LayerOptimizerTest,
    testing::ValuesIn(with_stages()),
    [](const auto& info) { return info.param.name; });

TEST_P(LayerOptimizerTest, TheHostTrainsAsTheEngine) {
  TPUEmbedding engine = make_layer(GetParam().spec, Strategy::engine());
  TPUEmbedding host = make_layer(GetParam().spec, kSparseHost);
  const auto optimizer = make_optimizer(host);
  const at::Tensor initial = test::tables_of(engine)[0];
  Trainer trainer;
  trainer.steps(engine, nullptr, 0, 8);
  trainer.steps(host, optimizer.get(), 0, 8);
  test::expect_close(
      test::tables_of(host)[0], test::tables_of(engine)[0], 2e-5, 2e-5);
  EXPECT_FALSE(at::equal(test::tables_of(engine)[0], initial));
  EXPECT_EQ(host->iterations(), engine->iterations());
}

TEST_P(LayerOptimizerTest, CheckpointsCrossFromEngineToHostAndBack) {
  const auto moved = [&](const TPUEmbedding& from, Strategy strategy) {
    TPUEmbedding to = make_layer(GetParam().spec, std::move(strategy));
    auto optimizer = to->options().strategy == Strategy::engine()
        ? nullptr
        : make_optimizer(to);
    std::istringstream stream(test::saved(from));
    torch::load(to, stream);
    return std::pair(to, std::move(optimizer));
  };
  Trainer trainer;
  TPUEmbedding straight = make_layer(GetParam().spec, Strategy::engine());
  trainer.steps(straight, nullptr, 0, 6);

  TPUEmbedding layer = make_layer(GetParam().spec, Strategy::engine());
  trainer.steps(layer, nullptr, 0, 2);
  auto [host, optimizer] = moved(layer, kSparseHost);
  trainer.steps(host, optimizer.get(), 2, 4);
  auto [back, none] = moved(host, Strategy::engine());
  trainer.steps(back, nullptr, 4, 6);
  test::expect_close(
      test::tables_of(back)[0], test::tables_of(straight)[0], 2e-5, 2e-5);
  EXPECT_EQ(back->iterations(), 6);
}

TEST(LayerOptimizerApiTest, ATableIsAParamGroupWithItsRate) {
  TPUEmbedding host = make_layer(optim::SGD{.learning_rate = 1.0}, kSparseHost);
  const at::Tensor before = test::tables_of(host)[0];
  const auto optimizer = make_optimizer(host);
  torch::optim::StepLR scheduler(*optimizer, 1, 0.5);
  const Features batch{
      {"ids", test::int64s({0})}, {"bags", test::ragged({{1}})}};
  for (int i = 0; i < 2; ++i) {
    host->forward(batch)["ids"].sum().backward();
    optimizer->step();
    optimizer->zero_grad();
    scheduler.step();
  }
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.5);
  test::expect_close(test::tables_of(host)[0][0], before[0] - 2.0);
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
  TPUEmbedding host(TPUEmbeddingOptions{
      .features =
          {{"a",
            FeatureConfig{.table = table, .out_of_range = OutOfRange::kZero}}},
      .strategy = kSparseHost});
  const auto optimizer = make_optimizer(host);
  host->forward({{"a", test::int64s({9, 1})}})["a"].sum().backward();
  optimizer->step();
  test::expect_close(test::tables_of(host)[0], test::floats({2, 1}, {1, -0.5}));
}

TEST(LayerOptimizerApiTest, RefusesWhatItCannotTrain) {
  EXPECT_VALUE_ERROR(
      make_optimizer(make_layer(optim::SGD{}, Strategy::engine())),
      "[make_optimizer] expected a layer on Strategy::host() or dense(), but got "
      "one on engine()");
  EXPECT_VALUE_ERROR(
      make_optimizer(make_layer(optim::SGD{}, Strategy::host())),
      "[make_optimizer] table 't': SGD updates the rows of the batch only, but "
      "dense gradients do not say which these are");
  EXPECT_VALUE_ERROR(
      make_optimizer(make_layer(
          optim::SGD{.use_gradient_accumulation = false}, kSparseHost)),
      "[table 't'] use_gradient_accumulation = false takes");
  const auto table = make_table({.vocabulary_size = 2, .dim = 1});
  EXPECT_VALUE_ERROR(
      make_optimizer(TPUEmbedding(TPUEmbeddingOptions{
          .features = FeatureConfig{.table = table}, .strategy = kSparseHost})),
      "no table of the layer has an optimizer");
}

TEST(LayerOptimizerApiTest, AFailingSlotCreationLeavesNoSlots) {
  int calls = 0;
  bool fails = true;
  const optim::Adam adam{
      .slot_creation =
          optim::SlotCreation("fails", [&](const optim::SlotRequest& request) {
            TORCH_CHECK_VALUE(++calls != 2 || !fails, "no memory today");
            return at::zeros(request.shape);
          })};
  TPUEmbedding layer = make_layer(adam, kSparseHost);
  EXPECT_VALUE_ERROR(make_optimizer(layer), "no memory today");
  fails = false;
  make_optimizer(layer);
  EXPECT_EQ(calls, 4);
  EXPECT_EQ(
      test::slot_of(layer, 0, "momenta").sizes(),
      at::IntArrayRef({kVocab, kDim}));
}

TEST(LayerOptimizerApiTest, EachSlotNeedsItsOwnTensor) {
  const at::Tensor shared = at::zeros({kVocab, kDim});
  const optim::Adam adam{
      .slot_creation = optim::SlotCreation(
          "shares", [=](const optim::SlotRequest&) { return shared; })};
  EXPECT_VALUE_ERROR(
      make_layer(adam, Strategy::engine()),
      "[table 't'] slot 'velocities': slot_creation must return a new tensor "
      "each time");
}

TEST(LayerOptimizerApiTest, ARefusedSlotShowsWhatDiffers) {
  const auto make = [](const auto& slot_of_shape) {
    make_layer(
        optim::Adagrad{
            .slot_creation = optim::SlotCreation(
                "mine",
                [=](const optim::SlotRequest& request) {
                  return slot_of_shape(request.shape);
                })},
        Strategy::engine());
  };
  EXPECT_VALUE_ERROR(
      make([](at::IntArrayRef shape) {
        return at::zeros({shape[1], shape[0]}).t();
      }),
      c10::str(
          "but got Float of shape [",
          kVocab,
          ", ",
          kDim,
          "] with strides [1, ",
          kVocab,
          "]."));
  EXPECT_VALUE_ERROR(
      make([](at::IntArrayRef shape) {
        return at::empty(shape, at::TensorOptions(at::kMeta));
      }),
      "] on meta.");
  EXPECT_VALUE_ERROR(
      make([](at::IntArrayRef shape) { return at::zeros(shape).to_sparse(); }),
      "] in Sparse layout.");
  EXPECT_VALUE_ERROR(
      make([](at::IntArrayRef) { return at::Tensor(); }), "but got no tensor.");
}

TEST(LayerOptimizerApiTest, TheEngineTrainsTheTensorThatSlotCreationMade) {
  std::vector<at::Tensor> made;
  const auto make = [&](auto result) {
    return optim::Adagrad{
        .learning_rate = 1.0,
        .slot_creation = optim::SlotCreation(
            "make", [&made, result](const optim::SlotRequest& request) {
              EXPECT_EQ(request.name, "accumulators");
              EXPECT_EQ(request.table, "t");
              made.push_back(result(request));
              return made.back();
            })};
  };
  const auto zeros = [](const optim::SlotRequest& request) {
    return at::zeros(request.shape);
  };
  TPUEmbedding layer = make_layer(make(zeros), Strategy::engine());
  const at::Tensor before = layer->read_rows("t", 0, kVocab);
  layer
      ->forward(
          {{"ids", test::int64s({1})},
           {"bags", test::ragged(test::Rows{{}})}})["ids"]
      .sum()
      .backward();
  ASSERT_EQ(made.size(), 1);
  test::expect_close(made[0][1], at::ones({kDim}));
  test::expect_close(made[0][0], at::zeros({kDim}));
  // From zeros, the first step of a gradient of 1 is the learning rate.
  test::expect_close(layer->read_rows("t", 1, 2)[0], before[1] - 1.0F);
  EXPECT_VALUE_ERROR(
      make_layer(
          make([](const optim::SlotRequest&) {
            return at::zeros({1, 1});
          }),
          Strategy::engine()),
      "slot 'accumulators'");
  EXPECT_VALUE_ERROR(
      make_layer(
          make([](const optim::SlotRequest& request) {
            return at::zeros(request.shape, at::kDouble);
          }),
          Strategy::engine()),
      "slot 'accumulators'");
}

TEST(LayerOptimizerApiTest, ComesBeforeACheckpointWithSlots) {
  TPUEmbedding engine = make_layer(optim::Adagrad{}, Strategy::engine());
  std::istringstream stream(test::saved(engine));
  TPUEmbedding host = make_layer(optim::Adagrad{}, kSparseHost);
  torch::load(host, stream);
  EXPECT_VALUE_ERROR(
      make_optimizer(host),
      "[make_optimizer] the layer was loaded from a checkpoint with slots");
}

}  // namespace layer_optimizer_test
}  // namespace tessera
