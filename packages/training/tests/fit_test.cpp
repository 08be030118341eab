// SPDX-License-Identifier: Apache-2.0
#include <tessera/common/fields.h>
#include <tessera/layers/dense/mlp.h>
#include <tessera/layers/embedding_engine_module.h>
#include <tessera/layers/layer_json.h>
#include <tessera/optim/optimizers/sgd.h>
#include <tessera/training/early_stopping.h>
#include <tessera/training/fit.h>
#include <tessera/training/learning_rate_log.h>
#include <tessera/training/terminate_on_non_finite.h>
#include <torch/optim/adagrad.h>

#include "packages/training/src/spin_check.h"
#include "packages/training/tests/training_fixture.h"
#include "src/common/parallel.h"

#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

namespace tessera::training::fit_test {

using Doubles = std::vector<double>;

struct OptionsOfLate {
  bool operator==(const OptionsOfLate&) const = default;
  TESSERA_FIELDS()
};

TEST(FitTest, TrainsLikeAPlainLoop) {
  const auto batches = click_batches(5, 1);
  ClickRun plain, fitted;
  at::manual_seed(7);
  for (int epoch = 0; epoch < 3; ++epoch) {
    for (const ClickBatch& batch : batches) {
      plain.optimizer.zero_grad();
      plain.loss_of()(batch).loss.backward();
      plain.optimizer.step();
    }
  }
  at::manual_seed(7);
  const History history = fitted.train(batches, {.epochs = 3});
  EXPECT_EQ(fitted.bytes(), plain.bytes());
  EXPECT_EQ(history.epochs.size(), 3U);
  EXPECT_LT(history["loss"][2], history["loss"][0]);
  EXPECT_TRUE(history.stop_reason.empty());
}

// A layer of a user. It has no parameters before its first forward().
struct LateImpl : LayerImpl<LateImpl, OptionsOfLate> {
  static constexpr const char* kClassName = "Late";
  using LayerImpl::LayerImpl;

  at::Tensor forward(const at::Tensor& x) {
    build_on_first_call(x);
    return x * scale;
  }
  Nest<PartialShape> compute_output_shape(
      const Nest<PartialShape>& shapes) const override {
    return shapes;
  }
  void make_parameters(const Nest<PartialShape>& shapes) override {
    scale = register_parameter("scale", at::ones({*shapes.leaf().back()}));
  }

  at::Tensor scale;
};
TORCH_MODULE(Late);

// Its optimizer is made before the layers have parameters with a size.
struct LateRun {
  explicit LateRun(torch::nn::AnyModule last) {
    model->push_back(torch::nn::Linear(2, 3));
    model->push_back(std::move(last));
    optimizer = std::make_unique<torch::optim::SGD>(model->parameters(), 0.1);
  }
  at::Tensor loss_of(const at::Tensor& x) {
    return model->forward(x).square().mean();
  }
  std::vector<at::Tensor> values() const {
    std::vector<at::Tensor> values;
    for (const at::Tensor& parameter : model->parameters()) {
      values.push_back(parameter.detach().clone());
    }
    return values;
  }

