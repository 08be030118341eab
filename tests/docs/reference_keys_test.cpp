// SPDX-License-Identifier: Apache-2.0
// The examples in the docstrings of tables/dynamic_keys.h and in docs/features.md, which
// check_docs.cmake compares with them.
#include <tessera/tessera.h>

#include "tests/serialization/recording_disk.h"
#include "tests/test_util.h"

namespace tessera::reference_keys_test {

TEST(KeysReferenceTest, Admissions) {
  {
    // snippet: EveryKey
    const DynamicKeys keys{
        .capacity = 1'000'000, .admission = admission::EveryKey{}};
    // end snippet
    validate(keys, "[test]");
  }
  {
    // snippet: AfterOccurrences
    const DynamicKeys keys{
        .capacity = 1'000'000,
        .admission = admission::AfterOccurrences{.count = 3}};
    // end snippet
    validate(keys, "[test]");
  }
  // snippet: WithProbability
  const DynamicKeys keys{
      .capacity = 1'000'000,
      .admission = admission::WithProbability{.probability = 0.1}};
  // end snippet
  validate(keys, "[test]");
}

TEST(KeysReferenceTest, Evictions) {
  {
    // snippet: LeastRecentlyUsed
    const DynamicKeys keys{
        .capacity = 1'000'000, .eviction = eviction::LeastRecentlyUsed{}};
    // end snippet
    validate(keys, "[test]");
  }
  {
    // snippet: LeastFrequentlyUsed
    const DynamicKeys keys{
        .capacity = 1'000'000,
        .eviction = eviction::LeastFrequentlyUsed{.half_life = 10'000}};
    // end snippet
    validate(keys, "[test]");
  }
  // snippet: OlderThan
  const DynamicKeys keys{
      .capacity = 1'000'000,
      .eviction = eviction::OlderThan{.updates = 50'000}};
  // end snippet
  validate(keys, "[test]");
}

TEST(KeysReferenceTest, DynamicKeys) {
  // snippet: DynamicKeys
  const TablePtr users = make_table(
      {.name = "users",
       .dim = 16,
       .keys = DynamicKeys{
           .capacity = 1'000'000,
           .admission = admission::AfterOccurrences{.count = 2}}});
  // end snippet
  // snippet: key_table
  TPUEmbedding embedding(
      {.features = {{"user", FeatureConfig{.table = users}}},
       .optimizer = optim::Adagrad{.learning_rate = 0.1}});
  const auto ids = torch::tensor({-5, 7, 7}, torch::kLong);
  // 7 occurs twice, so this update gives it a row. -5 looks up zeros.
  embedding->forward({{"user", ids}})["user"].sum().backward();
  const auto tables = embedding->embedding_tables();
  const auto keys = tables.begin()->keys;  // 7
  // end snippet
  EXPECT_TRUE(at::equal(keys, test::int64s({7})));

  const test::MemoryFolder folder;
  const std::string file = folder / "users.safetensors";
  // snippet: keys_in_files
  const auto saved = embedding->embedding_tables();
  tessera::save_safetensors(
      {.tensors =
           {{"users.keys", saved.begin()->keys},
            {"users", saved.begin()->parameters}}},
      file);
  const tessera::NamedTensors loaded = tessera::load_safetensors(file);
  embedding->update_embedding_table(
      "users", loaded["users.keys"], loaded["users"]);
  // end snippet
  EXPECT_TRUE(at::equal(saved.begin()->keys, keys));
  EXPECT_EQ(embedding->evict("users", 1), 0);
}

}  // namespace tessera::reference_keys_test
