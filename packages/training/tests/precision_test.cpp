// SPDX-License-Identifier: Apache-2.0
// Precision and PrecisionScope, alone and in training steps.
#include <tessera/common/precision.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/layers/prefetch.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/training/predict.h>
#include <tessera/training/train_step.h>
#include <torch/nn/modules/batchnorm.h>

#include "packages/training/tests/training_fixture.h"
#include "tests/layers/autocast.h"

#include <ATen/record_function.h>

#include <limits>
#include <map>
#include <stdexcept>
#include <thread>

namespace tessera::training::precision_test {

bool is_autocast() {
  return at::autocast::is_autocast_enabled(at::kCPU);
}

/// Tables, batch normalization, crosses and a tower.
struct CrossModelImpl : torch::nn::Module {
  CrossModelImpl() {
    at::manual_seed(3);
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user", feature_of("users", 20, 4)},
                 {"movie", feature_of("movies", 10, 4)}},
            .optimizer = optim::Adam{.learning_rate = 0.05}}));
    norm = register_module("norm", torch::nn::BatchNorm1d(8));
    crosses = register_module(
        "crosses",
        MultiLayerDCN(
            MultiLayerDCNOptions{.projection_dim = 4, .num_layers = 2}));
    tower = register_module("tower", MLP(MLPOptions{.units = {32, 1}}));
    crosses->build(PartialShape{std::nullopt, 8});
    tower->build(PartialShape{std::nullopt, 8});
  }

  at::Tensor forward(const ClickBatch& batch) {
    const at::Tensor joined = join->forward(
        embedding->forward({{"user", batch.user}, {"movie", batch.movie}}));
    return tower->forward(crosses->forward(norm->forward(joined))).squeeze(1);
  }

  TPUEmbedding embedding{nullptr};
  Concatenate join;
  torch::nn::BatchNorm1d norm{nullptr};
  MultiLayerDCN crosses{nullptr};
  MLP tower{nullptr};
};
TORCH_MODULE(CrossModel);

struct Trained {
  CrossModel model;
  std::vector<double> losses = {};
};

Trained trained(
    std::optional<Precision> precision,
    const std::function<void()>& in_forward = [] {}) {
  Trained result;
  torch::optim::Adam optimizer(result.model->parameters(), 0.01);
  auto step = make_train_step(
      optimizer,
      [&](const ClickBatch& batch) {
        in_forward();
        const at::Tensor logits = result.model->forward(batch);
        return at::binary_cross_entropy_with_logits(logits, batch.click);
      },
      {.precision = precision});
  for (const ClickBatch& batch : click_batches(40, 1)) {
    const StepResult done = step(batch);
    EXPECT_EQ(done.loss.scalar_type(), at::kFloat);
    result.losses.push_back(done.loss.item<double>());
  }
  for (const at::Tensor& parameter : result.model->parameters()) {
    EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  }
  return result;
}

TEST(PrecisionTest, StepsInBFloat16KeepTheirWeightsInFloat32) {
  const Trained exact = trained(Precision::kFloat32);
  const Trained rounded = trained(Precision::kBFloat16);
  EXPECT_NE(rounded.losses, exact.losses);
  for (size_t i = 0; i < exact.losses.size(); ++i) {
    EXPECT_NEAR(rounded.losses[i], exact.losses[i], 0.05) << i;
  }
  for (const auto& model : {exact.model, rounded.model}) {
    for (const auto& state :
         {model->named_parameters(), model->named_buffers()}) {
      for (const auto& tensor : state) {
        if (tensor.key() != "norm.num_batches_tracked") {
          EXPECT_EQ(tensor.value().scalar_type(), at::kFloat) << tensor.key();
        }
      }
    }
    for (const char* table : {"users", "movies"}) {
      EXPECT_EQ(
          model->embedding->embedding_tables()[table].scalar_type(),
          at::kFloat);
    }
  }
}

