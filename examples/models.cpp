// SPDX-License-Identifier: Apache-2.0
// Teaches the layers of well-known models: matrix factorization, FM, DeepFM, DIN and
// MMoE. Each one learns generated ratings or clicks, whose structure is known, and has a
// line beside two baselines. With --data, the matrix factorization also learns the
// ratings of MovieLens 100K.
#include <tessera/tessera.h>

#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "examples/common/command_line.h"
#include "examples/models/click_data.h"

namespace optim = tessera::optim;
using tessera::FeatureConfig;
using tessera::Nest;

namespace {

// The number of factors, and the width of a feature's vector.
constexpr int64_t kDim = 8;

Nest<FeatureConfig> users_and_items(const ClickData& data, int64_t dim) {
  const auto users = tessera::make_table(
      {.name = "users", .vocabulary_size = data.users, .dim = dim});
  const auto items = tessera::make_table(
      {.name = "items", .vocabulary_size = data.items, .dim = dim});
  return {
      {"user", FeatureConfig{.table = users}},
      {"item", FeatureConfig{.table = items}}};
}

Nest<FeatureConfig> all_features(const ClickData& data, int64_t dim) {
  const Nest<FeatureConfig> pair = users_and_items(data, dim);
  auto features = pair.entries();
  const auto past_items = tessera::make_table(
      {.name = "past_items", .vocabulary_size = data.items, .dim = dim});
  features.emplace_back(
      "history",
      FeatureConfig{.table = past_items, .max_sequence_length = kHistory});
  return Nest<FeatureConfig>::map(features);
}

// A model gives one column of scores for each label that it learns.
struct Model : torch::nn::Module {
  explicit Model(const Nest<FeatureConfig>& features)
      : embedding(register_module(
            "embedding",
            tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
                .features = features,
                .optimizer = optim::Adam{.learning_rate = 0.01}}))) {}

  virtual torch::Tensor forward(const Batch& batch) = 0;

  tessera::TPUEmbedding embedding;
};

// The baseline: a weight for each user, item and item of the history.
struct Linear : Model {
  explicit Linear(const ClickData& data) : Model(all_features(data, 1)) {}

  torch::Tensor forward(const Batch& batch) override {
    const auto rows = embedding->forward(batch.features);
    return rows["user"] + rows["item"] + rows["history"].sum(1) + bias;
  }

  torch::Tensor bias = register_parameter("bias", torch::zeros({1}));
};

// snippet: matrix_factorization
struct Ratings : Model {
  // The first column of a row is a bias.
  explicit Ratings(const ClickData& data)
      : Model(users_and_items(data, 1 + kDim)) {}

  torch::Tensor forward(const Batch& batch) override {
    return factors->forward(embedding->forward(
        {{"user", batch.features["user"]}, {"item", batch.features["item"]}}));
  }

  tessera::MatrixFactorization factors = register_module(
      "factors",
      tessera::MatrixFactorization(
          tessera::MatrixFactorizationOptions{.global_mean = 3.5}));
};
// end snippet

// snippet: fm
struct FM : Model {
  // The first column of a row is the weight of its feature.
  explicit FM(const ClickData& data) : Model(all_features(data, 1 + kDim)) {}

  torch::Tensor forward(const Batch& batch) override {
    return machine->forward(embedding->forward(batch.features));
  }

  tessera::FactorizationMachine machine =
      register_module("machine", tessera::FactorizationMachine());
};

struct DeepFM : Model {
  explicit DeepFM(const ClickData& data)
      : Model(all_features(data, 1 + kDim)) {}

  torch::Tensor forward(const Batch& batch) override {
    return machine->forward(embedding->forward(batch.features));
  }

  tessera::DeepFM machine = register_module(
      "machine",
      tessera::DeepFM(tessera::DeepFMOptions{.hidden_units = {32, 16}}));
};
// end snippet

// snippet: din
struct DIN : Model {
  explicit DIN(const ClickData& data) : Model(all_features(data, kDim)) {}

