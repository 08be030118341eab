// SPDX-License-Identifier: Apache-2.0
// Learns from a file of clicks and recommends items over HTTP. Copy it, and name your
// columns in place of user and item.
#include <tessera/tessera.h>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <thread>

using namespace tessera;
using namespace tessera::data;
using torch::Tensor;
void run(
    const std::string& clicks_file,
    const std::string& items_file,
    uint16_t port) {
  // 1. Read the clicks, with columns user and item, and a row about each item.
  FileOptions file{.files = {items_file}};
  file.types = {{"item", ColumnType::kText}};
  const Columns items = Dataset(make_file_source(file)).head(1'000'000);
  file.files = {clicks_file};
  file.types["user"] = ColumnType::kText;
  const Dataset clicks = Dataset(make_file_source(file)).cache();
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
  const Dataset train = clicks.map(to_ids);
  const UserItems seen(train);
  // 3. Train a vector for each user and item. The loss compares the items of a batch.
  TPUEmbedding model(TPUEmbeddingOptions{
      .features = pipeline.make_features({.dim = 32}),
      .optimizer = optim::Adam{.learning_rate = 0.01}});
  Retrieval retrieval(RetrievalOptions{.reduction = LossReduction::kMean});
  Tensor popularity = torch::zeros({pipeline.vocabulary_size("item")});
  const auto loss_of = [&](const Columns& batch) {
    const Tensor item = batch.tensor("item");
    popularity += item.bincount({}, popularity.numel());
    const auto rows =
        model->forward({{"user", batch.tensor("user")}, {"item", item}});
    return retrieval->forward(
        rows["user"], rows["item"], {.candidate_ids = item});
  };
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  training::fit(
      train.shuffle({.buffer = 100'000}).batch({.size = 256}),
      training::make_train_step(optimizer, loss_of),
      {.epochs = 10, .model = model, .callbacks = {training::ProgressBar()}});
  // snippet: serve
  // 4. Publish the model with its items.
  save_pipeline(pipeline, "pipeline.json");
  const auto vectors = [&](const std::string& name) {
    const Tensor ids = torch::arange(pipeline.vocabulary_size(name));
    return model->forward_partial({{name, ids}})[name];
  };
  const serving::PublishedItems published{
      .items =
          [&] {
            return RecommenderItems{
                .vectors = vectors("item"), .popularity = popularity};
          },
      .users = [&] { return vectors("user"); },
      .fold_in = serving::PublishedFoldIn{.regularization = 1.0},
      .seen = [&](const Tensor& users) { return seen.of(users); },
      .attributes = items};
  serving::Publisher publisher(
      model, "published", {.pipeline = "pipeline.json", .items = published});
  publisher.publish();
  // 5. Serve until Ctrl-C.
  const auto reader = std::make_shared<serving::Reader>("published");
  const serving::Server server(reader, {.port = port});
  std::cout << "serving at http://127.0.0.1:" << server.port() << std::endl;
  std::this_thread::sleep_for(std::chrono::years(100));
  // end snippet
}
int main(int argc, char** argv) try {
  limit_thread_spins(argv);
  const int port = argc == 4 ? std::atoi(argv[3]) : -1;
  if (port < 0 || port > 65535) {
    std::cerr << "usage: my_server CLICKS ITEMS PORT\n";
    return 2;
  }
  run(argv[1], argv[2], static_cast<uint16_t>(port));
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << "\n";
  return 1;
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";  // such as a port that is in use
  return 1;
}
