// SPDX-License-Identifier: Apache-2.0
// Export of a single embedding layer to TorchScript.
#include <tessera/export/export_torchscript.h>
#include <tessera/optim/optimizers/adam.h>

#include "packages/export/tests/export_test_util.h"
#include "tests/golden_layer.h"
#include "tests/grouping_locale.h"

#include <torch/csrc/jit/ir/ir.h>

#include <clocale>

namespace tessera::test::export_torchscript_test {

void expect_refused(
    torch::jit::Module& loaded,
    const Feature& feature,
    const std::string& text) {
  expect_error(loaded, {{"f", parts_of(feature)}}, {}, text);
}

void expect_agrees(
    TPUEmbedding& layer,
    torch::jit::Module& loaded,
    const Input& input) {
  TensorMap weights;
  if (input.weights.defined()) {
    weights["f"] = input.weights;
  }
  const at::Tensor actual =
      run_embedding(loaded, {{"f", parts_of(input.feature)}}, weights)["f"];
  EXPECT_EQ(actual.scalar_type(), at::kFloat);
  expect_close(actual, evaluate(layer, input));
}

TEST(ExportTest, SequencesTakeNoDenseIdsAndNoWeights) {
  TPUEmbedding layer = layer_of({.config = {.max_sequence_length = 2}});
  torch::jit::Module loaded = export_and_load(layer);
  expect_refused(loaded, int64s({1}), "sparse or ragged");
  // Ids past the end of a sequence are not checked.
  expect_agrees(layer, loaded, {ragged({{1, 2, 99}})});
  expect_error(
      loaded,
      {{"f", parts_of(ragged({{1}}))}},
      {{"f", floats({1})}},
      "sequence feature. Leave the weights out");
}

TEST(ExportTest, SequencesOfRankThreeCombineTheIdsOfEachPosition) {
  TPUEmbedding layer = layer_of({.config = {.max_sequence_length = 2}});
  torch::jit::Module loaded = export_and_load(layer);
  const SparseFeature rank_3{
      .indices =
          int64s({1, 2, 0, 0, 0, 3, 0, 0, 1, 1, 1, 0, 1, 1, 2}).view({5, 3}),
      .values = int64s({7, 8, 9, -1, 2}),
      .dense_shape = int64s({2, 3, 4})};
  const SparseFeature rank_4{
      .indices = int64s({0, 1, 0, 2, 0, 1, 1, 0}).view({2, 4}),
      .values = int64s({7, 8}),
      .dense_shape = int64s({1, 2, 2, 3})};
  for (const Input& input : std::vector<Input>{
           {rank_3},
           {rank_3, floats({1, 2, 0.5F, 4, 3})},
           {rank_4},
           {rank_4, floats({1, 2})}}) {
    expect_agrees(layer, loaded, input);
  }
}

TEST(ExportTest, KeepsUnknownDimensions) {
  // max_sequence_length is ignored beside output_shape.
  TPUEmbedding layer = layer_of(
      {.config = {
           .max_sequence_length = 9,
           .output_shape = PartialShape{std::nullopt, 2}}});
  layer->build(7);  // the file takes other batch sizes, too
  torch::jit::Module loaded = export_and_load(layer);
  TPUEmbedding unbuilt =
      layer_of({.config = {.output_shape = PartialShape{std::nullopt, 2}}});
  write_table(unbuilt, "t", tables_of(layer)[0]);
  for (const Input& input : std::vector<Input>{
           {ragged({{1}, {2, 3}, {}, {4}, {5}, {6, 7}})},
           {ragged({{1, 2, 3, 4}, {5}}), floats({1, 2, 3, 4, 5})},
           {ragged({})},
           {int64s({1, 2, 3, 4, 5, 6}).view({3, 2})}}) {
    expect_agrees(unbuilt, loaded, input);
  }
  expect_refused(loaded, ragged({{1}, {2}, {3}}), "but this batch has 3 rows");
  TPUEmbedding inner =
      layer_of({.config = {.output_shape = PartialShape{2, std::nullopt}}});
  torch::jit::Module loaded_inner = export_and_load(inner);
  expect_agrees(inner, loaded_inner, {ragged({{1}, {2, 3}, {}, {4}})});
  // After build() with full shapes, the rows are still bags.
  inner->build(Nest<PartialShape>({{"f", PartialShape{2, 2, std::nullopt}}}));
  torch::jit::Module built = export_and_load(inner);
  expect_agrees(inner, built, {ragged({{1}, {2, 3}, {}, {4}})});
  expect_refused(built, ragged({{1}, {2}}), "has 2 rows");
}

TEST(ExportTest, KeepsOutputShapes) {
  const auto make = [] {
    return layer_of({.config = {.output_shape = std::vector<int64_t>{2, 3}}});
  };
  TPUEmbedding layer = make();
  torch::jit::Module loaded = export_and_load(layer);
  for (const Input& input : std::vector<Input>{
           {ragged({{1}, {2, 3}, {}, {4}, {5}, {6, 7}})},
           {ragged({{1, 2, 3, 4}, {5}})},
           {ragged({{1, 2, 3, 4, 5, 6, 7}})},
           {int64s({1, 2, 3, 4, 5, 6}).view({2, 3})}}) {
    TPUEmbedding fresh = make();
    expect_agrees(fresh, loaded, input);
  }
  // The file keeps the number of rows that the first batch has fixed.
  layer->forward({{"f", ragged({{1}, {2, 3}, {}, {4}, {5}, {6, 7}})}});
  torch::jit::Module fixed = export_and_load(layer);
  expect_agrees(layer, fixed, {ragged({{1}, {2, 3}, {}, {4}, {5}, {6, 7}})});
  expect_refused(
      fixed,
      ragged({{1}, {2}}),
      "output_shape [2, 3] fixes the number of rows of a ragged batch to 6, but "
      "this batch has 2 rows");
  expect_refused(
      loaded,
      ragged({{1}, {2}, {3}, {4}}),
      "the product of output_shape must be a multiple of the number of rows, but "
      "got [2, 3] for 4");
  expect_refused(
      loaded,
      int64s({1, 2}),
      "the output shape is set to [2, 3], but this batch gives [2]");
}

TEST(ExportTest, DropsTheBatchSizeOfBuild) {
  TPUEmbedding layer = layer_of();
  torch::jit::Module any = export_and_load(layer);
  layer->build(4);
  torch::jit::Module loaded = export_and_load(layer);
  for (const Feature& feature : std::vector<Feature>{
           int64s({1, 2}), ragged({{1}, {2}, {3}, {4}, {5}})}) {
    expect_close(
        run_embedding(loaded, {{"f", parts_of(feature)}})["f"],
        run_embedding(any, {{"f", parts_of(feature)}})["f"]);
  }
  TPUEmbedding pairs = layer_of();
  pairs->build({{"f", PartialShape{std::nullopt, 2, 5}}});
  torch::jit::Module by_pairs = export_and_load(pairs);
  expect_agrees(pairs, by_pairs, {ragged({{1}, {2}, {3, 4}, {5}})});
  expect_refused(by_pairs, ragged({{1}}), "has 1 rows");
}

TEST(ExportTest, OutOfRangeIdsRaise) {
  TPUEmbedding layer = layer_of();
  torch::jit::Module loaded = export_and_load(layer);
  constexpr int64_t kFar = std::numeric_limits<int64_t>::max() / 4;
  for (const int64_t id : {int64_t{10}, kFar}) {
    for (const Feature& feature : std::vector<Feature>{
             int64s({1, id}), ragged({{1, id}}), sparse({{1, id}}, 2)}) {
      expect_refused(
          loaded,
          feature,
          "IndexError: [feature 'f'] ids must be in [0, 10), but got " +
              std::to_string(id));
    }
  }
  expect_refused(loaded, int64s({-1}), "but got -1");
  TPUEmbedding strict = layer_of(
      {.config = {
           .validate_weights_and_indices = false,
           .out_of_range = OutOfRange::kZero}});
  torch::jit::Module loaded_strict = export_and_load(strict);
  expect_refused(loaded_strict, ragged({{-1}}), "but got -1");
}

TEST(ExportTest, BrokenStructureRaises) {
  TPUEmbedding layer = layer_of();
  torch::jit::Module loaded = export_and_load(layer);
  expect_broken_parts_refused(loaded);
  const at::Tensor ids = int64s({1, 2});
  // More bags than fit into memory, and more than an int64 can count.
  for (const at::Tensor& shape :
       {int64s({int64_t{1} << 40, int64_t{1} << 20, 3}),
        int64s({int64_t{1} << 32, int64_t{1} << 32, 3})}) {
    for (const int64_t row : {int64_t{0}, int64_t{1} << 31}) {
      EXPECT_ANY_THROW(run_embedding(
          loaded,
          {{"f", {int64s({row, 1, 0}).view({1, 3}), int64s({1}), shape}}}));
    }
  }
  const auto bags = parts_of(ragged({{1, 2}}));
  expect_error(
      loaded,
      {{"f", bags}},
      {{"f", floats({1})}},
      "must be floats of shape [2], one per id");
  expect_error(loaded, {{"f", bags}}, {{"f", ids}}, "must be floats");
  expect_error(loaded, {{"f", {ids}}}, {{"f", floats({1, 2})}}, "dense");
  expect_error(
      loaded,
      {},
      {{"f", floats({1})}},
      "[weights 'f'] were passed without the feature of that name.");
  expect_error(
      loaded, {{"g", {ids}}}, {}, "'g' must be one of the exported features");
}

TEST(ExportTest, RowsOfAnyDtypeAreExportedAsTheyAre) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    torch::jit::Module loaded = export_and_load(layer_of({.dtype = dtype}));
    EXPECT_EQ(loaded.attr("table_0").toTensor().scalar_type(), dtype);
  }
}

