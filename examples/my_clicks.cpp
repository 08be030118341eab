// SPDX-License-Identifier: Apache-2.0
// Learns to predict clicks from a CSV or Parquet file with a label. Copy it, and
// name your columns in place of user, item, hour and clicked.
#include <tessera/tessera.h>
#include <iostream>

using namespace tessera;
using namespace tessera::data;
using namespace tessera::training;

int main(int argc, char** argv) try {
  limit_thread_spins(argv);
  TORCH_CHECK(argc == 3, "usage: my_clicks EXAMPLES NEW_EXAMPLES");
  // 1. Read the examples. A tenth of them is for measuring.
  FileOptions file{.files = {argv[1]}};
  file.types = {{"user", ColumnType::kText}, {"item", ColumnType::kText}};
  file.types["clicked"] = ColumnType::kFloat32;  // refuses missing labels
  const auto parts =
      split(Dataset(make_file_source(file)).cache(), SplitByShare{.test = 0.1});
  // 2. Give users and items ids. Those that occur once share the id of unknown ones.
  const auto known = [&](const std::string& name) {
    return learn_vocabulary(parts.train, name, {.min_count = 2});
  };
  const transforms::Bucketize hours{.boundaries = {6, 12, 18}};
  const FeaturePipeline pipeline(
      {{.name = "user", .columns = {"user"}, .transform = known("user")},
       {.name = "item", .columns = {"item"}, .transform = known("item")},
       {.name = "hour", .columns = {"hour"}, .transform = hours}});
  // 3. The model has 16 numbers for each id, and a small tower over them.
  torch::manual_seed(1);  // the same initial weights in each run
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features = pipeline.make_features({.dim = 16}),
      .optimizer = optim::Adam{.learning_rate = 0.01}});
  Sequential model(embedding, MLP({.units = {32, 1}}));
  const auto step_of = [&](const Columns& batch) {
    const auto features = pipeline.apply(batch).features;
    return StepResult{.predictions = model->forward(features).squeeze(1)};
  };
  const auto loss_of = [&](const Columns& batch) {
    StepResult result = step_of(batch);
    result.labels = batch.tensor("clicked");
    result.loss = torch::binary_cross_entropy_with_logits(
        result.predictions, result.labels);
    return result;
  };
  // 4. Train. Each epoch prints the AUC of the training and the held-out examples.
  loss_of(
      *parts.train.batch({.size = 2})(0).begin());  // the MLP learns its sizes
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  const auto held_out = make_pass(parts.test.batch({.size = 1024}), loss_of);
  fit(parts.train.shuffle({.buffer = 100'000}).batch({.size = 256}),
      make_train_step(optimizer, loss_of),
      {.epochs = 5,
       .model = model,
       .metrics = {AUC()},
       .validation = held_out,
       .callbacks = {ProgressBar()}});
  // 5. Print the probability of a click for each new example.
  model->eval();
  file.files = {argv[2]};
  file.types.erase("clicked");  // this file has no labels
  const Dataset fresh(make_file_source(file));
  const auto found = predict(*make_pass(fresh.batch({.size = 1024}), step_of));
  for (int64_t i = 0; i < found.predictions.size(0); ++i) {
    std::cout << found.predictions[i].sigmoid().item<float>() << "\n";
  }
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << "\n";
  return 1;
}
