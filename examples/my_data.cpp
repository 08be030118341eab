// SPDX-License-Identifier: Apache-2.0
// Ranks new items for each user, from clicks in CSV or Parquet files. Copy it, and name
// your columns in place of user, item and time.
#include <tessera/tessera.h>
#include <iostream>

using namespace tessera;
using namespace tessera::data;
using namespace tessera::training;
using torch::Tensor;
using Names = std::vector<std::string>;
void run(const Names& files) {
  // 1. Read the files. The last two clicks of each user are for measuring.
  const Dataset clicks(make_file_source(
      {.files = files,
       .columns = {"user", "item", "time"},
       .types = {{"user", ColumnType::kText}, {"item", ColumnType::kText}}}));
  const DatasetSplit parts =
      split(clicks.cache(), LeaveOneOut{.user = "user", .time = "time"});
  // 2. Give every user and item an id, including those of the test set.
  const auto users = learn_vocabulary(clicks, "user");
  const auto items = learn_vocabulary(clicks, "item");
  const FeaturePipeline pipeline(
      {{.name = "user", .columns = {"user"}, .transform = users},
       {.name = "item", .columns = {"item"}, .transform = items}});
  const auto to_ids = [&](const Columns& batch) {
    const auto ids = pipeline.apply(batch).features;
    Columns result;
    result.add("user", {.values = std::get<Tensor>(ids["user"])});
    result.add("item", {.values = std::get<Tensor>(ids["item"])});
    return result;
  };
  const Dataset train = parts.train.map(to_ids);
  const UserItems seen(train);
  // 3. A vector for each user and item. The loss compares the items of a batch.
  const auto table = [&](const std::string& name) {
    return FeatureConfig{.table = pipeline.make_table(name, {.dim = 32})};
  };
  TPUEmbedding model(TPUEmbeddingOptions{
      .features = {{"user", table("user")}, {"item", table("item")}},
      .optimizer = optim::Adam{.learning_rate = 0.01}});
  const auto vectors = [&](const std::string& name, const Tensor& ids) {
    return model->forward_partial({{name, ids}})[name];
  };
  Retrieval retrieval(RetrievalOptions{.reduction = LossReduction::kMean});
  const auto loss_of = [&](const Columns& batch) {
    return retrieval->forward(
        vectors("user", batch.tensor("user")),
        vectors("item", batch.tensor("item")),
        {.candidate_ids = batch.tensor("item")});
  };
  // 4. Train. Each epoch ends with a search of all items that a user has not clicked.
  const Tensor all = torch::arange(2, pipeline.vocabulary_size("item"));
  Metrics metrics{std::make_shared<RecallAtK>(), std::make_shared<NDCG>()};
  const auto search = std::make_shared<CorpusEvaluation>(
      make_batch_loop<CandidateVectors>(
          std::vector<Tensor>{all},
          [&](const Tensor& ids) {
            return CandidateVectors{vectors("item", ids), ids};
          }),
      make_batch_loop<CorpusQueries>(
          parts.test.map(to_ids).batch({.size = 1024}),
          [&](const Columns& batch) {
            return CorpusQueries{
                .vectors = vectors("user", batch.tensor("user")),
                .labels = batch.tensor("item"),
                .seen = seen.of(batch.tensor("user"))};
          }),
      CorpusEvaluationOptions{.metrics = metrics});
  torch::optim::SGD optimizer(model->parameters(), 1.0);
  fit(train.shuffle({.buffer = 100'000}).batch({.size = 256}),
      make_train_step(optimizer, loss_of),
      {.epochs = 10,
       .model = model,
       .callbacks = {search, std::make_shared<ProgressBar>()}});
  // 5. Print the ten best new items of each user. Ids 0 and 1 stand for other values.
  const torch::NoGradGuard no_grad;
  const Tensor ids = torch::arange(2, pipeline.vocabulary_size("user"));
  const auto index = make_exact_index(vectors("item", all), all);
  const auto top = std::min<int64_t>(10, all.numel());
  const auto found = index->search(vectors("user", ids), top, seen.of(ids)).ids;
  const Names names = pipeline.to_text("user", ids);
  for (int64_t user = 0; user < ids.size(0); ++user) {
    const Tensor ranked = found[user].masked_select(found[user] >= 0);
    std::cout << names[user] << ":";
    for (const auto& name : pipeline.to_text("item", ranked)) {
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
  run(Names(argv + 1, argv + argc));
} catch (const c10::Error& error) {
  std::cerr << error.what_without_backtrace() << "\n";
  return 1;
}