// Each weight is converted once, and its gradient once. The activations of the tables are
// converted once in each direction, and so are the logits.
TEST(PrecisionTest, AStepConvertsNothingTwice) {
  const Threads two(2);  // with one, the tower would be computed in float32
  static std::atomic<int64_t> conversions;
  conversions = 0;
  CrossModel model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto step = make_train_step(
      optimizer,
      [&](const ClickBatch& batch) {
        return at::binary_cross_entropy_with_logits(
            model->forward(batch), batch.click);
      },
      {.precision = Precision::kBFloat16});
  const ClickBatch batch = click_batches(1, 1)[0];
  step(batch);
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(
          [](const at::RecordFunction& function)
              -> std::unique_ptr<at::ObserverContext> {
            if (std::string_view(function.name()) == "aten::_to_copy" &&
                function.inputs()[0].toTensor().is_floating_point()) {
              ++conversions;
            }
            return nullptr;
          })
          .needsInputs(true));
  step(batch);
  at::removeCallback(handle);
  // Two crosses of 3 weights, and a layer of 2. The last layer stays in float32.
  constexpr int64_t kWeights = 2 * 3 + 2;
  EXPECT_EQ(conversions, 2 * kWeights + 2 + 2);
}

TEST(PrecisionTest, OnlyTheForwardPassHasAutocast) {
  std::vector<bool> seen;
  trained(Precision::kBFloat16, [&] { seen.push_back(is_autocast()); });
  EXPECT_EQ(seen, std::vector<bool>(40, true));
  EXPECT_FALSE(is_autocast());
  CrossModel model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  bool in_backward = true;
  auto step = make_train_step(
      optimizer,
      [&](const ClickBatch& batch) {
        const at::Tensor logits = model->forward(batch);
        logits.register_hook(
            [&](const at::Tensor&) { in_backward = is_autocast(); });
        return logits.sum();
      },
      {.precision = Precision::kBFloat16});
  step(click_batches(1, 1)[0]);
  EXPECT_FALSE(in_backward);
}

TEST(PrecisionTest, ThePrecisionOfAStepCountsInsideOfAnother) {
  const test::Autocast outside;
  std::vector<bool> seen;
  trained(Precision::kFloat32, [&] { seen.push_back(is_autocast()); });
  EXPECT_EQ(seen, std::vector<bool>(40, false));
  seen.clear();
  trained({}, [&] { seen.push_back(is_autocast()); });
  EXPECT_EQ(seen, std::vector<bool>(40, true));
  EXPECT_TRUE(is_autocast());
}

// LibTorch keeps converted weights until its outermost scope ends.
TEST(PrecisionTest, WeightsThatHaveChangedAreConvertedAgain) {
  const Trained expected = trained(Precision::kBFloat16);
  const PrecisionScope outside(Precision::kBFloat16);
  EXPECT_EQ(trained({}).losses, expected.losses);
  CrossModel model;
  const ClickBatch batch = click_batches(1, 1)[0];
  {
    const at::NoGradGuard no_grad;
    model->forward(batch);
  }
  model->forward(batch).sum().backward();
  for (const auto& parameter : model->named_parameters()) {
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  }
}

TEST(PrecisionTest, AScopeEndsAsItBegan) {
  const auto dtype = [] { return at::autocast::get_autocast_dtype(at::kCPU); };
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  try {
    const PrecisionScope scope(Precision::kBFloat16);
    const PrecisionScope unset({});
    EXPECT_EQ(dtype(), at::kBFloat16);
    {
      const PrecisionScope inner(Precision::kFloat32);
      EXPECT_FALSE(is_autocast());
    }
    EXPECT_TRUE(is_autocast());
    bool elsewhere = true;
    std::thread([&] { elsewhere = is_autocast(); }).join();
    EXPECT_FALSE(elsewhere);
    throw std::runtime_error("ends the scope");
  } catch (const std::runtime_error&) {
  }
  EXPECT_FALSE(is_autocast());
  EXPECT_EQ(dtype(), at::kHalf);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
}