TEST(ExportTest, RowsOfInt8KeepTheirCodes) {
  TPUEmbedding layer = layer_of({.dtype = at::kChar});
  torch::jit::Module loaded = export_and_load(layer);
  EXPECT_EQ(loaded.attr("table_0").toTensor().scalar_type(), at::kChar);
  EXPECT_TENSOR_EQ(
      run_embedding(loaded, {{"f", {at::arange(10, at::kLong)}}})["f"],
      layer->embedding_tables()["t"]);
}

TEST(ExportTest, SixteenBitRowsAreRounded) {
  TPUEmbedding layer = layer_of();
  const at::Tensor ids = at::arange(10, at::kLong);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    torch::jit::Module loaded = export_and_load(layer, {.dtype = dtype});
    expect_close(
        run_embedding(loaded, {{"f", {ids}}})["f"],
        layer->embedding_tables()["t"].to(dtype).to(at::kFloat),
        0,
        0);
  }
}

TEST(ExportTest, Int8RowsAreWithinHalfAStep) {
  TPUEmbedding layer = layer_of({.combiner = Combiner::kSum});
  const at::Tensor table = layer->embedding_tables()["t"];
  table.copy_(at::randn({10, 3}));
  table[3].fill_(0.7);  // a row of one value
  table[4].copy_(floats({-5000, 1, 20000}));
  table[5].copy_(floats({1000, 1000.001, 1000.002}));
  torch::jit::Module loaded = export_and_load(layer, {.dtype = at::kChar});
  EXPECT_EQ(loaded.attr("table_0").toTensor().scalar_type(), at::kChar);
  const at::Tensor rows =
      run_embedding(loaded, {{"f", {at::arange(10, at::kLong)}}})["f"];
  const at::Tensor step = (table.amax(1) - table.amin(1)) / 255.0;
  const at::Tensor allowed =
      0.5001 * step.unsqueeze(1) + 2e-7 * table.abs().amax(1, true);
  EXPECT_TRUE(((rows - table).abs() <= allowed).all().item<bool>())
      << rows - table;
  EXPECT_TRUE(at::equal(rows[3], table[3]));
  // Weighted sums use the same rounded rows.
  const at::Tensor sums = run_embedding(
      loaded,
      {{"f", parts_of(ragged({{1, 4, 4}, {}, {9}}))}},
      {{"f", floats({2, 1, 0.5, 3})}})["f"];
  expect_close(
      sums,
      at::stack({2 * rows[1] + 1.5 * rows[4], at::zeros({3}), 3 * rows[9]}));
}