  torch::Tensor forward(const Batch& batch) override {
    const auto rows = embedding->forward(batch.features);
    const auto interest = attention->forward(
        rows["item"],
        rows["history"],
        tessera::history_lengths(batch.features["history"]));
    return tower->forward(
        {{"user", rows["user"]}, {"item", rows["item"]}, {"own", interest}});
  }

  tessera::DINAttention attention = register_module(
      "attention",
      tessera::DINAttention(
          tessera::DINAttentionOptions{.hidden_units = {32, 16}}));
  tessera::MLP tower = register_module(
      "tower",
      tessera::MLP(tessera::MLPOptions{.units = {32, 1}}));
};
// end snippet

// snippet: mmoe
struct MMoE : Model {
  explicit MMoE(const ClickData& data) : Model(all_features(data, kDim)) {}

  torch::Tensor forward(const Batch& batch) override {
    const auto rows = embedding->forward(batch.features);
    const auto user = rows["user"];
    const auto item = rows["item"];
    const auto past = rows["history"].sum(1);
    const auto logits = experts->forward(
        {{"user", user},
         {"item", item},
         {"taste", user * item},
         {"interest", item * past}});
    return torch::cat({logits["click"], logits["like"]}, 1);
  }

  tessera::MMoE experts = register_module(
      "experts",
      tessera::MMoE(tessera::MMoEOptions{
          .tasks = {"click", "like"},
          .num_experts = 4,
          .expert_units = {32, 16}}));
};
// end snippet

torch::Tensor labels_of(const Batch& batch, const std::vector<Label>& labels) {
  std::vector<torch::Tensor> columns;
  for (const Label label : labels) {
    columns.push_back(batch.labels.select(1, label));
  }
  return torch::stack(columns, 1);
}

void train(
    Model& model,
    const ClickData& data,
    const std::vector<Label>& labels,
    int64_t epochs) {
  torch::optim::Adam optimizer(model.parameters(), 0.003);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    for (const Batch& batch : data.training) {
      optimizer.zero_grad();
      const auto scores = model.forward(batch);
      const auto expected = labels_of(batch, labels);
      const auto loss = labels[0] == kStars
          ? torch::mse_loss(scores, expected)
          : torch::binary_cross_entropy_with_logits(scores, expected);
      loss.backward();
      optimizer.step();
    }
  }
}

// The metric of the label: RMSE of stars, otherwise AUC.
std::unique_ptr<tessera::training::Metric> make_metric(Label label) {
  if (label == kStars) {
    return std::make_unique<tessera::training::RMSE>();
  }
  return std::make_unique<tessera::training::AUC>();
}

// One result for each label.
std::vector<double> evaluate(
    Model& model,
    const ClickData& data,
    const std::vector<Label>& labels) {
  const torch::NoGradGuard no_grad;
  model.eval();
  std::vector<std::unique_ptr<tessera::training::Metric>> metrics;
  for (const Label label : labels) {
    metrics.push_back(make_metric(label));
  }
  for (const Batch& batch : data.test) {
    const auto scores = model.forward(batch);
    for (size_t i = 0; i < labels.size(); ++i) {
      metrics[i]->update(
          scores.select(1, static_cast<int64_t>(i)),
          batch.labels.select(1, labels[i]));
    }
  }
  std::vector<double> results;
  for (const auto& metric : metrics) {
    results.push_back(metric->result());
  }
  return results;
}

// The baseline that predicts the mean label of the item.
double evaluate_popularity(const ClickData& data, Label label) {
  const auto sums = torch::zeros({data.items});
  const auto counts = torch::full({data.items}, 1e-6);
  double total = 0.0;
  for (const Batch& batch : data.training) {
    const auto& items = std::get<torch::Tensor>(batch.features["item"]);
    const auto labels = batch.labels.select(1, label);
    sums.index_add_(0, items, labels);
    counts.index_add_(0, items, torch::ones_like(labels));
    total += labels.mean().item<double>();
  }
  // An item without examples gets the mean of all.
  sums.add_(1e-6 * total / static_cast<double>(data.training.size()));
  const auto means = sums / counts;
  const auto metric = make_metric(label);
  for (const Batch& batch : data.test) {
    const auto& items = std::get<torch::Tensor>(batch.features["item"]);
    metric->update(means.index({items}), batch.labels.select(1, label));
  }
  return metric->result();
}

