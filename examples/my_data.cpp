// SPDX-License-Identifier: Apache-2.0
// Recommends new items to each user, from clicks in CSV or Parquet files. Copy it, and name
// your columns in place of user, item and time.
#include <tessera/tessera.h>
#include <iostream>

using namespace tessera;
using namespace tessera::data;
using torch::Tensor;
void run(const std::vector<std::string>& files) {
  // 1. Read the files. The last two clicks of each user are for measuring.
  const Dataset clicks(make_file_source(
      {.files = files,
       .columns = {"user", "item", "time"},
       .types = {{"user", ColumnType::kText}, {"item", ColumnType::kText}}}));
  const auto parts =
      split(clicks.cache(), LeaveOneOut{.user = "user", .time = "time"});
  // 2. Give every user and item an id. Ids 0 and 1 stand for other values.
  const FeaturePipeline pipeline(
      {{"user", {"user"}, learn_vocabulary(clicks, "user")},
       {"item", {"item"}, learn_vocabulary(clicks, "item")}});
  const auto to_ids = [&](const Columns& batch) {
    const auto ids = pipeline.apply(batch).features;
    Columns result;
    result.add("user", {.values = std::get<Tensor>(ids["user"])});
    result.add("item", {.values = std::get<Tensor>(ids["item"])});
    return result;
  };
  const Dataset train = parts.train.map(to_ids);
  const UserItems seen(train);
  // 3. Train a vector for each user and item. The loss compares the items of a batch.
  TPUEmbedding model(TPUEmbeddingOptions{
      .features = pipeline.make_features({.dim = 32}),
      .optimizer = optim::Adam{.learning_rate = 0.01}});
  const auto vectors = [&](const std::string& name, const auto& ids) {
    return model->forward_partial({{name, ids}})[name];
  };
  Retrieval retrieval(RetrievalOptions{.reduction = LossReduction::kMean});
  const auto loss_of = [&](const Columns& batch) {
    const Tensor items = batch.tensor("item");
    return retrieval->forward(
        vectors("user", batch.tensor("user")),
        vectors("item", items),
        {.candidate_ids = items});
  };
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  training::fit(
      train.shuffle({.buffer = 100'000}).batch({.size = 256}),
      training::make_train_step(optimizer, loss_of),
      {.epochs = 10, .model = model, .callbacks = {training::ProgressBar()}});
  // 4. Find the ten best items that a user has not clicked.
  const Tensor items = torch::arange(pipeline.vocabulary_size("item"));
  const Recommender recommender(
      model,
      {.items = [&] { return RecommenderItems{vectors("item", items)}; },
       .query =
           [&](const PipelineBatch& users) {
             return vectors("user", users.features["user"]);
           },
       .pipeline = pipeline,
       .seen = [&](const Tensor& users) { return seen.of(users); }});
  const auto recommend = [&](const Tensor& users) {
    const auto k = std::min<int64_t>(10, items.numel() - 2);
    return recommender.recommend(
        {{"user", users}}, {.k = k, .exclude_seen = true});
  };
  // 5. Measure how many lists have the last click. Then print the list of each user.
  const Columns test = parts.test.map(to_ids).head(1'000'000);
  training::RecallAtK recall({.k = 10});
  recall.update(recommend(test.tensor("user")).ids, test.tensor("item"));
  std::cout << "recall_at_10: " << recall.result() << "\n";
  const Tensor users = torch::arange(2, pipeline.vocabulary_size("user"));
  const auto names = pipeline.to_text("user", users);
  const auto lists = recommend(users).texts;
  for (size_t user = 0; user < names.size(); ++user) {
    std::cout << names[user] << ":";
    for (const auto& name : lists[user]) {
      std::cout << " " << name;
    }
    std::cout << "\n";
  }
}
int main(int argc, char** argv) try {
  limit_thread_spins(argv);
  if (argc < 2) {
    std::cerr << "usage: my_data FILE...\n";
    return 2;
  }
  run({argv + 1, argv + argc});
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << "\n";
  return 1;
}