TEST(PrecisionTest, FitEvaluateAndPredictHaveIt) {
  CrossModel model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  std::vector<bool> seen;
  const auto loss_of = [&](const ClickBatch& batch) {
    seen.push_back(is_autocast());
    const at::Tensor logits = model->forward(batch);
    return StepResult{
        .loss = at::binary_cross_entropy_with_logits(logits, batch.click),
        .predictions = logits,
        .labels = batch.click};
  };
  const auto batches = click_batches(1, 1);
  fit(batches,
      make_train_step(optimizer, loss_of),
      {.model = model,
       .validation = make_pass(batches, loss_of),
       .precision = Precision::kBFloat16});
  evaluate(*make_pass(batches, loss_of), {}, Precision::kBFloat16);
  const Predictions found =
      predict(*make_pass(batches, loss_of), Precision::kBFloat16);
  EXPECT_EQ(found.predictions.scalar_type(), at::kFloat);
  EXPECT_EQ(seen, std::vector<bool>(4, true));
  // A step may have another one than fit().
  seen.clear();
  fit(batches,
      make_train_step(optimizer, loss_of, {.precision = Precision::kFloat32}),
      {.model = model, .precision = Precision::kBFloat16});
  evaluate(*make_pass(batches, loss_of));
  predict(*make_pass(batches, loss_of));
  EXPECT_EQ(seen, std::vector<bool>(3, false));
}

/// The tables after some steps of a tower on two tables of this kind.
std::map<std::string, at::Tensor> tables_after(
    const TableConfig& kind,
    const Strategy& strategy,
    Precision precision,
    bool has_prefetch = false) {
  TableConfig users = kind;
  TableConfig movies = kind;
  users.name = "users";
  movies.name = "movies";
  at::manual_seed(3);
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = {{"user", feature_of(users)}, {"movie", feature_of(movies)}},
      .optimizer = optim::Adagrad{.learning_rate = 0.1},
      .strategy = strategy});
  MLP tower(MLPOptions{.units = {32, 1}});
  tower->build(PartialShape{std::nullopt, 2 * kind.dim});
  std::vector<at::Tensor> parameters = tower->parameters();
  for (const at::Tensor& parameter : embedding->parameters()) {
    parameters.push_back(parameter);
  }
  torch::optim::Adam optimizer(parameters, 0.01);
  const auto features_of = [](const ClickBatch& batch) {
    return Features{{"user", batch.user}, {"movie", batch.movie}};
  };
  const auto loss_of = [&](const ClickBatch& batch,
                           const Nest<at::Tensor>& activations) {
    activations.for_each([&](const std::string&, const at::Tensor& rows) {
      EXPECT_EQ(rows.scalar_type(), at::kFloat);
    });
    return at::binary_cross_entropy_with_logits(
        tower->forward(activations).squeeze(1), batch.click);
  };
  const TrainStepOptions options{.precision = precision};
  const auto batches = click_batches(40, 1);
  if (has_prefetch) {
    auto step = make_train_step(
        optimizer,
        [&](const auto& item) { return loss_of(item.first, item.second); },
        options);
    for (const auto& item : prefetch(batches, embedding, features_of)) {
      step(std::pair(item.batch, item.activations));
    }
  } else {
    auto step = make_train_step(
        optimizer,
        [&](const ClickBatch& batch) {
          return loss_of(batch, embedding->forward(features_of(batch)));
        },
        options);
    for (const ClickBatch& batch : batches) {
      step(batch);
    }
  }
  std::map<std::string, at::Tensor> tables;
  for (const EmbeddingTables::Entry& table : embedding->embedding_tables()) {
    tables.emplace(table.name, table.parameters.clone());
  }
  return tables;
}