TEST(ExportTest, Int8RefusesRowsWithoutAFiniteRange) {
  for (const double bad :
       {std::numeric_limits<double>::infinity(),
        std::numeric_limits<double>::quiet_NaN()}) {
    TPUEmbedding layer = layer_of();
    layer->embedding_tables()["t"][2][1] = bad;
    EXPECT_VALUE_ERROR(
        export_torchscript(layer, new_file(), {.dtype = at::kChar}),
        "table 't' can't be stored as int8: its rows and their range must be finite");
    expect_agrees(
        layer,
        *std::make_unique<torch::jit::Module>(export_and_load(layer)),
        {int64s({2})});
  }
}

// A layer of two tables and four features. Their names, such as `class`, can't be
// attributes in TorchScript.
TPUEmbedding nested_layer(const Strategy& strategy = Strategy::fused()) {
  const auto items = numbered_table("class", 100, 4);
  const auto users = numbered_table("a\"b\\\n\xc3\xa9", 50, 2);
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"class", FeatureConfig{.table = items}},
           {"quote\" \\ \n \t' {} %d \xc3\xa9", FeatureConfig{.table = users}},
           {"history",
            Nest<FeatureConfig>::list(
                {FeatureConfig{.table = items},
                 FeatureConfig{.table = items, .name = "named"}})}},
      .optimizer = optim::Adam{},
      .strategy = strategy});
}