  torch::nn::Sequential model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

const std::vector<at::Tensor>& late_batches() {
  static const std::vector<at::Tensor> batches{
      at::ones({4, 2}), at::full({4, 2}, -1.5), at::ones({4, 2})};
  return batches;
}

TEST(FitTest, AParameterWithoutAnOptimizerIsAnError) {
  LateRun run{torch::nn::AnyModule(Late())};
  run.loss_of(late_batches()[0]);  // now it has its parameter
  const auto before = run.values();
  const auto train = [&](TrainStepOptions step, FitOptions options) {
    fit(late_batches(),
        make_train_step(
            *run.optimizer,
            [&](const at::Tensor& x) { return run.loss_of(x); },
            std::move(step)),
        std::move(options));
  };
  EXPECT_VALUE_ERROR(
      train({}, {.model = run.model}),
      "[make_train_step] each parameter that gets a gradient must be in the "
      "optimizer, but it lacks '1.scale' (Float of shape [3]), which would never "
      "be trained. Make the optimizer after the layers have their parameters: "
      "call build() or forward() before.");
  EXPECT_VALUE_ERROR(
      train({}, {}), "it lacks a parameter (Float of shape [3]), which");
  const auto is_unchanged = [&] {
    return bytes_of(run.values()) == bytes_of(before);
  };
  EXPECT_TRUE(is_unchanged());
  train({.allow_unoptimized = true}, {});
  train({}, {.allow_unoptimized = true});
  EXPECT_FALSE(is_unchanged());
  EXPECT_TRUE(run.values()[2].equal(before[2]));  // that of Late
  run.model->parameters()[2].requires_grad_(false);
  train({}, {.model = run.model});
  // The tables of an engine need no optimizer.
  ClickRun tables;
  torch::optim::SGD dense(tables.model->tower->parameters(), 0.1);
  fit(click_batches(2, 1), make_train_step(dense, tables.loss_of()), {});
  torch::optim::SGD weight(
      std::vector<at::Tensor>{tables.model->tower->weight}, 0.1);
  EXPECT_VALUE_ERROR(
      fit(click_batches(2, 1),
          make_train_step(weight, tables.loss_of()),
          {.model = tables.model}),
      "lacks 'tower.bias' (Float of shape [1])");
}

TEST(FitTest, AParameterThatAppearsInAStepOfYourOwnIsAnError) {
  const auto train = [](FitOptions options) {
    LateRun run{torch::nn::AnyModule(Late())};
    options.model = run.model;
    fit(
        late_batches(),
        [&](const at::Tensor& x) {
          run.optimizer->zero_grad();
          const at::Tensor loss = run.loss_of(x);
          loss.backward();
          run.optimizer->step();
          return loss.detach();
        },
        std::move(options));
  };
  EXPECT_VALUE_ERROR(
      train({}),
      "[fit] the model made '1.scale' (Float of shape [3]) during the training, "
      "so an optimizer that was made before it does not train it.");
  train({.allow_unoptimized = true});
}

TEST(FitTest, AnOptimizerMadeBeforeTheFirstStepTrainsAllLayers) {
  LateRun run{torch::nn::AnyModule(MLP(MLPOptions{.units = {4, 1}}))};
  LateRun built{torch::nn::AnyModule(MLP(MLPOptions{.units = {4, 1}}))};
  at::manual_seed(3);
  built.loss_of(late_batches()[0]);
  for (size_t i = 0; i < 2; ++i) {  // the Linear
    run.model->parameters()[i].data().copy_(built.model->parameters()[i]);
  }
  const auto before = built.values();
  at::manual_seed(3);
  for (LateRun* one : {&run, &built}) {
    fit(late_batches(),
        make_train_step(
            *one->optimizer,
            [&](const at::Tensor& x) { return one->loss_of(x); }),
        {.model = one->model});
  }
  const auto values = run.values();
  const auto expected = built.values();
  ASSERT_EQ(values.size(), 6U);
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(values[i].equal(expected[i])) << i;
    EXPECT_FALSE(values[i].equal(before[i])) << i;
  }
}

TEST(FitTest, AdagradOfLibTorchNeedsBuiltLayers) {
  MLP layer(MLPOptions{.units = {1}});
  torch::optim::Adagrad early(layer->parameters(), 0.1);
  const auto loss_of = [&](const at::Tensor& x) {
    return layer->forward(x).square().mean();
  };
  EXPECT_VALUE_ERROR(
      fit(late_batches(), make_train_step(early, loss_of), {.model = layer}),
      "[make_train_step] torch::optim::Adagrad makes its accumulators at once, "
      "but it was made before the layer of 'linear_0.weight' (Float of shape [1, "
      "2]) was built.");
  torch::optim::Adagrad late(layer->parameters(), 0.1);
  fit(late_batches(), make_train_step(late, loss_of), {.model = layer});
}

TEST(FitTest, TakesMetricsAndCallbacksAsValues) {
  const auto batches = click_batches(3, 1);
  ClickRun with_values, with_pointers;
  at::manual_seed(7);
  const History values = with_values.train(
      batches,
      {.epochs = 2,
       .model = with_values.model,
       .metrics = {AUC(), LogLoss({.scores = ScoreKind::kLogits})},
       .callbacks = {EarlyStopping({.monitor = "loss", .patience = 3})}});
  const auto auc = std::make_shared<AUC>();
  at::manual_seed(7);
  const History pointers = with_pointers.train(
      batches,
      {.epochs = 2,
       .model = with_pointers.model.ptr(),
       .metrics =
           {auc,
            std::make_shared<LogLoss>(
                ScoreMetricOptions{.scores = ScoreKind::kLogits})},
       .callbacks = {EarlyStopping({.monitor = "loss", .patience = 3})}});
  EXPECT_EQ(values["auc"], pointers["auc"]);
  EXPECT_EQ(auc->result(), pointers["auc"].back());
  EXPECT_EQ(values.names(), pointers.names());
}

TEST(FitTest, LogsLossAndMetricsOfTrainingAndValidation) {
  const auto batches = click_batches(5, 1);
  const auto held_out = click_batches(3, 2);
  ClickRun run;
  const History history = run.train(
      batches,
      {.epochs = 2,
       .model = run.model.ptr(),
       .metrics = {AUC()},
       .validation = run.validation(held_out)});
  EXPECT_EQ(history.names(), (Texts{"loss", "auc", "val_loss", "val_auc"}));
  // Repeat the validation by hand, in eval mode.
  run.model->eval();
  AUC auc;
  double loss = 0.0;
  for (const ClickBatch& batch : held_out) {
    const StepResult result = run.loss_of()(batch);
    auc.update(result.predictions, result.labels);
    loss += result.loss.item<double>() / 3.0;
  }
  EXPECT_EQ(history["val_auc"][1], auc.result());
  EXPECT_NEAR(history["val_loss"][1], loss, 1e-12);
  const auto pass = make_pass(held_out, run.loss_of());
  EXPECT_EQ(evaluate(*pass)["loss"], history["val_loss"][1]);
}

TEST(FitTest, ValidationChangesNothingAndRestoresModes) {
  const auto batches = click_batches(2, 1);
  ClickRun with, without;
  with.model->tower->eval();
  at::manual_seed(7);
  with.train(
      batches,
      {.model = with.model.ptr(), .validation = with.validation(batches)});
  at::manual_seed(7);
  without.train(batches);
  EXPECT_EQ(with.bytes(), without.bytes());
  EXPECT_TRUE(with.model->is_training());
  EXPECT_FALSE(with.model->tower->is_training());
  EXPECT_TRUE(with.model->dropout->is_training());
}

// A step whose loss is the batch itself.
struct Counter {
  Doubles batches;
  auto step() {
    return [this](double batch) {
      batches.push_back(batch);
      return own_loss(batch);
    };
  }
};

// Gives the numbers from 1 to `end`.
struct Next {
  int i = 0;
  int end = 3;
  std::optional<double> next() {
    return i < end ? std::optional<double>(++i) : std::nullopt;
  }
};

TEST(FitTest, ReadsRangesFunctionsAndNextSources) {
  const Doubles expected{1, 2, 3, 1, 2, 3};
  Counter range;
  fit(std::list<double>{1, 2, 3}, range.step(), {.epochs = 2});
  EXPECT_EQ(range.batches, expected);

  Counter function;
  std::vector<int64_t> epochs;
  fit(
      [&](int64_t epoch) {
        epochs.push_back(epoch);
        return Doubles{1, 2, 3};
      },
      function.step(),
      {.epochs = 2});
  EXPECT_EQ(function.batches, expected);
  EXPECT_EQ(epochs, (std::vector<int64_t>{0, 1}));

  Counter next;
  fit([] { return Next{}; }, next.step(), {.epochs = 2});
  EXPECT_EQ(next.batches, expected);

  Counter endless;  // one stream serves all epochs
  Next stream{.i = -1000};
  fit([&]() -> Next& { return stream; },
      endless.step(),
      {.epochs = 2, .steps_per_epoch = 3});
  EXPECT_EQ(endless.batches.back(), -994.0);
}

TEST(FitTest, CallsCallbacksInOrder) {
  const auto hooks = std::make_shared<Hooks>();
  std::string calls;
  Doubles losses;
  hooks->train_begin = [&](Training&) { calls += "("; };
  hooks->epoch_begin = [&](Training& training) {
    calls += "[" + std::to_string(training.progress().epoch);
  };
  hooks->step_end = [&](Training& training) {
    calls += "." + std::to_string(training.progress().step_in_epoch);
    losses.push_back(training.logs()["loss"]);
    EXPECT_EQ(training.progress().steps_per_epoch, 2);
  };
  hooks->epoch_end = [&](Training& training) {
    calls += "]";
    EXPECT_EQ(
        training.history().epochs.size(),
        static_cast<size_t>(training.progress().epoch + 1));
  };
  hooks->train_end = [&](Training&) { calls += ")"; };
  Counter counter;
  fit(Doubles{1, 3}, counter.step(), {.epochs = 2, .callbacks = {hooks}});
  EXPECT_EQ(calls, "([0.1.2][1.1.2])");
  EXPECT_EQ(losses, (Doubles{1, 2, 1, 2}));
}

TEST(FitTest, ACallbackStopsTrainingWithAReason) {
  const auto hooks = hook_after(4, [](Training& training) {
    training.stop("enough");
    training.stop("more than that");
  });
  Counter counter;
  const History history = fit(
      Doubles{1, 2, 3}, counter.step(), {.epochs = 5, .callbacks = {hooks}});
  EXPECT_EQ(counter.batches.size(), 4U);
  EXPECT_EQ(history.stop_reason, "enough");
  EXPECT_EQ(history.epochs.size(), 1U);
}

TEST(FitTest, ALossThatIsNotFiniteChangesNothing) {
  auto batches = click_batches(4, 1);
  ClickRun run;
  std::string before;
  const auto hooks = hook_after(2, [&](Training&) {
    before = run.bytes();
    // The third batch makes the loss infinite.
    batches[2].click.fill_(std::numeric_limits<float>::infinity());
  });
  const History history =
      run.train(batches, {.callbacks = {hooks, TerminateOnNonFinite()}});
  EXPECT_EQ(run.bytes(), before);
  EXPECT_TRUE(
      history.stop_reason.find("the loss of step 3 is -inf") == 0 ||
      history.stop_reason.find("the loss of step 3 is NaN") == 0)
      << history.stop_reason;
  EXPECT_VALUE_ERROR(
      run.train(batches),
      ", so its update was skipped. Lower the learning rate");
  batches[2].click.fill_(std::numeric_limits<float>::quiet_NaN());
  EXPECT_VALUE_ERROR(
      run.train(batches),
      ", so its update was skipped. Its labels have NaN. Correct the data.");
}

// A step function of a user, which does not look at the loss.
TEST(FitTest, RefusesGradientsOfRowsThatAreNotFinite) {
  auto batches = click_batches(3, 1);
  batches[1].click.fill_(std::numeric_limits<float>::quiet_NaN());
  const auto run_with = [&](ClickRun& run, FitOptions options) {
    fit(
        batches,
        [&](const ClickBatch& batch) {
          run.optimizer.zero_grad();
          StepResult result = run.loss_of()(batch);
          result.loss.backward();
          run.optimizer.step();
          result.loss = at::zeros({});  // fit() refuses NaN
          return result;
        },
        std::move(options));
  };
  ClickRun run;
  EXPECT_VALUE_ERROR(
      run_with(run, {}),
      "[table 'users', feature 'user'] the gradients of rows must be finite, "
      "but index 0 of the batch gives NaN. No table was changed.");
  EXPECT_EQ(run.model->embeddings[0]->iterations(), 1);
  for (const auto& parameter : run.model->parameters()) {
    EXPECT_TRUE(at::isfinite(parameter).all().item<bool>());
  }
  const auto tables_are_finite = [&] {
    return at::isfinite(run.model->embeddings[0]->embedding_tables()["users"])
        .all()
        .item<bool>();
  };
  EXPECT_TRUE(tables_are_finite());
  // Outside of fit(), the option of the layer holds.
  run_with(run, {.non_finite_gradients = NonFiniteGradients::kApply});
  EXPECT_FALSE(tables_are_finite());
  run.loss_of()(batches[0]).loss.backward();
}

TEST(FitTest, RefusesBadOptionsBeforeTraining) {
  Counter counter;
  const Doubles two{1, 2};
  const auto auc = std::make_shared<AUC>();
  const auto run = [&](FitOptions options) {
    fit(two, counter.step(), std::move(options));
  };
  expect_refusals<FitOptions>(
      {{{.epochs = -1}, "epochs must be >= 0, but got -1"},
       {{.steps_per_epoch = 0}, "steps_per_epoch must be >= 1, but got 0"},
       {{.steps_per_epoch = 3}, "steps_per_epoch is 3, but epoch 0 has 2"},
       {{.callbacks = {nullptr}}, "callback 0 is null"},
       {{.metrics = {nullptr}}, "metric 0 is null"},
       {{.metrics = {AUC(), AUC()}}, "two metrics are named 'auc'"},
       {{.metrics = {AUC("loss")}}, "named 'loss'"},
       {{.metrics = {AUC("val_loss")},
         .validation = make_pass(two, counter.step())},
        "two values would be logged as 'val_loss'"},
       {{.validation_metrics = {AUC()}}, "batches for validation_metrics"},
       {{.metrics = {auc},
         .validation = make_pass(two, counter.step()),
         .validation_metrics = {auc}},
        "metrics and validation_metrics have the same object 'auc'"},
       {{.callbacks = {EarlyStopping({.monitor = "val_auc"})}},
        "'val_auc' is not logged. Set EarlyStoppingOptions::monitor to one of "
        "loss."},
       {{.metrics = {Mean()},
         .callbacks = {EarlyStopping({.monitor = "mean"})}},
        "Set EarlyStoppingOptions::better"}},
      run);
  EXPECT_VALUE_ERROR(fit(nullptr, {}), "batches for the training");
  EXPECT_TRUE(counter.batches.empty());
  run({.epochs = 0});
  EXPECT_TRUE(counter.batches.empty());
}

TEST(FitTest, RefusesAnEngineThatWasShutDown) {
  struct Model : torch::nn::Module {
    EmbeddingEngineModule engine = register_module(
        "engine",
        EmbeddingEngineModule(EmbeddingEngineOptions{
            .features = {{"user", feature_of("t", 4, 1)}}}));
  };
  const auto model = std::make_shared<Model>();
  model->engine->shutdown();
  Counter counter;
  for (const bool warning : {true, false}) {
    EXPECT_VALUE_ERROR(
        fit(Doubles{1},
            counter.step(),
            {.model = model, .movement_warning = warning}),
        "[fit] 'engine' of the model must be a running engine, but its "
        "shutdown() was called. Make the model again, and call shutdown() only "
        "after fit().");
  }
  EXPECT_TRUE(counter.batches.empty());
}

TEST(FitTest, RefusesSourcesWithTooFewBatches) {
  Counter counter;
  EXPECT_VALUE_ERROR(
      fit(Doubles{}, counter.step(), {}), "epoch 0 has no batch");
  EXPECT_VALUE_ERROR(
      fit(Next{.end = 2}, counter.step(), {.epochs = 2}),
      "epoch 1 has no batch");
  EXPECT_VALUE_ERROR(
      fit([] { return Next{.end = 2}; },
          counter.step(),
          {.steps_per_epoch = 3}),
      "steps_per_epoch is 3, but the source gave 2 batches in epoch 0");
  EXPECT_VALUE_ERROR(
      fit(Doubles{1},
          counter.step(),
          {.validation = make_pass(Doubles{}, counter.step())}),
      "[fit] validation: expected batches, but the source gave none");
}

TEST(FitTest, RefusesStepsThatGiveNoLossOrNothingToMeasure) {
  const Doubles one{1};
  const auto run = [&](StepResult result, FitOptions options = {}) {
    fit(
        one, [&](double) { return result; }, std::move(options));
  };
  EXPECT_VALUE_ERROR(run({}), "expected a loss, but got an undefined tensor");
  EXPECT_VALUE_ERROR(
      run({.loss = floats({1, 2})}), "of shape [2]. Take its mean or sum");
  EXPECT_VALUE_ERROR(run({.loss = int64s({1})}), "one floating-point number");
  const Metrics metrics{AUC()};
  EXPECT_VALUE_ERROR(
      run({.loss = floats({1})}, {.metrics = metrics}),
      "metrics need predictions");
  EXPECT_VALUE_ERROR(
      run({.loss = floats({1}),
           .predictions = floats({1, 2}),
           .labels = floats({1})},
          {.metrics = metrics}),
      "got 2 predictions and 1 labels");
  ClickRun clicks;
  EXPECT_VALUE_ERROR(
      fit(one,
          make_train_step(clicks.optimizer, [](double) { return floats({1}); }),
          {}),
      "the loss has no gradient");
}

TEST(FitTest, ErrorsNameTheFunctionThatWasCalled) {
  const Doubles one{1};
  const auto none = [](double) { return StepResult{}; };
  const auto loss = [](double) { return floats({1}); };
  const Metrics null{nullptr};
  const Metrics auc{AUC()};
  const std::string no_loss = "expected a loss, but got an undefined tensor";
  const std::string no_metric = "expected a metric, but metric 0 is null";
  const std::string no_scores =
      "metrics need predictions, but the step gave none";
  const auto refuses =
      [&](const auto& step, Metrics metrics, const std::string& text) {
        EXPECT_VALUE_ERROR(
            evaluate(*make_pass(one, step), metrics), "[evaluate] " + text);
        EXPECT_VALUE_ERROR(
            fit(one,
                loss,
                {.validation = make_pass(one, step),
                 .validation_metrics = metrics}),
            "[fit] validation: " + text);
      };
  refuses(loss, null, no_metric);
  refuses(none, {}, no_loss);
  refuses(loss, auc, no_scores);
  EXPECT_VALUE_ERROR(
      evaluate(*make_pass(one, loss), {auc[0], auc[0]}),
      "[evaluate] two metrics are named 'auc'");
  EXPECT_VALUE_ERROR(
      evaluate(*make_pass(Doubles{}, loss)),
      "[evaluate] expected batches, but the source gave none");
  EXPECT_VALUE_ERROR(fit(one, none, {}), "[fit] " + no_loss);
  EXPECT_VALUE_ERROR(check_loss({}), "[check_loss] " + no_loss);
  ClickRun run;
  EXPECT_VALUE_ERROR(
      make_train_step(run.optimizer, none)(1.0),
      "[make_train_step] " + no_loss);
}

TEST(FitTest, RethrowsAUsersExceptionAndRestoresModes) {
  ClickRun run;
  run.model->eval();
  const auto hooks = std::make_shared<Hooks>();
  bool has_ended = false;
  hooks->train_end = [&](Training&) { has_ended = true; };
  const auto throwing = [](const ClickBatch&) -> StepResult {
    throw std::runtime_error("mine");
  };
  EXPECT_THROW(
      fit(click_batches(1, 1),
          throwing,
          {.model = run.model.ptr(), .callbacks = {hooks}}),
      std::runtime_error);
  EXPECT_FALSE(has_ended);
  EXPECT_FALSE(run.model->is_training());
}

TEST(FitTest, ReleasesWhatCallbacksKeepAlsoAfterAnException) {
  const auto hooks = std::make_shared<Hooks>();
  std::string calls;
  hooks->train_begin = [&](Training& training) {
    training.keep(std::shared_ptr<void>(&calls, [](void* text) {
      *static_cast<std::string*>(text) += "released ";
    }));
  };
  hooks->train_end = [&](Training&) { calls += "end "; };
  Counter counter;
  fit(Doubles{1}, counter.step(), {.callbacks = {hooks}});
  EXPECT_EQ(calls, "end released ");
  calls.clear();
  const auto throwing = [](double) -> StepResult {
    throw std::runtime_error("mine");
  };
  EXPECT_THROW(
      fit(Doubles{1}, throwing, {.callbacks = {hooks}}), std::runtime_error);
  EXPECT_EQ(calls, "released ");
}

TEST(FitTest, LearningRatesAreLogged) {
  ClickRun run;
  const auto rates =
      std::make_shared<LearningRateLog>(run.optimizer, run.model->embeddings);
  const History history =
      run.train(click_batches(2, 1), {.epochs = 2, .callbacks = {rates}});
  EXPECT_EQ(
      history.names(),
      (Texts{
          "loss",
          "learning_rate",
          "learning_rate_users",
          "learning_rate_movies"}));
  EXPECT_EQ(history["learning_rate"][1], 0.01);
  EXPECT_EQ(history["learning_rate_users"][0], 0.05);
  EXPECT_EQ(learning_rates(run.model->embeddings).entries().size(), 2U);
  EXPECT_VALUE_ERROR(
      learning_rates(run.optimizer, {TPUEmbedding(nullptr)}),
      "expected a layer, but got an empty one");

  TPUEmbedding scheduled(TPUEmbeddingOptions{
      .features = {{"a", feature_of({.vocabulary_size = 2, .dim = 1})}},
      .optimizer = optim::SGD{
          .learning_rate = optim::ExponentialDecay{
              .initial_learning_rate = 1.0,
              .decay_steps = 1,
              .decay_rate = 0.5}}});
  const History decayed = fit(
      std::vector<at::Tensor>{int64s({0}), int64s({1})},
      [&](const at::Tensor& ids) {
        const at::Tensor loss = scheduled->forward({{"a", ids}})["a"].sum();
        loss.backward();
        return loss;
      },
      {.epochs = 2,
       .callbacks = {LearningRateLog(std::vector<TPUEmbedding>{scheduled})}});
  EXPECT_EQ(decayed["learning_rate_table_0"], (Doubles{0.25, 0.0625}));
}

TEST(FitTest, ModulesInEvalStayInEvalWhileTheModelTrains) {
  ClickRun run;
  run.model->dropout->eval();
  std::vector<bool> modes;
  const auto step = [&](const ClickBatch& batch) {
    modes.push_back(run.model->is_training());
    modes.push_back(run.model->dropout->is_training());
    return run.train_step()(batch);
  };
  const auto train = [&] {
    modes.clear();
    const auto batches = click_batches(1, 1);
    fit(batches,
        step,
        {.epochs = 2,
         .model = run.model.ptr(),
         .validation = run.validation(batches)});
    return modes;
  };
  EXPECT_EQ(train(), (std::vector<bool>{true, false, true, false}));
  run.model->eval();
  EXPECT_EQ(train(), (std::vector<bool>{true, true, true, true}));
  EXPECT_FALSE(run.model->is_training());
}

// Announces `names`, and logs a number as `logged`.
struct Logger : Callback {
  Logger(Texts names, std::string logged)
      : names(std::move(names)), logged(std::move(logged)) {}
  Texts log_names() const override {
    return names;
  }
  void on_epoch_end(Training& training) override {
    training.log(logged, 1.0);
  }
  Texts names;
  std::string logged;
};

TEST(FitTest, ACallbackLogsItsOwnNamesOnly) {
  Counter counter;
  const auto run = [&](Callbacks callbacks) {
    return fit(Doubles{1}, counter.step(), {.callbacks = std::move(callbacks)});
  };
  const auto logger = [](const Texts& names, const std::string& logged) {
    return std::make_shared<Logger>(names, logged);
  };
  EXPECT_EQ(run({logger({"own"}, "own")})["own"][0], 1.0);
  EXPECT_VALUE_ERROR(run({logger({"own"}, "loss")}), "'loss' can be logged");
  EXPECT_VALUE_ERROR(
      run({logger({"own"}, "own"), logger({"two"}, "own")}),
      "'own' can be logged");
  EXPECT_VALUE_ERROR(
      run({logger({"own"}, "own"), logger({}, "own")}), "'own' can be logged");
  EXPECT_VALUE_ERROR(
      run({logger({"epoch"}, "epoch")}), "a value can't be logged as 'epoch'");
}

// Keeps the core of this thread busy with other processes, and unsets a variable. The
// destructor undoes it.
class BusyCore {
 public:
  BusyCore() {
    CPU_ZERO(&all_);
    ::sched_getaffinity(0, sizeof(all_), &all_);
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(::sched_getcpu(), &one);
    ::sched_setaffinity(0, sizeof(one), &one);
    for (pid_t& child : children_) {
      child = ::fork();
      if (child == 0) {
        ::alarm(60);  // ends it if this process dies
        while (true) {
          ::sched_getcpu();  // a loop without an effect may be removed
        }
      }
    }
  }
  BusyCore(const BusyCore&) = delete;
  BusyCore& operator=(const BusyCore&) = delete;
  ~BusyCore() {
    for (const pid_t child : children_) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
    ::sched_setaffinity(0, sizeof(all_), &all_);
  }