TEST(PrecisionTest, TablesOfAllKindsTrainInBFloat16) {
  const Threads two(2);
  const TableConfig plain{.vocabulary_size = 20, .dim = 4};
  TableConfig bfloat16 = plain;
  bfloat16.dtype = at::kBFloat16;
  TableConfig half = plain;
  half.dtype = at::kHalf;
  const TableConfig keys{.dim = 4, .keys = DynamicKeys{.capacity = 100}};
  const std::vector<std::pair<TableConfig, Strategy>> kinds{
      {plain, Strategy::fused()},
      {plain, Strategy::host()},
      {plain, Strategy::padded()},
      {bfloat16, Strategy::fused()},
      {half, Strategy::fused()},
      {keys, Strategy::fused()}};
  for (const auto& [kind, strategy] : kinds) {
    const auto exact = tables_after(kind, strategy, Precision::kFloat32);
    const auto rounded = tables_after(kind, strategy, Precision::kBFloat16);
    for (const auto& [name, rows] : exact) {
      EXPECT_EQ(rounded.at(name).scalar_type(), kind.dtype);
      EXPECT_FALSE(rounded.at(name).equal(rows)) << name;
      expect_close(
          rounded.at(name).to(at::kFloat), rows.to(at::kFloat), 0.05, 0.05);
    }
  }
  const auto at_once =
      tables_after(plain, Strategy::fused(), Precision::kBFloat16);
  const auto ahead =
      tables_after(plain, Strategy::fused(), Precision::kBFloat16, true);
  for (const auto& [name, rows] : at_once) {
    expect_close(ahead.at(name), rows, 0.05, 0.05);
  }
}

TEST(PrecisionTest, AGradientThatIsNotFiniteIsNamed) {
  CrossModel model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto step = make_train_step(
      optimizer,
      [&](const ClickBatch& batch) {
        const at::Tensor logits = model->forward(batch);
        logits.register_hook([](const at::Tensor& gradient) {
          return gradient * std::numeric_limits<float>::infinity();
        });
        return logits.sum();
      },
      {.precision = Precision::kBFloat16});
  const at::Tensor before = model->tower->parameters()[0].clone();
  EXPECT_VALUE_ERROR(
      fit(click_batches(1, 1), step, {.model = model}), "must be finite");
  EXPECT_TRUE(model->tower->parameters()[0].equal(before));
}

TEST(PrecisionTest, RefusesAModelOfBFloat16) {
  CrossModel model;
  model->tower->to(at::kBFloat16);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto step = make_train_step(
      optimizer,
      [&](const ClickBatch& batch) { return model->forward(batch).sum(); },
      {.precision = Precision::kBFloat16});
  EXPECT_VALUE_ERROR(
      step(click_batches(1, 1)[0]), "Don't convert the model with to()");
}

TEST(PrecisionTest, ALossOfFewDigitsGivesAWarning) {
  Warnings warnings;
  CrossModel model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto step = make_train_step(
      optimizer,
      [&](const ClickBatch& batch) {
        return model->forward(batch).to(at::kBFloat16).sum();
      },
      {.precision = Precision::kBFloat16});
  step(click_batches(1, 1)[0]);
  step(click_batches(1, 1)[0]);
  ASSERT_EQ(warnings.texts.size(), 1);
  EXPECT_NE(warnings.texts[0].find("the loss is BFloat16"), std::string::npos);
}

TEST(PrecisionTest, ReadsThePoliciesOfKeras) {
  EXPECT_EQ(precision_from_keras("float32"), Precision::kFloat32);
  EXPECT_EQ(precision_from_keras("mixed_bfloat16"), Precision::kBFloat16);
  const Json policy = {
      {"module", "keras"},
      {"class_name", "DTypePolicy"},
      {"config", {{"name", "mixed_bfloat16"}}}};
  EXPECT_EQ(precision_from_keras(policy), Precision::kBFloat16);
  EXPECT_VALUE_ERROR(precision_from_keras("mixed_float16"), "mixed_float16");
  EXPECT_VALUE_ERROR(precision_from_keras("bfloat16"), "but got bfloat16");
  EXPECT_VALUE_ERROR(precision_from_keras(Json(3)), "but got 3");
  EXPECT_VALUE_ERROR(precision_from_keras(Json::object()), "but got {}");
  EXPECT_VALUE_ERROR(precision_from_keras(Json()), "but got null");
  const Json number = {{"config", {{"name", 3}}}};
  EXPECT_VALUE_ERROR(precision_from_keras(number), "\"name\":3");
}

}  // namespace tessera::training::precision_test