TEST(ExportTest, FeaturesMayHaveAnyName) {
  for (const Strategy& strategy :
       {Strategy::fused(), Strategy::host(), Strategy::padded()}) {
    torch::jit::Module loaded = export_and_load(nested_layer(strategy));
    const auto activations = run_embedding(
        loaded,
        {{"class", {int64s({3})}},
         {"quote\" \\ \n \t' {} %d \xc3\xa9", {int64s({4})}},
         {"history/0", parts_of(ragged({{1, 2}}))},
         {"history/1", {int64s({7})}}});
    ASSERT_EQ(activations.size(), 4);
    EXPECT_EQ(activations.at("class")[0][3].item<float>(), 3);
    EXPECT_EQ(
        activations.at("quote\" \\ \n \t' {} %d \xc3\xa9")[0][1].item<float>(),
        4);
    EXPECT_EQ(activations.at("history/0")[0][0].item<float>(), 3);
    EXPECT_EQ(activations.at("history/1")[0][0].item<float>(), 7);
  }
}

TEST(ExportTest, ACallerMayPassSomeOfTheFeatures) {
  torch::jit::Module loaded = export_and_load(nested_layer());
  const auto some = run_embedding(loaded, {{"history/1", {int64s({7, 8})}}});
  ASSERT_EQ(some.size(), 1);
  EXPECT_EQ(some.at("history/1").sizes(), c10::IntArrayRef({2, 4}));
  EXPECT_TRUE(run_embedding(loaded, {}).empty());
  // Weights may be left out.
  c10::IValue result =
      loaded.forward({to_dict(TensorLists{{"class", {int64s({3})}}})});
  EXPECT_EQ(result.toGenericDict().size(), 1);
}

TEST(ExportTest, SharedTablesAreWrittenOnceAndSlotsAreNot) {
  torch::jit::Module loaded = export_and_load(nested_layer());
  std::set<std::string> names;
  for (const auto& entry : loaded.named_attributes()) {
    names.insert(entry.name);
  }
  EXPECT_EQ(names, (std::set<std::string>{"table_0", "table_1", "training"}));
  for (const auto& buffer : loaded.named_buffers()) {
    EXPECT_FALSE(buffer.value.requires_grad()) << buffer.name;
  }
}