struct Baselines {
  double popularity = 0.0;
  double linear = 0.0;
};

Baselines evaluate_baselines(
    const ClickData& data,
    Label label,
    int64_t epochs) {
  Linear linear(data);
  train(linear, data, {label}, epochs);
  return {
      .popularity = evaluate_popularity(data, label),
      .linear = evaluate(linear, data, {label})[0]};
}

std::string verdict(double result, const Baselines& baselines, Label label) {
  const auto beats = [&](double baseline) {
    return label == kStars ? result < baseline : result > baseline;
  };
  if (beats(baselines.popularity) && beats(baselines.linear)) {
    return "beats both";
  }
  std::string text = "does not beat";
  text += beats(baselines.popularity) ? "" : " popularity";
  return text + (beats(baselines.linear) ? "" : " linear");
}

void print_line(
    const std::string& name,
    const std::string& label_name,
    Label label,
    double result,
    const Baselines& baselines) {
  std::cout << fmt::format(
      "{:<22}{:<8}{:<6}{:>10.4f}{:>10.4f}{:>10.4f}  {}\n",
      name,
      label_name,
      label == kStars ? "RMSE" : "AUC",
      baselines.popularity,
      baselines.linear,
      result,
      verdict(result, baselines, label));
}

int run(const std::string& folder, int64_t seed, int64_t epochs) {
  std::optional<ClickData> movielens;  // read first, so that errors come early
  if (!folder.empty()) {
    movielens = read_ratings(folder, seed);
  }
  const ClickData data = generate_clicks(seed);
  std::cout << fmt::format(
      "{:<22}{:<8}{:<6}{:>10}{:>10}{:>10}\n",
      "model",
      "label",
      "",
      "popularity",
      "linear",
      "model");
  const auto stars = evaluate_baselines(data, kStars, epochs);
  const auto click = evaluate_baselines(data, kClick, epochs);
  const auto like = evaluate_baselines(data, kLike, epochs);

  Ratings ratings(data);
  train(ratings, data, {kStars}, epochs);
  print_line(
      "matrix factorization",
      "stars",
      kStars,
      evaluate(ratings, data, {kStars})[0],
      stars);

  const auto print_click_model = [&](const std::string& name, Model& model) {
    train(model, data, {kClick}, epochs);
    print_line(
        name, "click", kClick, evaluate(model, data, {kClick})[0], click);
  };
  FM fm(data);
  print_click_model("FM", fm);
  DeepFM deep_fm(data);
  print_click_model("DeepFM", deep_fm);
  DIN din(data);
  print_click_model("DIN", din);

  MMoE mmoe(data);
  train(mmoe, data, {kClick, kLike}, epochs);
  const auto results = evaluate(mmoe, data, {kClick, kLike});
  print_line("MMoE", "click", kClick, results[0], click);
  print_line("MMoE", "like", kLike, results[1], like);

  if (movielens) {
    Ratings movies(*movielens);
    train(movies, *movielens, {kStars}, epochs);
    print_line(
        "MovieLens, MF",
        "stars",
        kStars,
        evaluate(movies, *movielens, {kStars})[0],
        evaluate_baselines(*movielens, kStars, epochs));
  }
  TORCH_CHECK(
      std::cout.flush(),
      "[models] expected to write the report, but standard output failed. "
      "Check that the disk is not full.");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  tessera::limit_thread_spins(argv);
  CLI::App app(
      "Trains well-known models on generated ratings and clicks, and compares them with two baselines.");
  std::string folder;
  int64_t seed = 1;
  int64_t epochs = 4;
  app.add_option("--data", folder, "folder of MovieLens 100K");
  add_seed(app, seed, "seed of the data and of the initial values");
  add_count(app, "--epochs", epochs, "epochs of the examples");
  CLI11_PARSE(app, argc, argv);
  return run_program("models", [&] { return run(folder, seed, epochs); });
}
