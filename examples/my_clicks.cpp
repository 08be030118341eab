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
  if (argc != 3) {
    std::cerr << "usage: my_clicks EXAMPLES NEW_EXAMPLES\n";
    return 2;
  }
  // 1. Read the examples. A tenth of them is for measuring.
  FileOptions file{.files = {argv[1]}};
  file.types = {{"user", ColumnType::kText}, {"item", ColumnType::kText}};
  file.types["clicked"] = ColumnType::kFloat32;  // refuses missing labels
  const Dataset examples(make_file_source(file));
  const auto parts = split(examples.cache(), SplitByShare{.test = 0.1});
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
  const auto table = [&](const std::string& name) {
    return FeatureConfig{.table = pipeline.make_table(name, {.dim = 16})};
  };
  TPUEmbedding embedding(TPUEmbeddingOptions{
      .features =
          {{"user", table("user")},
           {"item", table("item")},
           {"hour", table("hour")}},
      .optimizer = optim::Adam{.learning_rate = 0.01}});
  torch::manual_seed(1);  // the same initial weights in each run
  torch::nn::Linear hidden(48, 32), output(32, 1);
  torch::nn::Sequential model(
      embedding, Concatenate(), hidden, torch::nn::ReLU(), output);
  const auto scores_of = [&](const Columns& batch) {
    return model->forward(pipeline.apply(batch).features).squeeze(1);
  };
  const auto loss_of = [&](const Columns& batch) {
    const auto scores = scores_of(batch);
    const auto clicked = batch.tensor("clicked");
    const auto loss = torch::binary_cross_entropy_with_logits(scores, clicked);
    return StepResult{.loss = loss, .predictions = scores, .labels = clicked};
  };
  // 4. Train. Each epoch prints the AUC of the training and the held-out examples.
  torch::optim::Adam optimizer(model->parameters(), 1e-3);
  const auto held_out = make_pass(parts.test.batch({.size = 1024}), loss_of);
  fit(parts.train.shuffle({.buffer = 100'000}).batch({.size = 256}),
      make_train_step(optimizer, loss_of),
      {.epochs = 5,
       .model = model,
       .metrics = {AUC()},
       .validation = Validation{.pass = held_out},
       .callbacks = {ProgressBar()}});
  // 5. Print the probability of a click for each new example.
  model->eval();
  const torch::NoGradGuard no_grad;
  file.files = {argv[2]};
  file.types.erase("clicked");  // this file has no labels
  for (Columns& batch :
       Dataset(make_file_source(file)).batch({.size = 1024})(0)) {
    const auto probabilities = scores_of(batch).sigmoid();
    for (int64_t i = 0; i < probabilities.size(0); ++i) {
      std::cout << probabilities[i].item<float>() << "\n";
    }
  }
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << "\n";
  return 1;
}