TEST(ExportTest, ChosenFeaturesAreExportedWithTheirTablesOnly) {
  torch::jit::Module loaded =
      export_and_load(nested_layer(), {.features = {"history/0", "class"}});
  EXPECT_TRUE(loaded.hasattr("table_0"));
  EXPECT_FALSE(loaded.hasattr("table_1"));
  EXPECT_EQ(
      run_embedding(loaded, {{"history/0", {int64s({7})}}}).count("history/0"),
      1);
  expect_error(
      loaded,
      {{"history/1", {int64s({7})}}},
      {},
      "'history/1' must be one of the exported features. Known: class, history/0.");
}

// Collects the namespaces of all nodes, also of nodes in inner blocks.
void collect_operators(
    torch::jit::Block* block,
    std::set<std::string>& namespaces) {
  for (torch::jit::Node* node : block->nodes()) {
    namespaces.insert(node->kind().ns().toUnqualString());
    for (torch::jit::Block* inner : node->blocks()) {
      collect_operators(inner, namespaces);
    }
  }
}

TEST(ExportTest, TheFileHasOnlyStockOperators) {
  torch::jit::Module loaded =
      export_and_load(nested_layer(), {.dtype = at::kChar});
  std::set<std::string> namespaces;
  for (const auto& method : loaded.get_methods()) {
    collect_operators(method.graph()->block(), namespaces);
  }
  EXPECT_EQ(namespaces, (std::set<std::string>{"aten", "prim"}));
}

TEST(ExportTest, ExportLeavesTheLayerUnchanged) {
  TPUEmbedding layer = nested_layer();
  layer->train();
  const std::string before = saved(layer);
  export_and_load(layer, {.dtype = at::kHalf});
  EXPECT_EQ(saved(layer), before);
  EXPECT_TRUE(layer->is_training());
  EXPECT_TRUE(layer->virtual_variable().requires_grad());
  EXPECT_EQ(layer->iterations(), 0);
  TPUEmbedding host = nested_layer(Strategy::host());
  export_and_load(host);
  EXPECT_TRUE(host->parameters()[0].requires_grad());
}

TEST(ExportTest, LaterTrainingDoesNotChangeTheFile) {
  TPUEmbedding layer = layer_of();
  torch::jit::Module loaded = export_and_load(layer);
  const at::Tensor before = layer->embedding_tables()["t"].clone();
  layer->forward({{"f", int64s({1})}})["f"].sum().backward();
  EXPECT_FALSE(at::equal(layer->embedding_tables()["t"], before));
  EXPECT_TRUE(at::equal(loaded.attr("table_0").toTensor(), before));
}

TEST(ExportTest, ReplacesRegularFilesOnly) {
  namespace fs = std::filesystem;
  const TPUEmbedding layer = nested_layer();
  const std::string path = new_file();
  const std::string problem = "expected the path of a file, but this is a ";
  EXPECT_VALUE_ERROR(export_torchscript(layer, testing::TempDir()), problem);
  fs::create_symlink("/dev/null", path);
  EXPECT_VALUE_ERROR(export_torchscript(layer, path), problem);
  EXPECT_EQ(fs::read_symlink(path), "/dev/null");
  fs::remove(path);
  fs::create_symlink(path + ".linked", path);
  EXPECT_VALUE_ERROR(export_torchscript(layer, path), problem);
  EXPECT_TRUE(fs::is_symlink(path));
  // The target of a link is replaced if it is a regular file.
  std::ofstream(path + ".linked") << "old";
  export_torchscript(layer, path);
  EXPECT_TRUE(fs::is_symlink(path));
  EXPECT_GT(fs::file_size(path + ".linked"), 3U);
  fs::remove(path);
  fs::remove(path + ".linked");
  expect_nothing_at(path);
}

