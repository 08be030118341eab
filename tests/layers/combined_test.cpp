// SPDX-License-Identifier: Apache-2.0
// Apply::kOnStep collects gradients of several passes for one update.
#include <tessera/optim/make_optimizer.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/schedulers/step_lr.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test::combined_test {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A table of 6 rows of width 2, and a dense layer on the sum of two features.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(
      const optim::OptimizerSpec& spec,
      Apply apply = Apply::kOnStep,
      Strategy strategy = Strategy::fused()) {
    const auto table = numbered_table("t", 6, 2);
    embedding = register_module(
        "embedding",
        layer_of(
            features_of({{"a", table}, {"b", table}}),
            spec,
            {.strategy = std::move(strategy), .apply = apply}));
    dense = register_module(
        "dense", torch::nn::Linear(torch::nn::LinearOptions(2, 1).bias(false)));
    const at::NoGradGuard no_grad;
    dense->weight.fill_(1.0);
  }

  // Returns the sum of the squared outputs over all examples.
  at::Tensor loss(const at::Tensor& a, const at::Tensor& b) {
    const auto activations = embedding->forward({{"a", a}, {"b", b}});
    return dense->forward(activations["a"] + activations["b"]).square().sum();
  }

  at::Tensor table() {
    return embedding->embedding_tables()["t"].clone();
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Linear dense{nullptr};
};
TORCH_MODULE(Model);

Combined make_combined(Model& model, CombinedOptions options = {}) {
  return Combined(
      torch::optim::SGD(model->parameters(), 0.001),
      {model->embedding},
      options);
}

const optim::OptimizerSpec kAdagrad = optim::Adagrad{.learning_rate = 0.1};

TEST(CombinedTest, MicroBatchesMatchOneBatch) {
  for (const optim::OptimizerSpec& spec : std::vector<optim::OptimizerSpec>{
           kAdagrad,
           optim::Adam{.learning_rate = 0.1},
           optim::Adam{.learning_rate = 0.1, .lazy_adam = false},
           optim::SGD{.learning_rate = 0.01, .weight_decay_factor = 0.1}}) {
    SCOPED_TRACE(optim::name_of(spec));
    Model whole(spec);
    Model parts(spec);
    auto whole_optimizer = make_combined(whole);
    auto parts_optimizer = make_combined(parts);
    const at::Tensor a = int64s({0, 1, 2, 0, 4, 4});
    const at::Tensor b = int64s({1, 1, 3, 2, 0, 0});
    for (int step = 0; step < 3; ++step) {
      whole_optimizer.zero_grad();
      parts_optimizer.zero_grad();
      whole->loss(a, b).backward();
      for (int64_t i = 0; i < 6; i += 2) {
        parts->loss(a.slice(0, i, i + 2), b.slice(0, i, i + 2)).backward();
      }
      whole_optimizer.step();
      parts_optimizer.step();
    }
    expect_close(parts->table(), whole->table(), 1e-5, 1e-5);
    expect_close(parts->dense->weight, whole->dense->weight, 1e-5, 1e-5);
    EXPECT_EQ(parts->embedding->iterations(), 3);
    EXPECT_TRUE(
        at::equal(parts->table()[5], floats({2}, {5, 5})) ||
        spec.get_if<optim::Adagrad>() == nullptr);
  }
}

TEST(CombinedTest, OneBatchPerStepMatchesTheUpdateInBackward) {
  Model in_backward(kAdagrad, Apply::kInBackward);
  Model on_step(kAdagrad);
  torch::optim::SGD dense(in_backward->parameters(), 0.001);
  auto combined = make_combined(on_step);
  for (int step = 0; step < 3; ++step) {
    dense.zero_grad();
    combined.zero_grad();
    in_backward->loss(int64s({0, 1}), int64s({1, 3})).backward();
    on_step->loss(int64s({0, 1}), int64s({1, 3})).backward();
    dense.step();
    combined.step();
  }
  expect_close(on_step->table(), in_backward->table(), 1e-6, 1e-6);
}

TEST(CombinedTest, NothingChangesBeforeTheStep) {
  Model model(kAdagrad);
  auto combined = make_combined(model);
  const at::Tensor before = model->table();
  model->loss(int64s({0}), int64s({1})).backward();
  EXPECT_TENSOR_EQ(model->table(), before);
  EXPECT_EQ(model->embedding->iterations(), 0);
  EXPECT_TENSOR_EQ(model->embedding->virtual_variable().grad(), at::zeros({1}));
  combined.step();
  EXPECT_FALSE(at::equal(model->table(), before));
  EXPECT_EQ(model->embedding->virtual_variable().item<float>(), 0.0F);
}

