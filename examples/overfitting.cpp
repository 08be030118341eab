// SPDX-License-Identifier: Apache-2.0
// Teaches what to do when a model overfits. A DCN learns made-up clicks, of which most ids
// have few, and its validation gets worse after few epochs. The same DCN then gets one
// remedy after the other. docs/overfitting.md explains them.
#include <tessera/tessera.h>

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/common/command_line.h"

namespace optim = tessera::optim;
namespace training = tessera::training;
using tessera::FeatureConfig;

namespace {

constexpr int64_t kBatch = 512;

struct Batch {
  tessera::Features features;  // user, item, shop, hour
  torch::Tensor click;  // [batch] float32
  torch::Tensor truth;  // [batch], the logit of the true probability
};

struct Clicks {
  int64_t users = 0;
  int64_t items = 0;
  int64_t shops = 0;
  std::vector<Batch> training = {};
  std::vector<Batch> validation = {};
};

constexpr int64_t kHours = 24;

// A user has about 50 training clicks, an item about 300 and a shop about 400. Clicks
// depend on single ids and on the taste of the user for the properties of the item.
Clicks make_clicks(int64_t examples, int64_t seed) {
  torch::manual_seed(static_cast<uint64_t>(seed));
  Clicks clicks{
      .users = std::max<int64_t>(1, examples / 50),
      .items = std::max<int64_t>(1, examples / 300),
      .shops = std::max<int64_t>(1, examples / 400)};
  const auto of_user = 0.5 * torch::randn({clicks.users});
  const auto of_item = 0.7 * torch::randn({clicks.items});
  const auto of_shop = 0.4 * torch::randn({clicks.shops});
  const auto of_hour = 0.3 * torch::randn({kHours});
  const auto taste = 1.5 * torch::randn({clicks.users, 2});
  const auto properties = 0.7 * torch::randn({clicks.items, 2});
  const int64_t batches = std::max<int64_t>(1, examples / kBatch);
  for (int64_t i = 0; i < batches + batches / 4 + 1; ++i) {
    const auto user = torch::randint(clicks.users, {kBatch});
    const auto item = torch::randint(clicks.items, {kBatch});
    const auto shop = torch::randint(clicks.shops, {kBatch});
    const auto hour = torch::randint(kHours, {kBatch});
    const auto truth = of_user.index({user}) + of_item.index({item}) +
        of_shop.index({shop}) + of_hour.index({hour}) +
        (taste.index({user}) * properties.index({item})).sum(1) - 1.0;
    Batch batch{
        .features =
            {{"user", user}, {"item", item}, {"shop", shop}, {"hour", hour}},
        .click = torch::bernoulli(torch::sigmoid(truth)),
        .truth = truth};
    (i < batches ? clicks.training : clicks.validation)
        .push_back(std::move(batch));
  }
  return clicks;
}

// Settings that reduce overfitting.
struct Remedies {
  // The width of rows.
  int64_t dim = 32;
  // Each update first makes the rows of its batch smaller by this share.
  double row_decay = 0.0;
  // The same for dense weights, times the learning rate.
  double weight_decay = 0.0;
  // The share of the inputs of the dense layers that are set to 0 in training.
  double dropout = 0.0;
  // Adds a factorization machine, whose form fits pairs of ids.
  bool has_machine = false;
};

tessera::Nest<FeatureConfig> features_of(const Clicks& clicks, int64_t dim) {
  const auto feature = [&](const char* name, int64_t rows) {
    return FeatureConfig{
        .table = tessera::make_table(
            {.name = name,
             .vocabulary_size = rows,
             .dim = dim,
             .initializer =
                 tessera::initializers::TruncatedNormal{.stddev = 0.05}})};
  };
  return {
      {"user", feature("users", clicks.users)},
      {"item", feature("items", clicks.items)},
      {"shop", feature("shops", clicks.shops)},
      {"hour", feature("hours", kHours)}};
}

// snippet: model
struct ClickModelImpl : torch::nn::Module {
  ClickModelImpl(const Clicks& clicks, const Remedies& remedies) {
    embedding = register_module(
        "embedding",
        tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
            .features = features_of(clicks, remedies.dim),
            .optimizer = optim::Adam{
                .learning_rate = 0.005,
                .weight_decay_factor = remedies.row_decay}}));
    const int64_t width = 4 * remedies.dim;
    crosses = register_module(
        "crosses",
        tessera::MultiLayerDCN(tessera::MultiLayerDCNOptions{
            .projection_dim = 16, .num_layers = 2}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            torch::nn::Dropout(remedies.dropout),
            torch::nn::Linear(width, 64),
            torch::nn::ReLU(),
            torch::nn::Dropout(remedies.dropout),
            torch::nn::Linear(64, 1)));
    if (remedies.has_machine) {
      machine = register_module("machine", tessera::FactorizationMachine());
    }
  }

  torch::Tensor forward(const Batch& batch) {
    const auto rows = embedding->forward(batch.features);
    auto scores = tower->forward(crosses->forward(rows));
    if (!machine.is_empty()) {
      scores = scores + machine->forward(rows);
    }
    return scores.squeeze(1);
  }

  tessera::TPUEmbedding embedding{nullptr};
  tessera::MultiLayerDCN crosses{nullptr};
  torch::nn::Sequential tower{nullptr};
  tessera::FactorizationMachine machine{nullptr};
};
// end snippet
TORCH_MODULE(ClickModel);

