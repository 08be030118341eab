// SPDX-License-Identifier: Apache-2.0
// Tests specs as torch optimizers. layers/layer_optimizer_test.cpp compares
// their numbers with Strategy::fused().
#include <tessera/optim/make_optimizer.h>
#include <torch/optim/schedulers/step_lr.h>

#include "optim/dense_update.h"
#include "tests/optim/all_specs.h"
#include "tests/serialization/changed_archive.h"

namespace tessera::optim::make_optimizer_test {

at::Tensor parameter(at::Tensor values) {
  return values.clone().requires_grad_(true);
}

// A sparse gradient that has rows `ids` of a parameter of `rows` rows.
at::Tensor sparse_gradient(
    std::vector<int64_t> ids,
    const at::Tensor& values,
    int64_t rows) {
  return at::sparse_coo_tensor(
      at::tensor(ids, at::kLong).unsqueeze(0), values, {rows, values.size(1)});
}

std::vector<at::Tensor> random_gradients(int count) {
  std::vector<at::Tensor> gradients;
  for (int i = 0; i < count; ++i) {
    gradients.push_back(at::rand({4, 3}) - 0.5);
  }
  return gradients;
}

class MakeOptimizerTest : public testing::TestWithParam<test::NamedSpec> {};

INSTANTIATE_TEST_SUITE_P(
    Specs,
    MakeOptimizerTest,
    test::all_variants(),
    test::spec_name);

TEST_P(MakeOptimizerTest, ASparseGradientOfAllRowsEqualsADenseOne) {
  const at::Tensor initial = at::rand({4, 3}) - 0.5;
  at::Tensor dense = parameter(initial);
  at::Tensor sparse = parameter(initial);
  const auto for_dense = make_optimizer(GetParam().spec, {dense});
  const auto for_sparse = make_optimizer(GetParam().spec, {sparse});
  for (const at::Tensor& gradient : random_gradients(4)) {
    dense.mutable_grad() = gradient;
    sparse.mutable_grad() = sparse_gradient(
        {3, 1, 0, 2},
        gradient.index_select(0, at::tensor({3, 1, 0, 2}, at::kLong)),
        4);
    for_dense->step();
    for_sparse->step();
  }
  test::expect_close(sparse, dense, 1e-6, 1e-6);
  EXPECT_FALSE(at::equal(dense, initial));
}

// Parameters that do not end where a row or a vector of the kernels does, and one that
// several threads share.
std::vector<at::Tensor> values_of_any_size() {
  std::vector<at::Tensor> values;
  for (const std::vector<int64_t>& shape : std::vector<std::vector<int64_t>>{
           {3, 0}, {1}, {255}, {37, 53}, {2, 3, 129}, {129, 1025}}) {
    values.push_back(at::rand(shape) - 0.5);
  }
  return values;
}

std::vector<at::Tensor> train_on_values(
    const OptimizerSpec& spec,
    const std::vector<at::Tensor>& values,
    at::ScalarType dtype) {
  std::vector<at::Tensor> parameters;
  for (const at::Tensor& value : values) {
    parameters.push_back(parameter(value.to(dtype)));
  }
  const auto optimizer = make_optimizer(spec, parameters);
  for (const double scale : {1.0, 0.5, -2.0}) {
    for (size_t i = 0; i < values.size(); ++i) {
      parameters[i].mutable_grad() = (values[i].neg().exp() * scale).to(dtype);
    }
    optimizer->step();
  }
  return parameters;
}

TEST_P(MakeOptimizerTest, KernelsEqualStockOperatorsOnDoubles) {
  const std::vector<at::Tensor> values = values_of_any_size();
  const auto found = train_on_values(GetParam().spec, values, at::kFloat);
  const auto expected = train_on_values(GetParam().spec, values, at::kDouble);
  for (size_t i = 0; i < values.size(); ++i) {
    SCOPED_TRACE(values[i].sizes());
    test::expect_close(found[i].to(at::kDouble), expected[i], 1e-5, 1e-5);
    EXPECT_TRUE(
        values[i].numel() == 0 || !at::equal(found[i].detach(), values[i]));
  }
}

// The tensors of an update of a parameter.
struct UpdateTensors {
  UpdateTensors(const OptimizerSpec& spec, at::IntArrayRef shape)
      : gradient(at::ones(shape)), rows{.weights = at::ones(shape)} {
    for (const SlotSpec& slot : slots_of(spec)) {
      rows.slots.push_back(at::ones(slot_shape(slot, shape)));
    }
  }