TEST(CombinedTest, ASecondBackwardOverOneForwardAddsUp) {
  Model twice(optim::SGD{.learning_rate = 0.01});
  Model doubled(optim::SGD{.learning_rate = 0.01});
  auto twice_optimizer = make_combined(twice);
  auto doubled_optimizer = make_combined(doubled);
  const at::Tensor loss = twice->loss(int64s({0}), int64s({1}));
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  (2 * doubled->loss(int64s({0}), int64s({1}))).backward();
  twice_optimizer.step();
  doubled_optimizer.step();
  expect_close(twice->table(), doubled->table());
}

TEST(CombinedTest, TheMeanIsOverPassesForDenseAndTables) {
  Model mean(optim::SGD{.learning_rate = 0.01});
  Model halved(optim::SGD{.learning_rate = 0.01});
  auto mean_optimizer =
      make_combined(mean, {.accumulation = Accumulation::kMean});
  auto halved_optimizer = make_combined(halved);
  for (int64_t i = 0; i < 2; ++i) {
    mean->loss(int64s({i}), int64s({2})).backward();
    (0.5 * halved->loss(int64s({i}), int64s({2}))).backward();
  }
  mean_optimizer.step();
  halved_optimizer.step();
  expect_close(mean->table(), halved->table());
  expect_close(mean->dense->weight, halved->dense->weight);
}

TEST(CombinedTest, EveryFormOfZeroGradDiscardsGradients) {
  const auto discards = [](auto zero_grad) {
    Model model(optim::SGD{.learning_rate = 0.01});
    auto combined = make_combined(model);
    const at::Tensor before = model->table();
    model->loss(int64s({0}), int64s({0})).backward();
    zero_grad(combined);
    combined.step();
    EXPECT_TENSOR_EQ(model->table(), before);
    EXPECT_EQ(model->embedding->iterations(), 0);
    // Discarded gradients do not come back in the next backward pass.
    model->loss(int64s({0}), int64s({0})).backward();
    zero_grad(combined);
    model->loss(int64s({5}), int64s({5})).backward();
    combined.step();
    EXPECT_TENSOR_EQ(model->table()[0], before[0]);
    EXPECT_FALSE(at::equal(model->table()[5], before[5]));
  };
  discards([](Combined& combined) { combined.zero_grad(); });
  discards([](Combined& combined) { combined.zero_grad(false); });
  discards([](Combined& combined) {
    static_cast<torch::optim::Optimizer&>(combined).zero_grad();
  });
}

TEST(CombinedTest, ClipsByTheNormOfDenseAndTablesTogether) {
  for (const double p : {2.0, 1.0, 3.0, kInfinity}) {
    SCOPED_TRACE(p);
    // On the host, LibTorch's own function sees the gradients of all parameters.
    Model host(
        optim::SGD{.learning_rate = 0.5}, Apply::kOnStep, Strategy::host());
    Model engine(optim::SGD{.learning_rate = 0.5});
    torch::optim::SGD host_optimizer(
        {torch::optim::OptimizerParamGroup(
             {host->dense->weight},
             std::make_unique<torch::optim::SGDOptions>(0.01)),
         torch::optim::OptimizerParamGroup(
             host->embedding->parameters(),
             std::make_unique<torch::optim::SGDOptions>(0.5))},
        torch::optim::SGDOptions(0.5));
    Combined engine_optimizer(
        torch::optim::SGD(engine->parameters(), 0.01), {engine->embedding});
    for (int64_t i = 0; i < 2; ++i) {
      const at::Tensor a = int64s({i, 3, 3});
      const at::Tensor b = int64s({0, i, 4});
      host->loss(a, b).backward();
      engine->loss(a, b).backward();
    }
    const double expected =
        torch::nn::utils::clip_grad_norm_(host->parameters(), 1.5, p);
    EXPECT_NEAR(
        engine_optimizer.clip_grad_norm_(1.5, p), expected, 1e-5 * expected);
    host_optimizer.step();
    engine_optimizer.step();
    expect_close(engine->table(), host->table(), 1e-5, 1e-5);
    expect_close(engine->dense->weight, host->dense->weight, 1e-5, 1e-5);
  }
}