 private:
  cpu_set_t all_;
  pid_t children_[2] = {};
};

// Sets or unsets a variable of the environment for a while.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) {
    if (const char* before = std::getenv(name)) {
      before_ = before;
    }
    set(value);
  }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  ~Variable() {
    set(before_ ? before_->c_str() : nullptr);
  }

 private:
  void set(const char* value) {
    if (value == nullptr) {
      ::unsetenv(name_);
    } else {
      ::setenv(name_, value, 1);
    }
  }

  const char* name_;
  std::optional<std::string> before_;
};

TEST(SpinCheckTest, ABusyMachineIsNoticedOnce) {
  if (!time_without_core()) {
    GTEST_SKIP() << "the system has no /proc/self/task/*/schedstat";
  }
  const int64_t threads = thread_count();
  set_thread_count(2);
  const BusyCore busy;
  const Variable policy("OMP_WAIT_POLICY", nullptr);
  // Steps that compute for 2.3 s.
  const auto warnings_of = [](const char* spins) {
    using Clock = std::chrono::steady_clock;
    const Variable variable("GOMP_SPINCOUNT", spins);
    Warnings warnings;
    const auto end = Clock::now() + std::chrono::milliseconds(2300);
    const auto step = [&](double loss) {
      const auto step_end =
          std::min(end, Clock::now() + std::chrono::milliseconds(10));
      while (Clock::now() < step_end) {
      }
      return at::full({}, loss);
    };
    fit(Doubles(240, 1.0), step, {.epochs = 1});
    return warnings.texts;
  };
  EXPECT_TRUE(warnings_of("1000").empty());
  const Texts texts = warnings_of(nullptr);
  ASSERT_EQ(texts.size(), 1);
  for (const char* part :
       {"[fit] the threads of this program waited ",
        "Call tessera::limit_thread_spins(argv) first in main()",
        "GOMP_SPINCOUNT=3000"}) {
    EXPECT_CONTAINS(texts[0], part);
  }
  EXPECT_TRUE(warnings_of(nullptr).empty());
  set_thread_count(threads);
}

