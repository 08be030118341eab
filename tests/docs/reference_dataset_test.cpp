// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of dataset.h, batches.h, dataset_split.h,
// collect_sequences.h and negative_sampling.h, which check_docs.cmake compares with them.
#include <tessera/tessera.h>

#include "tests/test_util.h"

namespace tessera::data::reference_dataset_test {

// Ten examples of three users, who rate two items each or more.
Columns ten_ratings() {
  Columns columns;
  columns.add(
      "user", {.values = torch::tensor({1, 1, 1, 1, 2, 2, 2, 3, 3, 3})});
  columns.add("item", {.values = torch::arange(10)});
  columns.add("time", {.values = torch::arange(10)});
  return columns;
}

struct Trained {
  std::vector<int64_t> sizes;

  void operator()(const Columns& batch) {
    sizes.push_back(batch.batch_size());
  }
};

TEST(DatasetReferenceTest, Dataset) {
  Trained train;
  // snippet: Dataset
  Columns columns;
  columns.add("user", {.values = torch::tensor({1, 1, 2, 3})});
  columns.add("price", {.values = torch::tensor({5.0F, 0.5F, 8.0F, 2.0F})});
  const Dataset dataset(columns);
  const Dataset expensive = dataset.filter([](const Columns& examples) {
    return std::get<torch::Tensor>(examples.at("price").values) > 1.0;
  });
  for (Columns& batch :
       expensive.shuffle({.buffer = 1000}).batch({.size = 2})(0)) {
    train(batch);
  }
  // end snippet
  EXPECT_EQ(train.sizes, (std::vector<int64_t>{2, 1}));
}

TEST(DatasetReferenceTest, Cache) {
  const Dataset dataset(ten_ratings());
  // snippet: CacheOptions
  const Dataset cached = dataset.cache({.max_bytes = int64_t{1} << 30});
  // end snippet
  EXPECT_EQ(cached.size(), 10);
}

TEST(DatasetReferenceTest, MapContext) {
  const Dataset dataset(ten_ratings());
  // snippet: MapContext
  const auto add_epoch = [](Columns batch, const MapContext& context) {
    const int64_t size = batch.batch_size();
    batch.add("epoch", {.values = torch::full({size}, context.epoch)});
    return batch;
  };
  const Batches batches = dataset.batch({.size = 256}).map(add_epoch);
  // end snippet
  EXPECT_TRUE(batches(3).next()->contains("epoch"));
}

TEST(DatasetReferenceTest, Batches) {
  Trained train;
  const Dataset dataset(ten_ratings());
  // snippet: Batches
  const Batches batches = dataset.shuffle({.buffer = 100'000, .seed = 1})
                              .batch({.size = 256})
                              .prefetch(2);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    for (Columns& batch : batches(epoch)) {
      train(batch);
    }
  }
  // end snippet
  EXPECT_EQ(train.sizes, (std::vector<int64_t>{10, 10}));
}

TEST(DatasetReferenceTest, Head) {
  const Dataset ratings(ten_ratings());
  testing::internal::CaptureStdout();
  // snippet: head
  std::cout << ratings.head(3);
  // end snippet
  EXPECT_EQ(
      testing::internal::GetCapturedStdout(),
      "user   item   time\n"
      "int64  int64  int64\n"
      "1      0      0\n"
      "1      1      1\n"
      "1      2      2\n");
}

TEST(DatasetReferenceTest, BatchReader) {
  Trained train;
  const Batches batches = Dataset(ten_ratings()).batch({.size = 4});
  // snippet: BatchReader
  BatchReader reader = batches(0);
  std::optional<Columns> first = reader.next();
  const BatchPosition position = reader.position();
  // Later, or in another process:
  for (Columns& batch : batches.resume(position)) {
    train(batch);
  }
  // end snippet
  EXPECT_EQ(first->batch_size(), 4);
  EXPECT_EQ(train.sizes, (std::vector<int64_t>{4, 2}));
}

TEST(DatasetReferenceTest, Split) {
  const Dataset ratings(ten_ratings());
  // snippet: split
  const DatasetSplit by_share = split(ratings, SplitByShare{.test = 0.2});
  const DatasetSplit by_user =
      split(ratings, SplitByUser{.column = "user", .test = 0.2});
  const DatasetSplit by_time = split(
      ratings, SplitByTime{.column = "time", .test = 0.1, .validation = 0.1});
  const DatasetSplit last_of_each_user =
      split(ratings, LeaveOneOut{.user = "user", .time = "time"});
  // end snippet
  EXPECT_EQ(*by_share.train.size() + *by_share.test.size(), 10);
  EXPECT_EQ(*by_user.train.size() + *by_user.test.size(), 10);
  EXPECT_EQ(by_time.train.size(), 8);
  EXPECT_EQ(last_of_each_user.train.size(), 4);
}

TEST(DatasetReferenceTest, CollectSequences) {
  const Dataset clicks(ten_ratings());
  // snippet: collect_sequences
  const Columns histories = collect_sequences(
      clicks, {.by = "user", .time = "time", .values = {"item"}});
  const Dataset users(histories);
  // end snippet
  EXPECT_EQ(
      to_string(users.head()),
      "user   item\n"
      "int64  [int64]\n"
      "1      [0,1,2,3]\n"
      "2      [4,5,6]\n"
      "3      [7,8,9]\n");
}

TEST(DatasetReferenceTest, NegativeSampler) {
  const Dataset train(ten_ratings());
  // snippet: NegativeSampler
  const NegativeSampler negatives(
      train,
      {.item = "item",
       .user = "user",
       .distribution = NegativeDistribution::kPopularity,
       .excluded = ExcludedItems::kKnown,
       .num_negatives = 4});
  const Batches batches =
      train.shuffle({.buffer = 100'000}).batch({.size = 256}).map(negatives);
  // end snippet
  const Columns batch = *batches(0).next();
  EXPECT_EQ(batch.at("negatives").row_splits[10].item<int64_t>(), 40);
}

TEST(DatasetReferenceTest, LearnVocabulary) {
  Columns clicks;
  clicks.add("item", {.values = torch::tensor({7, 5, 7, 6, 5}, torch::kLong)});
  const Dataset train(clicks);
  // snippet: learn_vocabulary
  const transforms::Vocabulary items =
      learn_vocabulary(train, "item", {.min_count = 2});
  // end snippet
  EXPECT_EQ(
      std::get<std::vector<int64_t>>(items.values),
      (std::vector<int64_t>{7, 5}));
}

TEST(DatasetReferenceTest, UserItems) {
  Columns clicks;
  clicks.add("user", {.values = torch::tensor({2, 1, 2}, torch::kLong)});
  clicks.add("item", {.values = torch::tensor({1, 0, 2}, torch::kLong)});
  const Dataset train(clicks);
  const auto index = make_exact_index(torch::eye(3));
  const auto users = torch::tensor({1, 2}, torch::kLong);
  const auto user_vectors = torch::ones({2, 3});
  // snippet: UserItems
  const UserItems seen(train, {.user = "user", .item = "item"});
  const TopK found = index->search(user_vectors, 2, seen.of(users));
  // end snippet
  EXPECT_EQ(found.ids[1][0].item<int64_t>(), 0);
}

}  // namespace tessera::data::reference_dataset_test