TEST(CombinedTest, ANormBelowTheLimitClipsNothing) {
  Model model(kAdagrad);
  auto combined = make_combined(model);
  EXPECT_EQ(combined.clip_grad_norm_(1.0), 0.0);
  model->loss(int64s({1}), int64s({1})).backward();
  // Each column of both features has the gradient 2 * 4, so the sum for row 1 is
  // 16. Each dense weight has the gradient 2 * 4 * 2 = 16.
  EXPECT_NEAR(combined.clip_grad_norm_(1e9), 32.0, 1e-4);
  EXPECT_NEAR(combined.clip_grad_norm_(1e9), 32.0, 1e-4);
}

TEST(CombinedTest, AGradientWithoutRowsAddsNothingToTheNorm) {
  Model model(kAdagrad);
  auto combined = make_combined(model);
  at::Tensor& weight = model->dense->weight;
  weight.mutable_grad() = at::sparse_coo_tensor(
      at::zeros({1, 0}, at::kLong),
      at::zeros({0, weight.size(1)}),
      weight.sizes());
  for (const double p : {1.0, 2.0, kInfinity}) {
    EXPECT_EQ(combined.clip_grad_norm_(1.0, p), 0.0);
  }
}

TEST(CombinedTest, ClipsByTheNormOfTheMean) {
  Model model(kAdagrad);
  auto combined = make_combined(model, {.accumulation = Accumulation::kMean});
  model->loss(int64s({1}), int64s({1})).backward();
  model->loss(int64s({1}), int64s({1})).backward();
  EXPECT_NEAR(combined.clip_grad_norm_(8.0), 32.0, 1e-4);
  EXPECT_NEAR(combined.clip_grad_norm_(8.0), 8.0, 1e-4);
}

TEST(CombinedTest, LibTorchSchedulersAndCastsReachTheDenseOptimizer) {
  Model model(kAdagrad);
  Combined combined(
      torch::optim::SGD(model->parameters(), 1.0), {model->embedding});
  torch::optim::StepLR scheduler(combined, 1, 0.5);
  const auto moved = [&] {
    const at::Tensor before = model->dense->weight.detach().clone();
    combined.zero_grad();
    model->dense->weight.mutable_grad() = at::ones({1, 2});
    combined.step();
    return (before - model->dense->weight)[0][0].item<float>();
  };
  EXPECT_EQ(moved(), 1.0F);
  scheduler.step();  // LibTorch's first step changes nothing
  scheduler.step();
  EXPECT_EQ(moved(), 0.5F);
  static_cast<torch::optim::SGDOptions&>(combined.param_groups()[0].options())
      .lr(0.25);
  EXPECT_EQ(moved(), 0.25F);
  at::Tensor added = at::zeros({1}).requires_grad_(true);
  combined.add_param_group(torch::optim::OptimizerParamGroup({added}));
  added.mutable_grad() = at::ones({1});
  combined.step();
  EXPECT_EQ(added.item<float>(), -1.0F);
}

TEST(CombinedTest, SavesAndLoadsTheDenseOptimizer) {
  Model model(kAdagrad);
  const auto make = [&] {
    return Combined(
        torch::optim::Adam(model->parameters(), 0.1), {model->embedding});
  };
  std::stringstream stream;
  at::Tensor expected;
  const at::Tensor gradient = floats({1, 2}, {1, -2});
  {
    Combined combined = make();
    model->dense->weight.mutable_grad() = gradient;
    combined.step();
    torch::save(combined, stream);
    const at::Tensor saved = model->dense->weight.detach().clone();
    combined.step();
    expected = model->dense->weight.detach().clone();
    const at::NoGradGuard no_grad;
    model->dense->weight.copy_(saved);
  }
  Combined combined = make();
  torch::load(combined, stream);
  model->dense->weight.mutable_grad() = gradient;
  combined.step();
  EXPECT_TENSOR_EQ(model->dense->weight, expected);
}

TEST(CombinedTest, RefusesTheArchiveOfAnotherDenseOptimizer) {
  Model model(kAdagrad);
  std::stringstream stream;
  {
    Combined adam(
        torch::optim::Adam(model->parameters(), 0.1), {model->embedding});
    torch::save(adam, stream);
  }
  auto sgd = make_combined(model);
  EXPECT_VALUE_ERROR(
      torch::load(sgd, stream),
      "[Combined::load] the dense optimizer is torch::optim::SGD, but the "
      "archive was saved with torch::optim::Adam");
}