  at::Tensor gradient;
  TensorRows rows;
};

TEST_P(MakeOptimizerTest, KernelsTakeAllRulesButCustomOnes) {
  const OptimizerSpec& spec = GetParam().spec;
  const bool is_custom = spec.get_if<CustomOptimizer>() != nullptr;
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{0}, {3, 0}, {7}, {4, 300}}) {
    const UpdateTensors tensors(spec, shape);
    DenseUpdate update;
    EXPECT_EQ(update.add(spec, {}, tensors.gradient, tensors.rows), !is_custom);
  }
}

TEST(DenseUpdateTest, LeavesOtherTensorsToStockOperators) {
  const OptimizerSpec spec = Adagrad{};
  const auto takes = [&](const std::function<void(UpdateTensors&)>& change) {
    UpdateTensors tensors(spec, {4, 6});
    change(tensors);
    return DenseUpdate().add(spec, {}, tensors.gradient, tensors.rows);
  };
  EXPECT_TRUE(takes([](UpdateTensors&) {}));
  EXPECT_FALSE(takes([](auto& t) { t.gradient = at::ones({6}); }));
  EXPECT_FALSE(takes([](auto& t) { t.gradient = at::ones({6, 4}).t(); }));
  EXPECT_FALSE(takes([](auto& t) { t.gradient = at::_neg_view(t.gradient); }));
  EXPECT_FALSE(takes([](auto& t) {
    t.gradient = at::_efficientzerotensor({4, 6});
  }));
  EXPECT_FALSE(takes([](auto& t) { t.gradient = t.gradient.to(at::kDouble); }));
  EXPECT_FALSE(takes([](auto& t) { t.rows.weights = at::ones({6, 4}).t(); }));
  EXPECT_FALSE(takes([](auto& t) { t.rows.weights = at::ones({8, 6}); }));
  EXPECT_FALSE(takes([](auto& t) { t.rows.slots[0] = at::ones({4, 5}); }));
}

// Threads would update them at the same time.
TEST(DenseUpdateTest, LeavesSharedMemoryToStockOperators) {
  const OptimizerSpec spec = SGD{};
  const UpdateTensors first(spec, {4, 6});
  DenseUpdate update;
  EXPECT_TRUE(update.add(spec, {}, first.gradient, first.rows));
  UpdateTensors second(spec, {6});
  EXPECT_TRUE(update.add(spec, {}, first.gradient[1], second.rows));
  EXPECT_FALSE(update.add(
      spec, {}, second.gradient, {.weights = first.rows.weights[3]}));
  EXPECT_FALSE(
      update.add(spec, {}, second.gradient, {.weights = first.gradient[3]}));
  UpdateTensors third(spec, {6});
  EXPECT_FALSE(update.add(spec, {}, first.rows.weights[2], third.rows));
  EXPECT_TRUE(update.add(spec, {}, third.gradient, third.rows));
  const at::Tensor memory = at::ones({7});
  EXPECT_FALSE(DenseUpdate().add(
      spec, {}, memory.slice(0, 1), {.weights = memory.slice(0, 0, 6)}));
  EXPECT_TRUE(DenseUpdate().add(spec, {}, memory, {.weights = memory}));
}

// Double has no kernels.
TEST(SpecOptimizerTest, ParametersThatShareMemoryAreUpdatedInTheirOrder) {
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
    at::Tensor first = parameter(at::ones({1}, dtype));
    at::Tensor second = first.detach().requires_grad_(true);
    const auto optimizer = make_optimizer(
        SGD{.learning_rate = 0.1, .weight_decay_factor = 0.5}, {first, second});
    first.mutable_grad() = at::ones({1}, dtype);
    second.mutable_grad() = at::zeros({1}, dtype);
    optimizer->step();
    EXPECT_NEAR(first.item<double>(), 0.2, 1e-6) << dtype;
  }
}

TEST(SpecOptimizerTest, OtherShapesRaiseBeforeAnythingChanges) {
  at::Tensor first = parameter(at::ones({2}));
  at::Tensor weight = parameter(at::ones({3, 4}));
  const auto optimizer = make_optimizer(Adam{}, {first, weight});
  first.mutable_grad() = at::ones({2});
  weight.mutable_grad() = at::ones({4});
  EXPECT_VALUE_ERROR(
      optimizer->step(),
      "[group 0, parameter 1] the gradient must have the shape of the "
      "parameter, [3, 4], but has [4]. Sum or reshape it.");
  EXPECT_TENSOR_EQ(first.detach(), at::ones({2}));
  weight.mutable_grad() = at::ones({3, 4});
  optimizer->step();
  const at::Tensor before = first.detach().clone();
  weight.mutable_grad().reset();
  weight.set_data(at::ones({1, 4}));
  weight.mutable_grad() = at::ones({1, 4});
  EXPECT_VALUE_ERROR(
      optimizer->step(),
      "[group 0, parameter 1] the slot 'momenta' has the shape [3, 4], which "
      "does not fit the parameter, whose shape is [1, 4] now.");
  EXPECT_TENSOR_EQ(first.detach(), before);
}

