// SPDX-License-Identifier: Apache-2.0
// Which learning rate an optimizer of make_optimizer() has after it was loaded.
#include <tessera/layers/layer_optimizer.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/make_optimizer.h>
#include <tessera/optim/optimizers.h>
#include <tessera/serialization/save_to_file.h>
#include <torch/optim/schedulers/step_lr.h>

#include "tests/temporary_folder.h"
#include "tests/test_util.h"

namespace tessera::optim::optimizer_archive_test {

using torch::optim::Optimizer;

// Saves the first optimizer, and loads it into the second.
struct Way {
  std::string name;
  std::function<void(Optimizer&, Optimizer&)> pass_on;
};

TPUEmbedding make_layer(const Strategy& strategy = Strategy::fused()) {
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"a",
            FeatureConfig{
                .table = make_table(
                    {.name = "t", .vocabulary_size = 2, .dim = 1})}}},
      .optimizer = SGD{.learning_rate = 0.5},
      .strategy = strategy});
}

std::vector<Way> all_ways() {
  return {
      {"torch::save",
       [](Optimizer& from, Optimizer& to) { test::copy_by_archive(from, to); }},
      {"save_to_file",
       [](Optimizer& from, Optimizer& to) {
         const test::TemporaryFolder folder;
         save_to_file(from, folder / "optimizer.pt");
         load_from_file(to, folder / "optimizer.pt");
       }},
      {"save_checkpoint", [](Optimizer& from, Optimizer& to) {
         const test::TemporaryFolder folder;
         make_layer()->save_checkpoint(
             folder / "checkpoint",
             {.extra = [&](auto& archive) { from.save(archive); }});
         make_layer()->load_checkpoint(
             folder / "checkpoint",
             {.extra = [&](auto& archive) { to.load(archive); }});
       }}};
}

// An optimizer of one weight, whose gradient is 1.
struct Trained {
  explicit Trained(const LearningRate& rate)
      : optimizer(make_optimizer(SGD{.learning_rate = rate}, {weight})) {
    weight.mutable_grad() = at::ones({1});
  }
  // Returns how far the weight moves.
  double step() {
    const double before = weight.item<double>();
    optimizer->step();
    return before - weight.item<double>();
  }
  torch::optim::OptimizerOptions& options() {
    return optimizer->param_groups()[0].options();
  }

  at::Tensor weight = at::zeros({1}).set_requires_grad(true);
  std::unique_ptr<Optimizer> optimizer;
};

PiecewiseConstantDecay schedule_of(std::vector<double> rates) {
  return {.boundaries = {0.0, 1.0}, .values = std::move(rates)};
}

TEST(OptimizerArchiveTest, TheRateOfTheProgramCounts) {
  const LearningRate halves = 0.5;
  const LearningRate schedule = schedule_of({4.0, 2.0, 1.0});
  const LearningRate callable = [] { return 0.25; };
  for (const Way& way : all_ways()) {
    for (const LearningRate& saved :
         {LearningRate(0.125), schedule, callable}) {
      SCOPED_TRACE(way.name);
      Trained first(saved);
      first.step();
      first.step();
      Trained constant(halves), scheduled(schedule), computed(callable);
      for (Trained* loaded : {&constant, &scheduled, &computed}) {
        way.pass_on(*first.optimizer, *loaded->optimizer);
      }
      EXPECT_EQ(constant.step(), 0.5);
      EXPECT_EQ(scheduled.step(), 1.0);  // that of step 2
      EXPECT_EQ(computed.step(), 0.25);
    }
  }
}

TEST(OptimizerArchiveTest, ARateOfSetLrIsRestored) {
  for (const Way& way : all_ways()) {
    for (const LearningRate& rate :
         {LearningRate(0.5), LearningRate(schedule_of({4.0, 2.0, 1.0}))}) {
      SCOPED_TRACE(way.name);
      Trained first(rate);
      first.options().set_lr(0.125);
      Trained second(rate);
      way.pass_on(*first.optimizer, *second.optimizer);
      EXPECT_EQ(second.step(), 0.125);
      // Also from a loaded optimizer.
      Trained third(rate);
      way.pass_on(*second.optimizer, *third.optimizer);
      EXPECT_EQ(third.step(), 0.125);
    }
    Trained set(0.5);
    set.options().set_lr(0.125);
    way.pass_on(*Trained(0.25).optimizer, *set.optimizer);
    EXPECT_EQ(set.step(), 0.5);
  }
}

TEST(OptimizerArchiveTest, AnInterruptedSchedulerOfLibTorchContinues) {
  Trained first(1.0);
  torch::optim::StepLR scheduler(*first.optimizer, 1, 0.5);
  scheduler.step();
  scheduler.step();
  Trained second(1.0);
  all_ways()[0].pass_on(*first.optimizer, *second.optimizer);
  EXPECT_EQ(second.step(), 0.5);
}

TEST(OptimizerArchiveTest, EachGroupHasItsRate) {
  const auto make = [](double first, double second) {
    return make_optimizer(
        {{SGD{.learning_rate = first}, {at::ones({1}).set_requires_grad(true)}},
         {Adagrad{.learning_rate = second},
          {at::ones({1}).set_requires_grad(true)}}});
  };
  const auto saved = make(0.5, 0.25);
  saved->param_groups()[1].options().set_lr(0.125);
  const auto loaded = make(2.0, 4.0);
  all_ways()[0].pass_on(*saved, *loaded);
  EXPECT_EQ(loaded->param_groups()[0].options().get_lr(), 2.0);
  EXPECT_EQ(loaded->param_groups()[1].options().get_lr(), 0.125);
}

// make_optimizer(layer)
TEST(OptimizerArchiveTest, TheOptimizerOfTablesDoesTheSame) {
  for (const Strategy& strategy : {Strategy::host(), Strategy::padded()}) {
    TPUEmbedding layer = make_layer(strategy);
    const auto saved = make_optimizer(layer);
    for (const bool is_set : {false, true}) {
      if (is_set) {
        saved->param_groups()[0].options().set_lr(0.125);
      }
      std::stringstream stream;
      torch::save(*saved, stream);
      TPUEmbedding other(TPUEmbeddingOptions{
          .features = layer->options().features,
          .optimizer = SGD{.learning_rate = 2.0},
          .strategy = strategy});
      const auto loaded = make_optimizer(other);
      torch::load(*loaded, stream);
      EXPECT_EQ(
          loaded->param_groups()[0].options().get_lr(), is_set ? 0.125 : 2.0);
    }
  }
}

}  // namespace tessera::optim::optimizer_archive_test