// A weight for each id.
struct LogisticRegressionImpl : torch::nn::Module {
  explicit LogisticRegressionImpl(const Clicks& clicks)
      : embedding(register_module(
            "embedding",
            tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
                .features = features_of(clicks, 1),
                .optimizer = optim::Adam{.learning_rate = 0.005}}))) {}

  torch::Tensor forward(const Batch& batch) {
    return join->forward(embedding->forward(batch.features)).sum(1) + bias;
  }

  tessera::TPUEmbedding embedding;
  tessera::Concatenate join;
  torch::Tensor bias = register_parameter("bias", torch::zeros({1}));
};
TORCH_MODULE(LogisticRegression);

struct Curve {
  std::vector<double> training;  // the AUC of each epoch
  std::vector<double> validation;

  size_t best_epoch() const {
    return std::max_element(validation.begin(), validation.end()) -
        validation.begin();
  }
  double best() const {
    return validation[best_epoch()];
  }
  // How much better the training is than the validation, at the end.
  double gap() const {
    return training.back() - validation.back();
  }
};

// snippet: train
template <class Model>
training::History train(
    Model model,
    const Clicks& clicks,
    int64_t epochs,
    double weight_decay,
    std::optional<int64_t> patience) {
  {
    // Makes the parameters of all layers, so that the optimizer gets them.
    const torch::NoGradGuard no_grad;
    model->forward(clicks.training[0]);
  }
  torch::optim::AdamW optimizer(
      model->parameters(),
      torch::optim::AdamWOptions(1e-3).weight_decay(weight_decay));
  const auto loss_of = [&](const Batch& batch) {
    const auto scores = model->forward(batch);
    return training::StepResult{
        .loss = torch::binary_cross_entropy_with_logits(scores, batch.click),
        .predictions = scores,
        .labels = batch.click};
  };
  training::Callbacks callbacks;
  if (patience) {
    callbacks.push_back(std::make_shared<training::EarlyStopping>(
        training::EarlyStoppingOptions{
            .monitor = "val_auc",
            .patience = *patience,
            .restore_best = model.ptr()}));
  }
  return training::fit(
      clicks.training,
      training::make_train_step(optimizer, loss_of),
      {.epochs = epochs,
       .model = model.ptr(),
       .metrics = {std::make_shared<training::AUC>()},
       .validation = training::make_pass(clicks.validation, loss_of),
       .callbacks = callbacks,
       .stop_on_signals = false});
}
// end snippet

Curve curve_of(const training::History& history) {
  return {.training = history["auc"], .validation = history["val_auc"]};
}

double best_possible(const Clicks& clicks) {
  training::AUC auc;
  for (const Batch& batch : clicks.validation) {
    auc.update(batch.truth, batch.click);
  }
  return auc.result();
}

void print(const std::string& name, const Curve& curve) {
  std::cout << fmt::format(
                   "{:<34}{:>6}{:>10.4f}{:>10.4f}{:>10.4f}\n",
                   name,
                   curve.best_epoch() + 1,
                   curve.best(),
                   curve.validation.back(),
                   curve.training.back())
            << std::flush;
}

int run(int64_t examples, int64_t epochs, int64_t seed) {
  const Clicks clicks = make_clicks(examples, seed);
  std::cout << fmt::format(
      "{:<34}{:>6}{:>10}{:>10}{:>10}\n",
      "AUC after each epoch",
      "best",
      "best",
      "last",
      "training");
  const auto train_model = [&](const std::string& name,
                               const Remedies& remedies,
                               std::optional<int64_t> patience = {}) {
    torch::manual_seed(static_cast<uint64_t>(seed));
    const Curve curve = curve_of(train(
        ClickModel(clicks, remedies),
        clicks,
        epochs,
        remedies.weight_decay,
        patience));
    print(name, curve);
    return curve;
  };
  const Curve linear =
      curve_of(train(LogisticRegression(clicks), clicks, epochs, 0.0, {}));
  print("logistic regression", linear);
  const Curve plain = train_model("DCN", {});
  train_model("DCN, early stop", {}, 1);
  train_model("DCN, rows of 8", {.dim = 8});
  train_model("DCN, decay of rows", {.row_decay = 0.005});
  train_model("DCN, dropout", {.dropout = 0.1});
  train_model("DCN and FM", {.has_machine = true});
  // snippet: remedies
  const Remedies all{
      .dim = 9,
      .row_decay = 0.005,
      .weight_decay = 0.1,
      .dropout = 0.1,
      .has_machine = true};
  // end snippet
  const Curve mended = train_model("DCN, all of these", all, 2);
  std::cout << fmt::format(
      "true probabilities                      {:>10.4f}\n\n",
      best_possible(clicks));
  std::cout << fmt::format(
      "the DCN overfits: {}\n", plain.gap() > 0.05 ? "yes" : "no");
  std::cout << fmt::format(
      "with all remedies, it beats logistic regression: {}\n",
      mended.best() > linear.best() ? "yes" : "no");
  TORCH_CHECK(
      std::cout.flush(),
      "[overfitting] expected to write the report, but standard output failed. Check that the disk is not full.");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  CLI::App app(
      "Trains a model that overfits on made-up clicks, and tries what helps.");
  int64_t examples = 100'000;
  int64_t epochs = 6;
  int64_t seed = 1;
  add_count(app, "--examples", examples, "number of training clicks");
  add_count(app, "--epochs", epochs, "epochs of the examples");
  add_seed(app, seed, "seed of the data and of the initial values");
  CLI11_PARSE(app, argc, argv);
  return run_program(
      "overfitting", [&] { return run(examples, epochs, seed); });
}