TEST_P(MakeOptimizerTest, TheNumberOfThreadsChangesNoBit) {
  const std::vector<at::Tensor> values = values_of_any_size();
  const auto with = [&](int threads) {
    const test::Threads guard(threads);
    return train_on_values(GetParam().spec, values, at::kFloat);
  };
  const auto expected = with(1);
  const auto found = with(3);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TENSOR_EQ(found[i], expected[i]) << values[i].sizes();
  }
}

TEST_P(MakeOptimizerTest, ASparseGradientChangesOnlyItsRows) {
  const at::Tensor initial = at::rand({4, 3}) - 0.5;
  at::Tensor weight = parameter(initial);
  const auto optimizer = make_optimizer(GetParam().spec, {weight});
  for (int i = 0; i < 3; ++i) {
    weight.mutable_grad() =
        sparse_gradient({2, 0, 2}, at::rand({3, 3}) + 0.1, 4);
    optimizer->step();
  }
  EXPECT_TENSOR_EQ(weight[1], initial[1]);
  EXPECT_TENSOR_EQ(weight[3], initial[3]);
  EXPECT_FALSE(at::equal(weight[0], initial[0]));
  EXPECT_FALSE(at::equal(weight[2], initial[2]));
}

// In stock operators, which update rows of sparse gradients.
TEST(SpecOptimizerTest, CenteredRmspropIsExactOver10000Steps) {
  for (const double rho : {0.5, 0.9}) {
    SCOPED_TRACE(rho);
    const at::Tensor noise = at::randn({10'000});
    at::Tensor weight = parameter(at::zeros({1, 5}));
    const auto optimizer =
        make_optimizer(RMSprop{.rho = rho, .centered = true}, {weight});
    // The difference of squares needs more digits than a double has.
    std::array<long double, 5> weights{};
    std::array<long double, 5> squares{};
    std::array<long double, 5> means{};
    for (int64_t step = 0; step < 10'000; ++step) {
      const float random = noise[step].item<float>();
      const at::Tensor gradient = at::tensor(
          {1.4F, step < 10 ? 1.4F : 0.7F, random, 1.0F + 1e-3F * random, 1e3F},
          at::kFloat);
      weight.mutable_grad() = sparse_gradient({0}, gradient.unsqueeze(0), 1);
      optimizer->step();
      for (size_t i = 0; i < weights.size(); ++i) {
        const long double g = gradient[static_cast<int64_t>(i)].item<float>();
        squares[i] = rho * squares[i] + (1 - rho) * g * g;
        means[i] = rho * means[i] + (1 - rho) * g;
        weights[i] -=
            1e-3L * g / std::sqrt(squares[i] - means[i] * means[i] + 1e-7L);
      }
      if (step % 50 == 0 || step == 9'999) {
        const at::Tensor expected = at::zeros({1, 5}, at::kDouble);
        std::copy(
            weights.begin(),
            weights.end(),
            expected.mutable_data_ptr<double>());
        test::expect_close(
            weight.detach().to(at::kDouble), expected, 2e-4, 2e-4);
      }
    }
  }
}

TEST(SpecOptimizerTest, MeanSquaresOfOldArchivesBecomeVariances) {
  const RMSprop spec{.momentum = 0.5, .centered = true};
  at::Tensor weight = parameter(at::rand({4, 3}));
  const auto optimizer = make_optimizer(spec, {weight});
  for (const at::Tensor& gradient : random_gradients(5)) {
    weight.mutable_grad() = gradient;
    optimizer->step();
  }
  std::ostringstream stream;
  torch::save(*optimizer, stream);
  at::Tensor means;
  test::changed_archive(stream.str(), [&](std::string& key, at::Tensor& value) {
    means = key == "slot_means" ? value : means;
    return true;
  });
  std::istringstream old(test::changed_archive(
      stream.str(), [&](std::string& key, at::Tensor& value) {
        if (key == "slot_variances") {
          key = "slot_mean_squares";
          value = value + means.square();
        }
        return true;
      }));
  at::Tensor loaded = parameter(weight.detach());
  const auto other = make_optimizer(spec, {loaded});
  torch::load(*other, old);
  weight.mutable_grad() = at::ones({4, 3});
  loaded.mutable_grad() = at::ones({4, 3});
  optimizer->step();
  other->step();
  test::expect_close(loaded, weight, 1e-6, 1e-6);
}

TEST(SpecOptimizerTest, DenseWeightsOfAnyRankTrain) {
  for (const auto& shape :
       std::vector<std::vector<int64_t>>{{3}, {2, 3}, {2, 2, 3}}) {
    at::Tensor weight = parameter(at::ones(shape));
    for (const auto& [name, spec] : test::spec_variants()) {
      SCOPED_TRACE(name);
      const auto optimizer = make_optimizer(spec, {weight});
      const at::Tensor before = weight.detach().clone();
      weight.mutable_grad() = at::full(shape, 0.5);
      optimizer->step();
      EXPECT_FALSE(at::equal(weight, before));
      EXPECT_EQ(weight.sizes(), at::IntArrayRef(shape));
    }
  }
}

TEST(SpecOptimizerTest, AScalarTrainsUnlessTheRuleNeedsARow) {
  at::Tensor weight = parameter(at::ones({}));
  weight.mutable_grad() = at::ones({});
  make_optimizer(SGD{.learning_rate = 0.5}, {weight})->step();
  EXPECT_EQ(weight.item<float>(), 0.5F);
  EXPECT_VALUE_ERROR(
      make_optimizer(RowWiseAdagrad{}, {weight})->step(),
      "[group 0, parameter 0] RowWiseAdagrad has a slot per row, so it needs a "
      "parameter of one dimension or more, but got a scalar. Reshape the "
      "parameter to [1].");
}

// Kernels write to the memory of a tensor, which autograd does not see by itself.
TEST(SpecOptimizerTest, AutogradNoticesThatAStepChangedSavedWeights) {
  at::Tensor weight = parameter(at::ones({3}));
  const auto optimizer = make_optimizer(SGD{.learning_rate = 0.5}, {weight});
  const at::Tensor loss = weight.square().sum();
  weight.mutable_grad() = at::ones({3});
  optimizer->step();
  EXPECT_TORCH_ERROR(loss.backward(), "modified by an inplace operation");
}

TEST(SpecOptimizerTest, AnyStridesTrain) {
  const at::Tensor values = at::rand({5, 7});
  at::Tensor plain = parameter(values);
  at::Tensor transposed = values.t().contiguous().t().requires_grad_(true);
  const auto optimizer = make_optimizer(Adam{}, {plain, transposed});
  for (int i = 0; i < 3; ++i) {
    plain.mutable_grad() = at::ones({7, 5}).mul(i + 1).t();
    transposed.mutable_grad() = at::full({5, 7}, i + 1);
    optimizer->step();
  }
  EXPECT_FALSE(transposed.is_contiguous());
  test::expect_close(transposed.detach(), plain.detach(), 1e-6, 1e-6);
  EXPECT_FALSE(at::equal(plain, values));
}

TEST(SpecOptimizerTest, ASweepUpdatesRowsThatASparseGradientLacks) {
  at::Tensor weight = parameter(at::ones({3, 2}));
  const auto optimizer = make_optimizer(
      Momentum{.learning_rate = 1.0, .momentum = 0.5, .lazy = false}, {weight});
  weight.mutable_grad() = sparse_gradient({0}, at::ones({1, 2}), 3);
  optimizer->step();
  weight.mutable_grad() = sparse_gradient({1}, at::ones({1, 2}), 3);
  optimizer->step();
  test::expect_close(weight.select(1, 0), at::tensor({-0.5F, 0.0F, 1.0F}));
}

TEST(SpecOptimizerTest, LibTorchSchedulersChangeTheLearningRate) {
  at::Tensor weight = parameter(at::zeros({1}));
  const auto optimizer = make_optimizer(SGD{.learning_rate = 1.0}, {weight});
  torch::optim::StepLR scheduler(*optimizer, 1, 0.5);
  for (int i = 0; i < 3; ++i) {
    weight.mutable_grad() = at::ones({1});
    optimizer->step();
    scheduler.step();
  }
  // LibTorch's first scheduler step changes nothing.
  EXPECT_EQ(weight.item<float>(), -2.5F);
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.25);
}

TEST(SpecOptimizerTest, GetLrReturnsTheRateOfTheNextStep) {
  at::Tensor weight = parameter(at::zeros({1}));
  const auto optimizer = make_optimizer(
      SGD{.learning_rate =
              PiecewiseConstantDecay{
                  .boundaries = {0.0}, .values = {1.0, 0.25}}},
      {weight});
  auto& options = optimizer->param_groups()[0].options();
  EXPECT_EQ(options.get_lr(), 1.0);
  weight.mutable_grad() = at::ones({1});
  optimizer->step();
  EXPECT_EQ(weight.item<float>(), -1.0F);
  EXPECT_EQ(options.get_lr(), 0.25);
  options.set_lr(2.0);
  optimizer->step();
  EXPECT_EQ(weight.item<float>(), -3.0F);
  EXPECT_VALUE_ERROR(
      options.set_lr(-1.0), "learning_rate must be finite in float32 and >= 0");
}

TEST(SpecOptimizerTest, ACallableOfSeveralGroupsIsReadOncePerStep) {
  int reads = 0;
  const LearningRate rate = [&] {
    ++reads;
    return 0.5;
  };
  at::Tensor first = parameter(at::zeros({1}));
  at::Tensor second = parameter(at::zeros({1}));
  const auto optimizer = make_optimizer(
      {{SGD{.learning_rate = rate}, {first}},
       {Adagrad{.learning_rate = rate}, {second}}});
  first.mutable_grad() = at::ones({1});
  second.mutable_grad() = at::ones({1});
  optimizer->step();
  EXPECT_EQ(reads, 1);
  EXPECT_EQ(first.item<float>(), -0.5F);
  EXPECT_NEAR(second.item<float>(), -0.5 / std::sqrt(1.1), 1e-6);
}

TEST(SpecOptimizerTest, AccumulatesTheMeanOfSeveralSteps) {
  at::Tensor dense = parameter(at::zeros({2, 1}));
  at::Tensor sparse = parameter(at::zeros({2, 1}));
  const auto optimizer = make_optimizer(
      SGD{.learning_rate = 1.0, .gradient_accumulation_steps = 2},
      {dense, sparse});
  for (const float value : {1.0F, 3.0F}) {
    EXPECT_EQ(dense[0].item<float>(), 0.0F);
    dense.mutable_grad() = at::full({2, 1}, value);
    sparse.mutable_grad() = sparse_gradient({1}, at::full({1, 1}, value), 2);
    optimizer->step();
  }
  test::expect_close(dense, at::full({2, 1}, -2.0F));
  test::expect_close(sparse, at::tensor({0.0F, -2.0F}).view({2, 1}));
}

TEST(SpecOptimizerTest, APassWithoutGradientCountsAsZeros) {
  at::Tensor always = parameter(at::zeros({1}));
  at::Tensor once = parameter(at::zeros({1}));
  const auto optimizer = make_optimizer(
      SGD{.learning_rate = 1.0, .gradient_accumulation_steps = 2},
      {always, once});
  always.mutable_grad() = at::ones({1});
  once.mutable_grad() = at::ones({1});
  optimizer->step();
  once.mutable_grad() = at::Tensor();
  optimizer->step();
  EXPECT_EQ(always.item<float>(), -1.0F);
  EXPECT_EQ(once.item<float>(), -0.5F);
  always.mutable_grad() = at::Tensor();
  optimizer->step();  // without any gradient, this is no step
  always.mutable_grad() = at::ones({1});
  optimizer->step();
  EXPECT_EQ(always.item<float>(), -1.0F);
  optimizer->step();
  EXPECT_EQ(always.item<float>(), -2.0F);
}

// Trains on dense and sparse gradients, and stops after different numbers of
// steps.
void expect_continues(OptimizerSpec spec, int64_t steps) {
  modify(spec, [&](auto& held) { held.gradient_accumulation_steps = steps; });
  const at::Tensor initial = at::rand({4, 3}) - 0.5;
  const std::vector<at::Tensor> gradients = random_gradients(8);
  struct Trained {
    Trained(const OptimizerSpec& spec, const at::Tensor& initial)
        : dense(parameter(initial)),
          sparse(parameter(initial)),
          optimizer(make_optimizer(spec, {dense, sparse})) {}
    void step(const at::Tensor& gradient, int64_t index) {
      dense.mutable_grad() = gradient;
      sparse.mutable_grad() =
          sparse_gradient({index % 4}, gradient.slice(0, 0, 1), 4);
      optimizer->step();
    }
    at::Tensor dense;
    at::Tensor sparse;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
  };
  Trained uninterrupted(spec, initial);
  for (int64_t i = 0; i < 8; ++i) {
    uninterrupted.step(gradients[i], i);
  }
  for (const int64_t stop : {1, 2, 3, 5}) {
    Trained first(spec, initial);
    for (int64_t i = 0; i < stop; ++i) {
      first.step(gradients[i], i);
    }
    std::stringstream stream;
    torch::save(*first.optimizer, stream);
    Trained second(spec, first.dense.detach());
    {
      const at::NoGradGuard no_grad;
      second.sparse.copy_(first.sparse);
    }
    second.step(gradients[7], 7);  // load() drops this gradient
    {
      const at::NoGradGuard no_grad;
      second.dense.copy_(first.dense);
      second.sparse.copy_(first.sparse);
    }
    torch::load(*second.optimizer, stream);
    for (int64_t i = stop; i < 8; ++i) {
      second.step(gradients[i], i);
    }
    EXPECT_TENSOR_EQ(second.dense, uninterrupted.dense) << stop;
    EXPECT_TENSOR_EQ(second.sparse, uninterrupted.sparse) << stop;
  }
}

TEST_P(MakeOptimizerTest, ContinuesBitForBitAfterLoading) {
  expect_continues(GetParam().spec, 1);
}

TEST_P(MakeOptimizerTest, AnAccumulationContinuesBitForBitAfterLoading) {
  expect_continues(GetParam().spec, 3);
}

TEST(SpecOptimizerTest, RefusesAnAccumulationOverOtherStepsOrShapes) {
  const auto optimizer_of = [](int64_t steps, at::Tensor weights) {
    return make_optimizer(
        SGD{.learning_rate = 1.0, .gradient_accumulation_steps = steps},
        {std::move(weights)});
  };
  at::Tensor weights = parameter(at::zeros({4, 3}));
  for (const bool is_sparse : {false, true}) {
    const auto optimizer = optimizer_of(3, weights);
    weights.mutable_grad() = is_sparse
        ? sparse_gradient({3}, at::ones({1, 3}), 4)
        : at::ones({4, 3});
    optimizer->step();
    const auto load_into = [&](torch::optim::Optimizer& other) {
      test::copy_by_archive(*optimizer, other);
    };
    EXPECT_VALUE_ERROR(
        load_into(*optimizer_of(2, weights)),
        "[group 0, parameter 0] gradient_accumulation_steps is 2, but the "
        "gradient that was saved is a part of 3");
    EXPECT_VALUE_ERROR(
        load_into(*optimizer_of(3, parameter(at::zeros({3, 3})))),
        "[group 0, parameter 0] the collected gradient must be Float of shape "
        "[3, 3], but the archive has none of that type and shape");
    EXPECT_VALUE_ERROR(
        load_into(*optimizer_of(3, parameter(at::zeros({4, 2})))),
        "[group 0, parameter 0] the collected gradient must be Float of shape "
        "[4, 2], but the archive has none of that type and shape");
  }
}

TEST(SpecOptimizerTest, CallsTheClosureOnceWithGradientsEnabled) {
  at::Tensor weight = parameter(at::ones({1}));
  const auto optimizer = make_optimizer(SGD{.learning_rate = 1.0}, {weight});
  const at::NoGradGuard no_grad;
  int calls = 0;
  const at::Tensor loss = optimizer->step([&] {
    ++calls;
    const at::Tensor value = weight.square().sum();
    value.backward();
    return value;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(loss.item<float>(), 1.0F);
  EXPECT_EQ(weight.item<float>(), -1.0F);
}

TEST(SpecOptimizerTest, KeepsParametersWithoutGradient) {
  at::Tensor used = parameter(at::zeros({1}));
  at::Tensor unused = parameter(at::zeros({1}));
  const auto optimizer = make_optimizer(Adam{}, {used, unused});
  optimizer->step();
  EXPECT_EQ(used.item<float>(), 0.0F);
  used.mutable_grad() = at::ones({1});
  optimizer->step();
  EXPECT_NE(used.item<float>(), 0.0F);
  EXPECT_EQ(unused.item<float>(), 0.0F);
}

TEST(SpecOptimizerTest, FailsBeforeAnyParameterChanges) {
  at::Tensor first = parameter(at::ones({1}));
  at::Tensor second = parameter(at::ones({1}));
  const auto expect_refused = [&](const OptimizerSpec& spec, const char* text) {
    const auto optimizer = make_optimizer(
        {{SGD{.learning_rate = 1.0}, {first}}, {spec, {second}}});
    first.mutable_grad() = at::ones({1});
    second.mutable_grad() = at::ones({1});
    EXPECT_VALUE_ERROR(optimizer->step(), text);
    EXPECT_EQ(first.item<float>(), 1.0F);
    EXPECT_EQ(second.item<float>(), 1.0F);
  };
  expect_refused(
      SGD{.learning_rate = [] { return -1.0; }},
      "[group 1, parameter 0] learning_rate must be finite in float32 and >= 0, but got "
      "-1");
  expect_refused(
      CustomOptimizer{
          .rule = CustomRule(
              "wide", [](CustomRows& rows) { rows.weights = at::zeros({2}); })},
      "[group 1, parameter 0] the custom rule must leave weights as Float of "
      "shape [1], but left Float of shape [2]");
  expect_refused(
      CustomOptimizer{
          .rule = CustomRule(
              "throws",
              [](CustomRows& /*rows*/) {
                TORCH_CHECK_VALUE(false, "out of luck");
              })},
      "out of luck");
}

TEST(SpecOptimizerTest, AddedParametersGetTheSpecOfTheFirstGroup) {
  at::Tensor first = parameter(at::zeros({1}));
  at::Tensor second = parameter(at::zeros({1}));
  const auto optimizer = make_optimizer(SGD{.learning_rate = 0.5}, {first});
  optimizer->add_param_group(torch::optim::OptimizerParamGroup({second}));
  second.mutable_grad() = at::ones({1});
  optimizer->step();
  EXPECT_EQ(second.item<float>(), -0.5F);
  EXPECT_EQ(optimizer->param_groups()[1].options().get_lr(), 0.5);
}

TEST(MakeOptimizerErrorsTest, RefusesUnusableSpecsAndParameters) {
  const at::Tensor weight = parameter(at::ones({1}));
  EXPECT_VALUE_ERROR(
      make_optimizer(SGD{}, {}),
      "[make_optimizer] parameters must not be empty");
  EXPECT_VALUE_ERROR(
      make_optimizer(std::vector<SpecGroup>{}),
      "[make_optimizer] expected one group or more, but got none. Pass a group "
      "for each spec.");
  EXPECT_VALUE_ERROR(
      make_optimizer({{Adam{.beta_1 = 2.0}, {weight}}}),
      "[make_optimizer] Adam: beta_1 must be >= 0 and < 1, but got 2");
  EXPECT_VALUE_ERROR(
      make_optimizer(SGD{.use_gradient_accumulation = false}, {weight}),
      "[make_optimizer] use_gradient_accumulation = false applies the gradients "
      "of a row one by one, but this optimizer gets only their sum. Set it to "
      "true");
  EXPECT_VALUE_ERROR(
      make_optimizer(SGD{.learning_rate = -1.0}, {weight}),
      "[make_optimizer] SGD: learning_rate must be finite in float32 and >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      make_optimizer(SGD{}, {weight * 2}),
      "[make_optimizer] parameter 0 must be a leaf tensor of a floating-point "
      "type, but is the result of an operation. Pass tensors such as the "
      "parameters() of a model.");
  EXPECT_VALUE_ERROR(
      make_optimizer(SGD{}, {at::tensor({1, 2}, at::kLong)}), "but is Long");
  EXPECT_VALUE_ERROR(make_optimizer(SGD{}, {at::Tensor()}), "but is undefined");
  EXPECT_VALUE_ERROR(
      make_optimizer({{SGD{}, {weight}}, {Adam{}, {weight}}}),
      "[make_optimizer] each parameter must be given once, but parameter 0 is "
      "given twice. Remove one of them");
  EXPECT_VALUE_ERROR(
      make_optimizer(
          Adagrad{
              .slot_creation = SlotCreation(
                  "mine", [](const SlotRequest&) { return at::Tensor(); })},
          {weight}),
      "[make_optimizer] slot_creation must be unset, because it creates only "
      "the slots of tables. Unset it for other parameters.");
}

TEST(SpecOptimizerTest, RefusesSparseGradientsWithoutWholeRows) {
  at::Tensor first = parameter(at::ones({2}));
  at::Tensor flat = parameter(at::ones({4}));
  const auto optimizer = make_optimizer(SGD{}, {first, flat});
  first.mutable_grad() = at::ones({2});
  flat.mutable_grad() = at::sparse_coo_tensor(
      at::tensor({1}, at::kLong).unsqueeze(0), at::ones({1}), {4});
  EXPECT_VALUE_ERROR(
      optimizer->step(),
      "[group 0, parameter 1] a sparse gradient must hold whole rows of a "
      "parameter of rank 2 or above, but got 1 sparse dimensions for rank 1. "
      "Convert the gradient with to_dense().");
  EXPECT_TENSOR_EQ(first, at::ones({2}));
}

TEST(SpecOptimizerTest, ARuleGetsACopyOfTheGradient) {
  at::Tensor weight = parameter(at::ones({2}));
  const auto optimizer = make_optimizer(
      CustomOptimizer{
          .rule = CustomRule(
              "doubles", [](CustomRows& rows) { rows.gradients.mul_(2.0); })},
      {weight});
  weight.mutable_grad() = at::ones({2});
  optimizer->step();
  EXPECT_TENSOR_EQ(weight.grad(), at::ones({2}));
}

TEST(SpecOptimizerTest, LoadResetsSlotsThatTheArchiveLacks) {
  at::Tensor weight = parameter(at::ones({2}));
  weight.mutable_grad() = at::ones({2});
  const auto optimizer =
      make_optimizer(Adagrad{.learning_rate = 0.5}, {weight});
  std::stringstream fresh;
  torch::save(*optimizer, fresh);
  optimizer->step();
  const at::Tensor after_first = weight.detach().clone();
  torch::load(*optimizer, fresh);
  const at::NoGradGuard no_grad;
  weight.fill_(1.0);
  optimizer->step();
  EXPECT_TENSOR_EQ(weight, after_first);
}

TEST(MakeOptimizerErrorsTest, LoadListsEveryDifferenceAndChangesNothing) {
  at::Tensor weight = parameter(at::ones({2, 2}));
  weight.mutable_grad() = at::ones({2, 2});
  const auto adagrad = make_optimizer(Adagrad{}, {weight});
  adagrad->step();
  std::stringstream stream;
  torch::save(*adagrad, stream);

  const auto adam = make_optimizer(Adam{}, {weight});
  EXPECT_VALUE_ERROR(
      torch::load(*adam, stream),
      "[SpecOptimizer::load] the archive does not fit this optimizer; nothing "
      "was changed. Make the optimizer from the same specs and parameters as "
      "the saved one. The differences:\n  group 0 has the optimizer Adam, but "
      "the archive has Adagrad\n  [group 0, parameter 0] slot 'momenta' must be "
      "Float of shape [2, 2], but the archive has no tensor\n  [group 0, "
      "parameter 0] slot 'velocities' must be Float of shape [2, 2], but the "
      "archive has no tensor");
  stream.clear();
  stream.seekg(0);
  const auto wide = make_optimizer(Adagrad{}, {parameter(at::ones({3, 2}))});
  EXPECT_VALUE_ERROR(
      torch::load(*wide, stream),
      "slot 'accumulators' must be Float of shape [3, 2], but the archive has "
      "Float of shape [2, 2]");
}

// The archive of an SGD that has one parameter and no slots.
torch::serialize::InputArchive archive_of_sgd(
    int64_t groups,
    const c10::IValue& learning_rate,
    int64_t parameters) {
  torch::serialize::OutputArchive output;
  output.write("format_version", c10::IValue(int64_t{1}));
  output.write("iterations", c10::IValue(int64_t{0}));
  output.write("groups", c10::IValue(groups));
  torch::serialize::OutputArchive group(output.compilation_unit());
  group.write("optimizer", c10::IValue("SGD"));
  group.write("learning_rate", learning_rate);
  group.write("parameters", c10::IValue(parameters));
  output.write("group_0", group);
  auto archive = test::reread(output);
  return archive;
}

TEST(MakeOptimizerErrorsTest, LoadRefusesALearningRateThatIsNoFloat) {
  const auto optimizer =
      make_optimizer(SGD{.learning_rate = 0.5}, {parameter(at::ones({1}))});
  const auto rate = [&] {
    return optimizer->param_groups()[0].options().get_lr();
  };
  for (const auto& [bad, text] :
       {std::pair{1e300, "1e+300"},
        std::pair{-1.0, "-1"},
        std::pair{std::numeric_limits<double>::infinity(), "inf"},
        std::pair{std::nan(""), "nan"}}) {
    auto archive = archive_of_sgd(1, bad, 1);
    EXPECT_VALUE_ERROR(
        optimizer->load(archive),
        std::string("\n  group 0: learning_rate must be finite in float32 "
                    "and >= 0, but the archive has ") +
            text);
    EXPECT_EQ(rate(), 0.5);
  }
  auto without_number = archive_of_sgd(1, "0.1", 1);
  EXPECT_VALUE_ERROR(
      optimizer->load(without_number), "but the archive has no number");
  EXPECT_EQ(rate(), 0.5);
  // An archive of an earlier version does not say who chose its rate.
  auto fitting = archive_of_sgd(1, 0.25, 1);
  testing::internal::CaptureStderr();
  optimizer->load(fitting);
  const std::string warning = testing::internal::GetCapturedStderr();
  EXPECT_EQ(rate(), 0.5);
  EXPECT_CONTAINS(warning, "the learning rate 0.25 of group 0");
}

TEST(MakeOptimizerErrorsTest, LoadRefusesOtherGroupsAndOtherArchives) {
  const auto optimizer = make_optimizer(SGD{}, {parameter(at::ones({1}))});
  auto two_groups = archive_of_sgd(2, 0.25, 1);
  EXPECT_VALUE_ERROR(
      optimizer->load(two_groups),
      "this optimizer has 1 groups, but the archive has 2");
  auto more_parameters = archive_of_sgd(1, 0.25, 3);
  EXPECT_VALUE_ERROR(
      optimizer->load(more_parameters),
      "group 0 has 1 parameters, but the archive has 3");
  std::stringstream stream;
  torch::serialize::OutputArchive empty;
  empty.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  EXPECT_VALUE_ERROR(
      optimizer->load(archive),
      "[SpecOptimizer::load] expected the archive of an optimizer from "
      "make_optimizer(), with format_version 1, but got another archive. Load "
      "what such an optimizer saved.");
  EXPECT_EQ(optimizer->param_groups()[0].options().get_lr(), 0.01);
}

}  // namespace tessera::optim::make_optimizer_test
