// SPDX-License-Identifier: Apache-2.0
// Tests tables that are loaded from and saved to files of tensors.
#include <tessera/engine/embedding_engine.h>
#include <tessera/layers/tpu_embedding.h>
#include <tessera/optim/optimizers/sgd.h>

#include "packages/formats/tests/tensor_file_fixture.h"
#include "tests/anonymous_memory.h"
#include "tests/features/feature_builders.h"

namespace tessera::tables_in_files_test {

constexpr int64_t kRows = 100;
constexpr int64_t kDim = 12;

Nest<FeatureConfig> features_of(at::ScalarType dtype) {
  const TablePtr users = make_table(
      {.name = "users", .vocabulary_size = kRows, .dim = kDim, .dtype = dtype});
  return {{"user", FeatureConfig{.table = users}}};
}

TPUEmbedding make_layer(at::ScalarType dtype) {
  return TPUEmbedding(TPUEmbeddingOptions{
      .features = features_of(dtype),
      .optimizer = optim::SGD{.learning_rate = 0.1}});
}

class TablesInFilesTest : public TensorFileTest,
                          public testing::WithParamInterface<at::ScalarType> {};

TEST_P(TablesInFilesTest, LoadsAPretrainedNpyFile) {
  const at::Tensor pretrained = at::randn({kRows, kDim});
  save_npy(pretrained, path("users.npy"));
  TPUEmbedding layer = make_layer(GetParam());
  layer->update_embedding_table("users", load_npy(path("users.npy")));
  expect_same(layer->embedding_tables()["users"], pretrained.to(GetParam()));
  expect_same(
      layer->forward({{"user", int64s({7, 3})}})["user"].detach(),
      pretrained.to(GetParam()).to(at::kFloat).index_select(0, int64s({7, 3})));
}

TEST_P(TablesInFilesTest, LoadsAnNpyFileInFortranOrder) {
  const at::Tensor values = load_npy(python_file("fortran.npy"))[0];
  ASSERT_FALSE(values.is_contiguous());
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {
          {"a",
           feature_of(
               {.name = "a",
                .vocabulary_size = 3,
                .dim = 4,
                .dtype = GetParam()})}}});
  layer->update_embedding_table("a", values);
  expect_same(layer->embedding_tables()["a"], values.to(GetParam()));
}

TEST_P(TablesInFilesTest, SavesAndLoadsAllTablesAsSafetensors) {
  TPUEmbedding layer = make_layer(GetParam());
  NamedTensors contents;
  for (const auto& table : layer->embedding_tables()) {
    contents.tensors.emplace_back(table.name, table.parameters);
  }
  save_safetensors(contents, path("tables.safetensors"));

  const NamedTensors loaded = load_safetensors(path("tables.safetensors"));
  EmbeddingEngine engine({.features = features_of(GetParam()), .seed = 1});
  EXPECT_FALSE(at::equal(
      engine.embedding_tables()["users"], layer->embedding_tables()["users"]));
  for (const auto& [name, values] : loaded.tensors) {
    engine.update_embedding_table(name, values);
  }
  expect_same(
      engine.embedding_tables()["users"], layer->embedding_tables()["users"]);
}

TEST_P(TablesInFilesTest, SavesATableAsNpyInADtypeOfNumpy) {
  TPUEmbedding layer = make_layer(GetParam());
  const at::Tensor table = layer->embedding_tables()["users"];
  const at::Tensor values =
      GetParam() == at::kBFloat16 ? table.to(at::kFloat) : table;
  save_npy(values, path("users.npy"));
  expect_same(load_npy(path("users.npy")), values);
}

// A key table is two tensors: the keys in ascending order, and their rows.
TEST_P(TablesInFilesTest, SavesAndLoadsKeysAndRows) {
  const auto make = [](int64_t capacity) {
    return TPUEmbedding(TPUEmbeddingOptions{
        .features =
            {{"user",
              feature_of(
                  {.name = "users",
                   .dim = kDim,
                   .dtype = GetParam(),
                   .keys = DynamicKeys{.capacity = capacity}})}},
        .optimizer = optim::SGD{.learning_rate = 0.1}});
  };
  const auto entry_of = [](const TPUEmbedding& layer) {
    const EmbeddingTables tables = layer->embedding_tables();
    return *tables.begin();
  };
  TPUEmbedding layer = make(100);
  const at::Tensor ids = int64s({7, -3, int64_t{1} << 62, 0, -9, 7});
  layer->forward({{"user", ids}})["user"].sum().backward();
  const auto saved = entry_of(layer);
  expect_same(saved.keys, int64s({-9, -3, 0, 7, int64_t{1} << 62}));
  const at::Tensor values = GetParam() == at::kBFloat16
      ? saved.parameters.to(at::kFloat)
      : saved.parameters;
  save_npy(saved.keys, path("keys.npy"));
  save_npy(values, path("rows.npy"));
  save_safetensors(
      {.tensors = {{"users.keys", saved.keys}, {"users", saved.parameters}}},
      path("users.safetensors"));

  TPUEmbedding from_npy = make(1000);
  from_npy->update_embedding_table(
      "users", load_npy(path("keys.npy")), load_npy(path("rows.npy")));
  const NamedTensors tensors = load_safetensors(path("users.safetensors"));
  TPUEmbedding from_safetensors = make(5);
  from_safetensors->update_embedding_table(
      "users", tensors["users.keys"], tensors["users"]);
  for (const TPUEmbedding& loaded : {from_npy, from_safetensors}) {
    expect_same(entry_of(loaded).keys, saved.keys);
    expect_same(entry_of(loaded).parameters, saved.parameters);
  }
  // The keys of a file may have any order, but each occurs once.
  from_npy->update_embedding_table(
      "users", saved.keys.flip(0), saved.parameters.flip(0));
  expect_same(entry_of(from_npy).keys, saved.keys);
  expect_same(entry_of(from_npy).parameters, saved.parameters);
  EXPECT_VALUE_ERROR(
      from_npy->update_embedding_table(
          "users", at::zeros({2}, at::kLong), saved.parameters.slice(0, 0, 2)),
      "the keys of table 'users' must be distinct, but 0 occurs twice");
  TPUEmbedding small = make(4);
  EXPECT_VALUE_ERROR(
      small->update_embedding_table("users", saved.keys, saved.parameters),
      "table 'users' has a capacity of 4 rows");
  expect_same(entry_of(from_npy).keys, saved.keys);
}

TEST_P(TablesInFilesTest, LoadsABigFileWithoutCopyingIt) {
  constexpr int64_t kManyRows = 500'000;
  constexpr int64_t kFileBytes = kManyRows * kDim * 4;
  save_npy(at::ones({kManyRows, kDim}), path("users.npy"));
  EmbeddingEngine engine(
      {.features = {
           {"user",
            feature_of(
                {.name = "users",
                 .vocabulary_size = kManyRows,
                 .dim = kDim,
                 .dtype = GetParam()})}}});
  const int64_t before = anonymous_memory();
  const at::Tensor values = load_npy(path("users.npy"));
  engine.update_embedding_table("users", values);
  EXPECT_LT(anonymous_memory() - before, kFileBytes / 4);
  EXPECT_EQ(
      engine.read_rows("users", kManyRows - 1, kManyRows).sum().item<int64_t>(),
      kDim);
}

INSTANTIATE_TEST_SUITE_P(
    Dtypes,
    TablesInFilesTest,
    testing::Values(at::kFloat, at::kBFloat16, at::kHalf),
    [](const auto& info) { return c10::toString(info.param); });

}  // namespace tessera::tables_in_files_test