TEST(EarlyStoppingTest, StopsAfterItsPatienceAndKeepsTheBest) {
  const std::vector<Doubles> losses{{5}, {3}, {2.95}, {4}, {1}};
  const auto run = [&](EarlyStoppingOptions options) {
    options.monitor = "loss";
    const auto stopping = std::make_shared<EarlyStopping>(options);
    Counter counter;
    const History history =
        fit([&](int64_t epoch) { return losses[epoch]; },
            counter.step(),
            {.epochs = 5, .callbacks = {stopping}});
    return std::pair(history.epochs.size(), stopping->best_epoch());
  };
  using Result = std::pair<size_t, int64_t>;
  EXPECT_EQ(run({}), Result(4, 2));
  EXPECT_EQ(run({.patience = 1}), Result(4, 2));
  EXPECT_EQ(run({.patience = 2}), Result(5, 4));
  EXPECT_EQ(run({.patience = 2, .min_delta = 0.1}), Result(4, 1));
  EXPECT_EQ(run({.better = Better::kHigher}), Result(2, 0));
  EXPECT_VALUE_ERROR(EarlyStopping({.patience = -1}), "patience must be >= 0");
  EXPECT_VALUE_ERROR(EarlyStopping({.min_delta = -1}), "min_delta must be");
}