TEST(ExportTest, AGlobalLocaleDoesNotGroupTheDigitsOfTheSource) {
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {
          {"user",
           FeatureConfig{
               .table = make_table(
                   {.name = "users", .vocabulary_size = 1234, .dim = 2}),
               .output_shape = std::vector<int64_t>{1500}}}}});
  const at::Tensor ids = at::arange(1500, at::kLong).remainder(1234);
  const std::string path = new_file();
  {
    const GroupingLocale locale;
    const std::string before = std::setlocale(LC_ALL, nullptr);
    export_torchscript(layer, path);
    EXPECT_VALUE_ERROR(
        export_torchscript(layer, path, {.features = {"movie"}}),
        "Known: user");
    const std::locale now;
    EXPECT_EQ(std::use_facet<std::numpunct<char>>(now).grouping(), "\3");
    EXPECT_EQ(std::setlocale(LC_ALL, nullptr), before);
  }
  torch::jit::Module loaded = torch::jit::load(path);
  const at::NoGradGuard no_grad;
  EXPECT_TRUE(at::equal(
      run_embedding(loaded, {{"user", {ids}}}).at("user"),
      layer->forward({{"user", ids}})["user"]));
}

TEST(ExportTest, ErrorsNameBadArguments) {
  const TPUEmbedding layer = nested_layer();
  const std::string path = new_file();
  EXPECT_VALUE_ERROR(
      export_torchscript(layer, path, {.features = {"class", "movie"}}),
      "[export_torchscript] options.features: expected paths of the layer's "
      "features, but got 'movie'. Known: class, quote");
  EXPECT_VALUE_ERROR(
      export_torchscript(layer, path, {.dtype = at::kDouble}),
      "options.dtype must be one of kFloat, kBFloat16, kHalf, kChar, but got "
      "Double");
  EXPECT_VALUE_ERROR(
      export_torchscript(TPUEmbedding(nullptr), path),
      "[export_torchscript] expected a layer, but got an empty holder. Make the "
      "layer before the export.");
  EXPECT_VALUE_ERROR(
      export_torchscript(layer, ""),
      "[export_torchscript] expected the path of a file, but got ''");
  EXPECT_TORCH_ERROR(
      export_torchscript(layer, testing::TempDir() + "no/such/folder.pt"),
      "folder.pt: the file can't be created: No such file");
  expect_nothing_at(path);
  const auto table = make_table({.vocabulary_size = 2, .dim = 1});
  const TPUEmbedding twice(TPUEmbeddingOptions{
      .features = {
          {"a/b", FeatureConfig{.table = table}},
          {"a", Nest<FeatureConfig>{{"b", FeatureConfig{.table = table}}}}}});
  EXPECT_VALUE_ERROR(
      export_torchscript(twice, path), "two have the path 'a/b'");
}

class GoldenExportTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenExportTest, GivesTensorFlowsActivations) {
  for (const Json& test_case : read_golden(GetParam())) {
    SCOPED_TRACE(test_case.at("name").get<std::string>());
    torch::jit::Module loaded = export_and_load(golden_layer(test_case));
    TensorLists features;
    TensorMap weights;
    for (const auto& feature : test_case.at("features")) {
      const std::string name = feature.at("name");
      features[name] = parts_of(golden_feature(feature.at("value")));
      if (!feature.at("weights").is_null()) {
        weights[name] = at::tensor(
            feature.at("weights").get<std::vector<float>>(), at::kFloat);
      }
    }
    const TensorMap activations = run_embedding(loaded, features, weights);
    for (const auto& feature : test_case.at("features")) {
      const std::string name = feature.at("name");
      SCOPED_TRACE(name);
      expect_close(
          activations.at(name),
          golden_tensor(feature.at("expected")),
          1e-5,
          1e-5);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Files,
    GoldenExportTest,
    testing::ValuesIn(golden_files("lookup")),
    golden_test_name);

}  // namespace tessera::test::export_torchscript_test
