// SPDX-License-Identifier: Apache-2.0
#include "packages/serving/tests/published_model.h"

#include <unistd.h>

namespace tessera::test {

namespace {

at::Tensor int64_tensor(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

// The keys are spread over all of int64.
int64_t user_key(uint64_t user) {
  return static_cast<int64_t>(user * 0xD1342543DE82EF95ULL);
}

constexpr int64_t kPaddingUser = -1;
constexpr int64_t kDefaultUser = -2;

}  // namespace

Feature PublishedBatch::for_layer() const {
  if (row_splits.empty()) {
    return int64_tensor(ids);
  }
  return RaggedFeature{
      .values = int64_tensor(ids), .row_splits = int64_tensor(row_splits)};
}

PublishedModel::PublishedModel(const PublishedModelOptions& given)
    : options(given) {
  const TablePtr movies = make_table(
      {.name = "movies",
       .vocabulary_size = options.movies,
       .dim = options.dim,
       .combiner = Combiner::kMean,
       .dtype = options.dtype});
  const TablePtr words = make_table(
      {.name = "words",
       .vocabulary_size = 500,
       .dim = 10,
       .combiner = Combiner::kSqrtn,
       .dtype = options.dtype});
  Nest<FeatureConfig>::Map features{
      {"movie", FeatureConfig{.table = movies}},
      {"watched", FeatureConfig{.table = movies}},
      {"session", FeatureConfig{.table = movies, .max_sequence_length = 3}},
      {"word",
       FeatureConfig{.table = words, .out_of_range = OutOfRange::kZero}}};
  if (options.has_keys) {
    const TablePtr users = make_table(
        {.name = "users",
         .dim = 8,
         .combiner = Combiner::kSum,
         .dtype = options.dtype,
         .keys = DynamicKeys{
             .capacity = options.user_capacity,
             .padding_key = kPaddingUser,
             .default_key = kDefaultUser}});
    features.emplace_back("user", FeatureConfig{.table = users});
    features.emplace_back("friends", FeatureConfig{.table = users});
  }
  embedding = register_module(
      "embedding",
      TPUEmbedding(TPUEmbeddingOptions{
          .features = Nest<FeatureConfig>::map(std::move(features)),
          .optimizer = options.optimizer,
          .strategy = options.strategy,
          .apply = options.apply}));
  head = register_module("head", torch::nn::Linear(4, 1));
}

std::map<std::string, PublishedBatch> PublishedModel::random_batch(
    std::mt19937_64& random) const {
  constexpr int64_t kExamples = 40;
  std::map<std::string, PublishedBatch> batch;
  const auto below = [&](int64_t end) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(end));
  };
  const auto ragged = [&](const char* name,
                          int64_t max,
                          auto id,
                          bool weights) {
    PublishedBatch& one = batch[name];
    one.row_splits = {0};
    for (int64_t i = 0; i < kExamples; ++i) {
      for (int64_t j = below(max + 1); j > 0; --j) {
        one.ids.push_back(id());
        if (weights) {
          one.weights.push_back(static_cast<float>(below(100)) / 16.0F - 0.5F);
        }
      }
      one.row_splits.push_back(static_cast<int64_t>(one.ids.size()));
    }
  };
  const auto movie = [&] { return below(options.movies); };
  const auto user = [&] {
    const int64_t chosen = below(3000);
    return chosen < 50 ? kPaddingUser
        : chosen < 80  ? kDefaultUser
                       : user_key(static_cast<uint64_t>(chosen));
  };
  for (int64_t i = 0; i < kExamples; ++i) {
    batch["movie"].ids.push_back(movie());
    if (options.has_keys) {
      batch["user"].ids.push_back(user());
    }
  }
  ragged("watched", 9, movie, /*weights=*/true);
  ragged("session", 5, movie, /*weights=*/false);
  ragged(
      "word", 6, [&] { return below(520) - 10; }, /*weights=*/true);
  if (options.has_keys) {
    ragged("friends", 4, user, /*weights=*/false);
  }
  return batch;
}

namespace {

Nest<at::Tensor> run(
    PublishedModel& model,
    const std::map<std::string, PublishedBatch>& batch) {
  Features::Map features;
  Weights::Map weights;
  for (const auto& [name, one] : batch) {
    features.emplace_back(name, one.for_layer());
    if (!one.weights.empty()) {
      weights.emplace_back(name, at::tensor(one.weights, at::kFloat));
    }
  }
  return model.embedding->forward(
      Features::map(std::move(features)), Weights::map(std::move(weights)));
}

}  // namespace

void PublishedModel::learn(const std::map<std::string, PublishedBatch>& batch) {
  embedding->train();
  at::Tensor loss = at::zeros({});
  const Nest<at::Tensor> activations = run(*this, batch);
  for (const auto& [name, entry] : activations.entries()) {
    loss = loss + (entry.leaf() * entry.leaf()).sum() + entry.leaf().sum();
  }
  loss.backward();
}

std::map<std::string, std::vector<float>> PublishedModel::evaluate(
    const std::map<std::string, PublishedBatch>& batch) {
  const at::NoGradGuard no_grad;
  embedding->eval();
  std::map<std::string, std::vector<float>> result;
  const Nest<at::Tensor> activations = run(*this, batch);
  for (const auto& [name, entry] : activations.entries()) {
    const at::Tensor values = entry.leaf().contiguous();
    const auto* first = values.const_data_ptr<float>();
    result[name] = {first, first + values.numel()};
  }
  return result;
}

std::vector<float> look_up(
    const serving::Version& version,
    const std::string& feature,
    const PublishedBatch& batch) {
  const size_t number = version.feature(feature);
  std::vector<float> out(version.output_size(number, batch.for_reader()), 7.0F);
  version.lookup(number, batch.for_reader(), out);
  return out;
}

int64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  int64_t pages = 0;
  file >> pages >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}

void expect_same_bits(
    std::span<const float> actual,
    std::span<const float> expected) {
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(
      std::memcmp(actual.data(), expected.data(), expected.size_bytes()), 0);
}

void expect_same_lookups(
    const serving::Version& version,
    PublishedModel& model,
    uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto batch = model.random_batch(random);
    for (const auto& [name, expected] : model.evaluate(batch)) {
      SCOPED_TRACE(name);
      expect_same_bits(look_up(version, name, batch.at(name)), expected);
    }
  }
}

}  // namespace tessera::test
