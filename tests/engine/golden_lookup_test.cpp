// SPDX-License-Identifier: Apache-2.0
// Compares lookups with results of TensorFlow: every case of every lookup*.json in the
// folder that TESSERA_GOLDEN_DIR names, or in tests/golden.
#include "tests/golden_layer.h"
#include "tests/test_util.h"

namespace tessera::test::golden_lookup_test {

constexpr double kTolerance = 1e-5;

enum class Order { kAsGiven, kShuffled };

at::Tensor ids_tensor(const Json& value) {
  const std::string dtype = value.at("dtype");
  TORCH_CHECK_VALUE(
      dtype == "int32" || dtype == "int64", "unknown dtype ", dtype);
  const at::Tensor ids =
      at::tensor(value.at("values").get<std::vector<int64_t>>(), at::kLong);
  return dtype == "int32" ? ids.to(at::kInt) : ids;
}

at::Tensor int64_tensor(const Json& values) {
  return at::tensor(values.get<std::vector<int64_t>>(), at::kLong);
}

at::Tensor float_tensor(const Json& values) {
  return at::tensor(values.get<std::vector<float>>(), at::kFloat);
}

struct Input {
  Feature feature;
  std::optional<Feature> weights;
};

Input sparse_input(const Json& feature, Order order) {
  const Json& value = feature.at("value");
  std::vector<int64_t> flat_indices;
  for (const Json& index : value.at("indices")) {
    for (const Json& coordinate : index) {
      flat_indices.push_back(coordinate.get<int64_t>());
    }
  }
  SparseFeature sparse{
      .indices =
          at::tensor(flat_indices, at::kLong)
              .view(
                  {static_cast<int64_t>(value.at("indices").size()),
                   static_cast<int64_t>(value.at("dense_shape").size())}),
      .values = ids_tensor(value),
      .dense_shape = int64_tensor(value.at("dense_shape"))};
  at::Tensor weights;
  if (!feature.at("weights").is_null()) {
    weights = float_tensor(feature.at("weights"));
  }
  if (order == Order::kShuffled) {
    std::vector<int64_t> order(sparse.values.numel());
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(11));
    const at::Tensor shuffled = at::tensor(order, at::kLong);
    sparse.indices = sparse.indices.index_select(0, shuffled);
    sparse.values = sparse.values.index_select(0, shuffled);
    weights = weights.defined() ? weights.index_select(0, shuffled) : weights;
  }
  if (!weights.defined()) {
    return {.feature = sparse, .weights = {}};
  }
  return {
      .feature = sparse,
      .weights = SparseFeature{sparse.indices, weights, sparse.dense_shape}};
}

Feature dense_or_ragged(const Json& value) {
  const std::string kind = value.at("kind");
  if (kind == "dense") {
    return ids_tensor(value).view(
        value.at("shape").get<std::vector<int64_t>>());
  }
  TORCH_CHECK_VALUE(kind == "ragged", "unknown kind ", kind);
  return RaggedFeature{ids_tensor(value), int64_tensor(value.at("row_splits"))};
}

Input input_of(const Json& feature, Order order) {
  const Json& value = feature.at("value");
  if (value.at("kind") == "sparse") {
    return sparse_input(feature, order);
  }
  if (feature.at("weights").is_null()) {
    return {.feature = dense_or_ragged(value), .weights = {}};
  }
  return {
      .feature = dense_or_ragged(value),
      .weights = float_tensor(feature.at("weights"))};
}

void check_case(const Json& test_case, TPUEmbedding& layer, Order order) {
  Features::Map features;
  Weights::Map weights;
  for (const Json& feature : test_case.at("features")) {
    Input input = input_of(feature, order);
    features.emplace_back(feature.at("name"), std::move(input.feature));
    weights.emplace_back(feature.at("name"), std::move(input.weights));
  }
  const Nest<at::Tensor> activations =
      layer->forward(Features::map(features), Weights::map(weights));
  ASSERT_EQ(activations.size(), test_case.at("features").size());
  for (const Json& feature : test_case.at("features")) {
    const std::string name = feature.at("name");
    SCOPED_TRACE(name);
    const auto shape =
        feature.at("expected").at("shape").get<std::vector<int64_t>>();
    const at::Tensor& actual = activations[name];
    EXPECT_EQ(actual.scalar_type(), at::kFloat);
    EXPECT_EQ(actual.requires_grad(), at::GradMode::is_enabled());
    ASSERT_EQ(actual.sizes(), c10::IntArrayRef(shape));
    expect_close(
        actual,
        float_tensor(feature.at("expected").at("values")).view(shape),
        kTolerance,
        kTolerance);
  }
}

class GoldenLookupTest : public testing::TestWithParam<std::string> {};

TEST_P(GoldenLookupTest, GivesTensorFlowsActivations) {
  const Json cases = read_golden(GetParam());
  ASSERT_FALSE(cases.empty()) << GetParam() << " has no cases";
  for (const Json& test_case : cases) {
    SCOPED_TRACE(test_case.at("name").get<std::string>());
    for (const Strategy& strategy :
         {Strategy::fused(), Strategy::host(), Strategy::padded()}) {
      SCOPED_TRACE(strategy.name());
      TPUEmbedding layer = golden_layer(test_case, strategy);
      for (const Order order : {Order::kAsGiven, Order::kShuffled}) {
        check_case(test_case, layer, order);
        const at::NoGradGuard no_grad;
        check_case(test_case, layer, order);
      }
    }
  }
  RecordProperty("cases", static_cast<int>(cases.size()));
  std::cout << GetParam() << ": " << cases.size() << " cases\n";
}

INSTANTIATE_TEST_SUITE_P(
    Files,
    GoldenLookupTest,
    testing::ValuesIn(golden_files("lookup")),
    golden_test_name);

TEST(GoldenFolderTest, HasLookupCases) {
  EXPECT_FALSE(golden_files("lookup").empty())
      << "expected a file lookup*.json in " << golden_folder()
      << ". Set TESSERA_GOLDEN_DIR to a folder that has one.";
}

}  // namespace tessera::test::golden_lookup_test