TEST(EarlyStoppingTest, WorksWithoutFit) {
  EarlyStopping stopping({.patience = 2, .better = Better::kHigher});
  EXPECT_FALSE(stopping.update(0, std::nan("")));
  EXPECT_TRUE(stopping.update(1, 0.5));
  EXPECT_FALSE(stopping.update(2, 0.5));
  EXPECT_FALSE(stopping.is_done());
  EXPECT_FALSE(stopping.update(3, std::nan("")));
  EXPECT_TRUE(stopping.is_done());
  EXPECT_EQ(stopping.best_epoch(), 1);
  EXPECT_EQ(stopping.best(), 0.5);
  EXPECT_VALUE_ERROR(stopping.update(-1, 0.6), "epoch must be >= 0");
  EXPECT_VALUE_ERROR(
      EarlyStopping({.monitor = "auc"}).update(0, 0.5),
      "it is not known whether 'auc' should rise or fall");
}

TEST(EarlyStoppingTest, RestoresTablesAndDenseWeightsOfTheBestEpoch) {
  for (const bool on_disk : {false, true}) {
    SCOPED_TRACE(on_disk ? "on disk" : "in memory");
    const TemporaryFolder folder;
    ClickRun run;
    const auto save = [&] { return bytes_of(run.model); };
    Texts after;
    const auto hooks = std::make_shared<Hooks>();
    hooks->epoch_end = [&](Training&) { after.push_back(save()); };
    const auto stopping = std::make_shared<EarlyStopping>(EarlyStoppingOptions{
        .monitor = "val_loss",
        .patience = 2,
        .better = Better::kHigher,  // the loss falls, so early epochs are best
        .restore_best = run.model.ptr(),
        .directory = on_disk ? folder / "best" : ""});
    const auto batches = click_batches(6, 1);
    const History history = run.train(
        batches,
        {.epochs = 20,
         .model = run.model.ptr(),
         .validation = run.validation(batches),
         .callbacks = {hooks, stopping}});
    ASSERT_LT(history.epochs.size(), 20U);
    ASSERT_EQ(stopping->best_epoch(), static_cast<int64_t>(after.size()) - 3);
    EXPECT_EQ(save(), after[stopping->best_epoch()]);
    EXPECT_NE(save(), after.back());
  }
}

}  // namespace tessera::training::fit_test