TEST(CombinedTest, TheClosureRunsOnceAndItsGradientsAreApplied) {
  Model model(optim::SGD{.learning_rate = 0.01});
  auto combined = make_combined(model);
  const at::Tensor before = model->table();
  int calls = 0;
  const at::NoGradGuard no_grad;
  const at::Tensor loss = combined.step([&] {
    ++calls;
    combined.zero_grad();
    const at::Tensor value = model->loss(int64s({2}), int64s({3}));
    value.backward();
    return value;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(loss.item<float>(), 100.0F);
  EXPECT_FALSE(at::equal(model->table()[2], before[2]));
}

TEST(CombinedTest, NonFiniteGradientsAreSkippedRaisedOrPassed) {
  const auto poisoned = [](Model& model, bool in_table) {
    auto activations =
        model->embedding->forward({{"a", int64s({0})}, {"b", int64s({1})}});
    if (in_table) {
      (activations["a"] * kInfinity).sum().backward();
    } else {
      activations["a"].sum().backward();
      model->dense->weight.mutable_grad() = at::full({1, 2}, NAN);
    }
  };
  for (const bool in_table : {true, false}) {
    Model model(optim::SGD{.learning_rate = 0.01});
    const at::Tensor table = model->table();
    const at::Tensor dense = model->dense->weight.detach().clone();
    const auto expect_unchanged = [&] {
      EXPECT_TENSOR_EQ(model->table(), table);
      EXPECT_TENSOR_EQ(model->dense->weight, dense);
      EXPECT_EQ(model->embedding->iterations(), 0);
    };
    {
      auto combined = make_combined(model, {.non_finite = NonFinite::kError});
      poisoned(model, in_table);
      EXPECT_VALUE_ERROR(
          combined.step(),
          "[Combined::step] gradients must be finite, but at least one has NaN or "
          "infinity; nothing was changed.");
      expect_unchanged();
      combined.zero_grad();
      combined.step();
    }
    {
      auto combined = make_combined(model, {.non_finite = NonFinite::kSkip});
      poisoned(model, in_table);
      combined.step();
      expect_unchanged();
      EXPECT_EQ(combined.skipped_steps(), 1);
      combined.zero_grad();
      model->loss(int64s({2}), int64s({2})).backward();
      combined.step();
      EXPECT_EQ(combined.skipped_steps(), 1);
      EXPECT_FALSE(at::equal(model->table()[2], table[2]));
      EXPECT_TENSOR_EQ(model->table()[0], table[0]);
      combined.zero_grad();
    }
    auto combined = make_combined(model);
    poisoned(model, in_table);
    EXPECT_FALSE(std::isfinite(combined.clip_grad_norm_(1.0)));
    combined.step();
    EXPECT_EQ(combined.skipped_steps(), 0);
    EXPECT_EQ(std::isfinite(model->table()[0][0].item<float>()), !in_table);
  }
}

TEST(CombinedTest, AFailingPassAddsNothing) {
  Model model(optim::SGD{.learning_rate = 0.01});
  auto combined = make_combined(model);
  model->loss(int64s({1}), int64s({1})).backward();
  const auto activations =
      model->embedding->forward({{"a", int64s({0})}, {"b", int64s({0})}});
  const at::Tensor loss = activations["a"].sum();
  activations["b"].sum().register_hook(
      [](const at::Tensor& gradient) { return gradient; });
  const at::Tensor failing = activations["b"] * 1.0;
  failing.register_hook([](const at::Tensor& gradient) -> at::Tensor {
    TORCH_CHECK(false, "hook");
    return gradient;
  });
  EXPECT_TORCH_ERROR((loss + failing.sum()).backward(), "hook");
  const at::Tensor before = model->table();
  combined.step();
  EXPECT_TENSOR_EQ(model->table()[0], before[0]);
  EXPECT_FALSE(at::equal(model->table()[1], before[1]));
}

TEST(CombinedTest, AFailingLearningRateChangesNothingAndCanBeFixed) {
  bool fails = true;
  Model model(optim::SGD{.learning_rate = [&] { return fails ? NAN : 0.01; }});
  auto combined = make_combined(model);
  const at::Tensor table = model->table();
  const at::Tensor dense = model->dense->weight.detach().clone();
  model->loss(int64s({1}), int64s({1})).backward();
  EXPECT_VALUE_ERROR(
      combined.step(),
      "[table 't'] learning_rate must be finite in float32 and >= 0, but got nan");
  EXPECT_TENSOR_EQ(model->table(), table);
  EXPECT_TENSOR_EQ(model->dense->weight, dense);
  fails = false;
  combined.step();
  EXPECT_FALSE(at::equal(model->table(), table));
}

TEST(CombinedTest, TwoLayersStepTogether) {
  Model first(optim::SGD{.learning_rate = 0.01});
  Model second(kAdagrad);
  std::vector<at::Tensor> parameters = first->parameters();
  for (const at::Tensor& parameter : second->parameters()) {
    parameters.push_back(parameter);
  }
  Combined combined(
      torch::optim::SGD(parameters, 0.001),
      {first->embedding, second->embedding});
  const at::Tensor first_table = first->table();
  const at::Tensor second_table = second->table();
  first->loss(int64s({1}), int64s({1})).backward();
  combined.step();
  EXPECT_FALSE(at::equal(first->table(), first_table));
  EXPECT_TENSOR_EQ(second->table(), second_table);
  EXPECT_EQ(second->embedding->iterations(), 0);
}

TEST(CombinedTest, WithoutCombinedTheLayerRefusesToAccumulate) {
  Model model(kAdagrad);
  EXPECT_TORCH_ERROR(
      model->loss(int64s({0}), int64s({0})),
      "[TPUEmbedding] Apply::kOnStep needs a Combined optimizer");
  {
    const at::NoGradGuard no_grad;
    model->loss(int64s({0}), int64s({0}));
  }
  model->embedding->virtual_variable().requires_grad_(false);
  model->loss(int64s({0}), int64s({0}));
  model->embedding->virtual_variable().requires_grad_(true);
  {
    auto combined = make_combined(model);
    Combined moved = std::move(combined);
    model->loss(int64s({0}), int64s({0}));
    EXPECT_TORCH_ERROR(
        make_combined(model), "the layer belongs to another Combined already");
  }
  EXPECT_TORCH_ERROR(
      model->loss(int64s({0}), int64s({0})), "needs a Combined optimizer");
}

TEST(CombinedTest, AFailingDenseStepCanBeRepeated) {
  Model mean(optim::SGD{.learning_rate = 0.01});
  Model expected(optim::SGD{.learning_rate = 0.01});
  bool fails = true;
  const CombinedOptions options{.accumulation = Accumulation::kMean};
  Combined mean_optimizer(
      optim::make_optimizer(
          optim::SGD{.learning_rate = [&] { return fails ? NAN : 0.001; }},
          mean->parameters()),
      {mean->embedding},
      options);
  auto expected_optimizer = make_combined(expected, options);
  for (int64_t i = 0; i < 2; ++i) {
    mean->loss(int64s({i}), int64s({2})).backward();
    expected->loss(int64s({i}), int64s({2})).backward();
  }
  const at::Tensor before = mean->table();
  EXPECT_VALUE_ERROR(mean_optimizer.step(), "learning_rate must be finite");
  EXPECT_TENSOR_EQ(mean->table(), before);
  fails = false;
  mean_optimizer.step();
  expected_optimizer.step();
  expect_close(mean->table(), expected->table());
  expect_close(mean->dense->weight, expected->dense->weight);
}

TEST(CombinedTest, RefusesCallsFromWithinAStep) {
  std::function<void()> call;
  Model model(optim::SGD{.learning_rate = [&] {
    call();
    return 0.01;
  }});
  auto combined = make_combined(model);
  const at::Tensor before = model->table();
  const auto refused = [&](std::function<void()> nested, const char* text) {
    call = std::move(nested);
    model->loss(int64s({0}), int64s({1})).backward();
    EXPECT_TORCH_ERROR(combined.step(), text);
    EXPECT_TENSOR_EQ(model->table(), before);
    combined.zero_grad();
  };
  refused(
      [&] { combined.step(); },
      "[Combined::step] must not be called while step() runs, but a callable or "
      "a custom rule called it. Call it after step().");
  refused(
      [&] { combined.zero_grad(); },
      "[Combined::zero_grad] must not be called while step() runs");
  refused(
      [&] {
        const at::AutoGradMode enable_grad(true);
        model->loss(int64s({0}), int64s({1})).backward();
      },
      "expected no backward() within the step() of a Combined");
  call = [] {};
  model->loss(int64s({0}), int64s({1})).backward();
  combined.step();
  EXPECT_FALSE(at::equal(model->table(), before));
}

TEST(CombinedTest, LoadingALayerDropsAccumulatedGradients) {
  Model model(optim::SGD{.learning_rate = 0.01});
  auto combined = make_combined(model);
  std::istringstream stream(test::saved(model->embedding));
  const at::Tensor before = model->table();
  model->loss(int64s({0}), int64s({1})).backward();
  torch::load(model->embedding, stream);
  combined.step();
  EXPECT_TENSOR_EQ(model->table(), before);
}

TEST(CombinedTest, RefusesCallsOnAMovedFromObject) {
  Model model(kAdagrad);
  auto combined = make_combined(model);
  const Combined moved = std::move(combined);
  EXPECT_TORCH_ERROR(
      combined.step(), "[Combined::step] this Combined was moved from");
}

TEST(CombinedTest, ACloneHasNoGradientsAndNeedsItsOwnCombined) {
  Model model(optim::SGD{.learning_rate = 0.01});
  auto combined = make_combined(model);
  model->loss(int64s({0}), int64s({0})).backward();
  TPUEmbedding copy = clone_of(model->embedding);
  Combined copy_optimizer(torch::optim::SGD(copy->parameters(), 0.1), {copy});
  copy_optimizer.step();
  EXPECT_EQ(copy->iterations(), 0);
}

TEST(CombinedTest, RefusesLayersAndOptimizersItCannotStep) {
  Model in_backward(kAdagrad, Apply::kInBackward);
  EXPECT_VALUE_ERROR(
      make_combined(in_backward),
      "[Combined] expected a layer on Strategy::fused() or "
      "distributed::sharded_strategy() with Apply::kOnStep, but got one on "
      "Strategy::fused() with kInBackward");
  Model host(kAdagrad, Apply::kOnStep, Strategy::host());
  EXPECT_VALUE_ERROR(
      make_combined(host), "but got one on Strategy::host() with kOnStep");
  Model model(kAdagrad);
  EXPECT_VALUE_ERROR(
      Combined(
          torch::optim::SGD(model->dense->parameters(), 0.1),
          {model->embedding}),
      "[Combined] the dense optimizer must hold the virtual_variable of each "
      "layer, because zero_grad() reaches the tables through it, but one is "
      "missing.");
  EXPECT_VALUE_ERROR(
      Combined(torch::optim::SGD(model->parameters(), 0.1), {}),
      "[Combined] layers must not be empty");
  EXPECT_VALUE_ERROR(
      Combined(
          torch::optim::SGD(model->parameters(), 0.1),
          {model->embedding, model->embedding}),
      "[Combined] each layer must be listed once, but a layer is listed twice. "
      "Remove one of them.");
  EXPECT_VALUE_ERROR(
      Combined(torch::optim::LBFGS(model->parameters()), {model->embedding}),
      "[Combined] the dense optimizer must not be LBFGS, which calls its closure "
      "several times per step");
  EXPECT_VALUE_ERROR(
      Combined(
          torch::optim::SGD(model->parameters(), 0.1), {TPUEmbedding(nullptr)}),
      "[Combined] expected a layer, but got an empty holder. Make the layer "
      "before its optimizer.");
  EXPECT_VALUE_ERROR(
      Combined(std::unique_ptr<torch::optim::Optimizer>(), {model->embedding}),
      "[Combined] expected a dense optimizer, but got nullptr");
  auto combined = make_combined(model);
  EXPECT_VALUE_ERROR(
      combined.clip_grad_norm_(-1.0), "max_norm must be >= 0, but got -1");
  EXPECT_VALUE_ERROR(
      combined.clip_grad_norm_(1.0, 0.0), "norm_type must be > 0, but got 0");
  EXPECT_VALUE_ERROR(
      combined.clip_grad_norm_(NAN), "max_norm must be >= 0, but got nan");
}

TEST(CombinedTest, RefusesOptimizersThatNeedEachPass) {
  EXPECT_VALUE_ERROR(
      Model(optim::SGD{.use_gradient_accumulation = false}),
      "[table 't'] use_gradient_accumulation must be true under Apply::kOnStep, "
      "which sums the gradients of duplicate ids, but got false, which applies "
      "them one by one");
  EXPECT_VALUE_ERROR(
      Model(optim::SGD{.gradient_accumulation_steps = 4}),
      "[table 't'] gradient_accumulation_steps must be 1 under Apply::kOnStep, "
      "where each step() updates the tables, but got 4");
}

}  // namespace tessera::test::combined_test
