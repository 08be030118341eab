// SPDX-License-Identifier: Apache-2.0
// Export of embeddings and whole models to the format of torch.export.
#include <tessera/common/json_text.h>
#include <tessera/export/export_pt2.h>
#include <tessera/layers/concatenate.h>
#include <tessera/layers/cross.h>
#include <tessera/layers/dot_interaction.h>
#include <tessera/layers/mlp.h>
#include <tessera/layers/multi_layer_dcn.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <tessera/optim/optimizers/sgd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "packages/export/tests/export_test_util.h"
#include "src/common/checksum.h"
#include "tests/anonymous_memory.h"
#include "tests/layers/layer_test_util.h"
#include "tests/small_files.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tensor.h>
#include <caffe2/serialize/inline_container.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace tessera {
namespace export_pt2_test {

using test::int64s;
using test::ragged;
using test::sparse;

// A layer with one feature `f` over a table of 10 rows.
struct Kind {
  FeatureConfig config = {};
  Combiner combiner = Combiner::kMean;
  at::ScalarType dtype = at::kFloat;
  std::optional<QuantizationConfig> quantization = {};
};

TPUEmbedding layer_of(const Kind& kind) {
  FeatureConfig config = kind.config;
  config.table = make_table(
      {.name = "t",
       .vocabulary_size = 10,
       .dim = 3,
       .combiner = kind.combiner,
       .dtype = kind.dtype,
       .quantization = kind.quantization});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features = {{"f", config}}, .optimizer = optim::Adagrad{}});
}

struct Input {
  Feature feature;
  at::Tensor weights = {};
};

ExportExample example_of(const Input& input) {
  ExportExample example{.features = {{"f", input.feature}}};
  if (input.weights.defined()) {
    example.weights = {{"f", std::optional<Feature>(input.weights)}};
  }
  return example;
}

std::vector<at::Tensor> arguments_of(const Input& input) {
  std::vector<at::Tensor> arguments = test::parts_of(input.feature);
  if (input.weights.defined()) {
    arguments.push_back(input.weights);
  }
  return arguments;
}

// Exports the layer for the kind of the first input, and compares all inputs.
void expect_agrees(
    TPUEmbedding layer,
    const std::vector<Input>& inputs,
    const ExportOptions& options = {},
    double tolerance = 1e-6) {
  const std::string path = test::new_file();
  export_pt2(layer, path, example_of(inputs[0]), options);
  const Pt2Program program(path);
  const at::NoGradGuard no_grad;
  for (const Input& input : inputs) {
    const ExportExample example = example_of(input);
    const at::Tensor expected =
        layer->forward(example.features, example.weights)["f"];
    const at::Tensor actual = program.run(arguments_of(input))[0];
    EXPECT_EQ(actual.scalar_type(), at::kFloat);
    test::expect_close(actual, expected, tolerance, tolerance);
  }
}

SparseFeature sparse_of(
    const std::vector<int64_t>& indices,
    const std::vector<int64_t>& values,
    const std::vector<int64_t>& shape) {
  return {
      .indices = at::tensor(indices, at::kLong)
                     .view(
                         {static_cast<int64_t>(values.size()),
                          static_cast<int64_t>(shape.size())}),
      .values = at::tensor(values, at::kLong),
      .dense_shape = at::tensor(shape, at::kLong)};
}

class Pt2CombinerTest : public testing::TestWithParam<Combiner> {};

TEST_P(Pt2CombinerTest, AgreesOnEveryKindOfFeature) {
  const TPUEmbedding layer = layer_of({.combiner = GetParam()});
  const test::Rows rows{{3, 1, 4}, {}, {1, 5, 9, 2}, {6}};
  const at::Tensor weights =
      test::floats({0.5F, 2.0F, 0.0F, 1.5F, -1.0F, 0.25F, 3.0F, 1.0F});
  expect_agrees(layer, {{int64s({1, 2, 3})}, {int64s({})}, {int64s({9})}});
  expect_agrees(
      layer,
      {{int64s({1, 2, 3}).view({3, 1})}, {at::empty({0, 1}, at::kLong)}});
  expect_agrees(
      layer,
      {{int64s({1, 2, 3, 4, 5, 6}).view({2, 3})},
       {at::empty({0, 3}, at::kLong)}});
  expect_agrees(layer, {{at::arange(8, at::kInt).view({2, 2, 2})}});
  expect_agrees(
      layer,
      {{ragged(rows)},
       {ragged({})},
       {ragged({{}, {}})},
       {ragged({{4}})},
       {ragged({{-1, 2}, {-3}})}});
  expect_agrees(
      layer,
      {{ragged(rows), weights},
       {ragged({{1, 2}, {3}}), test::floats({1.0F, 0.0F, -1.0F})},
       {ragged({}), test::floats({})}});
  expect_agrees(
      layer,
      {{sparse(rows, 5)},
       {sparse({}, 5)},
       {sparse({{-1, 2}, {-3}}, 7)},
       {sparse({{}}, 1)}});
  expect_agrees(layer, {{sparse(rows, 5), weights}});
  expect_agrees(
      layer,
      {{sparse_of({1, 2, 0, 0, 0, 3, 1, 2, 2}, {7, 8, 9}, {2, 3, 4})},
       {sparse_of({4, 2, 0}, {1}, {5, 3, 9})},
       {sparse_of({}, {}, {0, 3, 4})}});
}

INSTANTIATE_TEST_SUITE_P(
    Combiners,
    Pt2CombinerTest,
    testing::Values(Combiner::kSum, Combiner::kMean, Combiner::kSqrtn),
    [](const auto& info) { return to_string(info.param); });

TEST(ExportPt2Test, IdsDroppedByTheirWeightMayHaveAnyValue) {
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  const test::Rows rows{{3, 99, kMax}, {}, {1}};
  const at::Tensor weights = test::floats({2.0F, 0.0F, -1.0F, 1.0F});
  const TPUEmbedding layer = layer_of({.combiner = Combiner::kSqrtn});
  expect_agrees(
      layer,
      {{ragged({{1}, {2}}), test::floats({1.0F, 1.0F})},
       {ragged(rows), weights}});
  expect_agrees(
      layer,
      {{sparse({{1}, {2}}, 3), test::floats({1.0F, 1.0F})},
       {sparse(rows, 3), weights}});
}

TEST(ExportPt2Test, SequencesKeepTheirFirstIds) {
  const TPUEmbedding layer = layer_of({.config = {.max_sequence_length = 2}});
  expect_agrees(
      layer,
      {{ragged({{1, 2, 3}, {}, {4}})},
       {ragged({})},
       {ragged({{5, 6, 7, 8}})},
       {ragged({{}, {}})}});
  expect_agrees(layer, {{sparse({{1, 2, 3}, {}, {4}}, 4)}, {sparse({}, 4)}});
}

TEST(ExportPt2Test, OutputShapesOfRaggedFeatures) {
  const TPUEmbedding fixed = layer_of({.config = {.output_shape = {{2, 3}}}});
  expect_agrees(fixed, {{ragged({{1, 2, 3}, {4}})}, {ragged({{}, {5, 6}})}});
}

TEST(ExportPt2Test, ZerosForIdsOutOfRange) {
  const TPUEmbedding layer =
      layer_of({.config = {.out_of_range = OutOfRange::kZero}});
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  expect_agrees(layer, {{int64s({1, 2})}, {int64s({10, -1, kMax, kMin, 9})}});
  expect_agrees(
      layer,
      {{ragged({{1}, {2}})}, {ragged({{10, 3}, {kMax}, {-1, kMin, 4}})}});
}

TEST(ExportPt2Test, RefusesWhatTheLayerRefuses) {
  const TPUEmbedding layer = layer_of({});
  const std::string path = test::new_file();
  export_pt2(layer, path, example_of({ragged({{1}, {2, 3}})}));
  const Pt2Program program(path);
  EXPECT_VALUE_ERROR(
      program.run({int64s({10}), int64s({0, 1})}),
      "[Pt2Program] feature f: ids must be at least 0 and less than 10");
  EXPECT_VALUE_ERROR(
      program.run({int64s({1}), int64s({0, 2})}),
      "feature f: row_splits must end with the number of values");
  EXPECT_VALUE_ERROR(
      program.run({int64s({1}), int64s({1, 1})}),
      "feature f: row_splits must begin with 0");
  EXPECT_VALUE_ERROR(
      program.run({int64s({1}), int64s({0, 2, 1})}),
      "feature f: row_splits must not decrease");
  EXPECT_VALUE_ERROR(
      program.run({int64s({}), int64s({})}),
      "input 'f_row_splits' must have the shape");
  EXPECT_VALUE_ERROR(
      program.run({int64s({1})}), "expected 2 tensors, but got 1");
  EXPECT_VALUE_ERROR(
      program.run({int64s({1}).view({1, 1}), int64s({0, 1})}),
      "input 'f_values' must have the shape");
  EXPECT_VALUE_ERROR(
      program.run({at::Tensor(), int64s({0, 1})}),
      "input 'f_values' must be a dense tensor on the cpu");
  try {
    program.run({int64s({1}).to(at::kInt), int64s({0, 1})});
    ADD_FAILURE() << "expected an error";
  } catch (const c10::TypeError& error) {
    EXPECT_NE(
        std::string(error.what_without_backtrace())
            .find("input 'f_values' must have the dtype Long, but has Int"),
        std::string::npos);
  }
}

TEST(ExportPt2Test, TablesOfOtherDtypes) {
  const std::vector<Input> inputs{{ragged({{1, 2, 3}, {}, {4}})}};
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    expect_agrees(layer_of({.dtype = dtype}), inputs);
  }
  expect_agrees(layer_of({}), inputs, {.dtype = at::kChar}, 1e-2);
  expect_agrees(layer_of({}), inputs, {.dtype = at::kHalf}, 1e-3);
  expect_agrees(
      layer_of(
          {.quantization =
               QuantizationConfig{.num_buckets = 9, .lower = -1, .upper = 1}}),
      inputs);
}

// Four tables of 16 MiB. int8 rows take a quarter of that, and 8 bytes more per row.
TEST(ExportPt2Test, ConvertedTablesTakeTheMemoryOfOne) {
  constexpr int64_t kRows = 262'144;
  Nest<FeatureConfig>::Map features;
  Features::Map ids;
  for (const char* name : {"a", "b", "c", "d"}) {
    features.emplace_back(
        name,
        FeatureConfig{
            .table = make_table(
                {.name = name, .vocabulary_size = kRows, .dim = 16})});
    ids.emplace_back(name, int64s({1, 2, kRows - 1}));
  }
  const TPUEmbedding layer(TPUEmbeddingOptions{
      .features = Nest<FeatureConfig>::map(std::move(features)),
      .optimizer = optim::SGD{}});
  const ExportExample example{.features = Features::map(std::move(ids))};
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf, at::kChar}) {
    SCOPED_TRACE(c10::toString(dtype));
    const std::string path = test::new_file();
    export_pt2(layer, path, example);  // fills caches that later calls reuse
    test::PeakMemory peak;
    export_pt2(layer, path, example, {.dtype = dtype});
    const int64_t converted =
        dtype == at::kFloat ? 0 : kRows * 16 * c10::elementSize(dtype);
    // One part of a table is computed in float32, with a few temporary tensors.
    EXPECT_LT(peak.growth(), converted + (int64_t{12} << 20));
    const at::Tensor rows = Pt2Program(path).state_dict()[0].second;
    EXPECT_EQ(rows.scalar_type(), dtype);
    EXPECT_FALSE(at::equal(rows[0], rows[1]));
  }
}

// A model with many ragged features. It returns `head` of all their activations and ids.
struct ManyFeaturesImpl : torch::nn::Module {
  using Head = std::function<at::Tensor(
      const std::vector<at::Tensor>&,
      const std::vector<at::Tensor>&)>;

  ManyFeaturesImpl(int64_t count, Head head) : head_(std::move(head)) {
    const auto table =
        make_table({.name = "t", .vocabulary_size = 9, .dim = 2});
    Nest<FeatureConfig>::Map features;
    for (int64_t i = 0; i < count; ++i) {
      features.emplace_back(
          "f" + std::to_string(i), FeatureConfig{.table = table});
    }
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features = Nest<FeatureConfig>::map(std::move(features)),
            .optimizer = optim::SGD{}}));
  }
  at::Tensor forward(const Features& features) {
    std::vector<at::Tensor> ids;
    for (const Feature& feature : features.flatten()) {
      ids.push_back(std::get<RaggedFeature>(feature).values);
    }
    return head_(embedding->forward(features).flatten(), ids);
  }

  TPUEmbedding embedding{nullptr};
  Head head_;
};

void expect_many_features_agree(ManyFeaturesImpl::Head head) {
  constexpr int64_t kCount = 30;
  const auto model =
      std::make_shared<ManyFeaturesImpl>(kCount, std::move(head));
  const auto batch_of = [](int64_t shift) {
    Features::Map features;
    for (int64_t i = 0; i < kCount; ++i) {
      std::vector<std::vector<int64_t>> rows(2 + shift);
      for (int64_t j = 0; j < 1 + (i + shift) % 5; ++j) {
        rows[j % rows.size()].push_back(j);
      }
      features.emplace_back("f" + std::to_string(i), ragged(rows));
    }
    return Features::map(std::move(features));
  };
  const std::string path = test::new_file();
  export_pt2(model, path, {.features = batch_of(0)});
  std::vector<at::Tensor> arguments;
  for (const Feature& feature : batch_of(3).flatten()) {
    for (const at::Tensor& part : test::parts_of(feature)) {
      arguments.push_back(part);
    }
  }
  const at::NoGradGuard no_grad;
  test::expect_close(
      Pt2Program(path).run(arguments)[0], model->forward(batch_of(3)));
}

TEST(ExportPt2ModelTest, ManyNumbersOfIds) {
  expect_many_features_agree([](const auto& activations, const auto& ids) {
    return at::cat(activations, 1) + ids[3].view({-1, 1}).sum() +
        ids[7].repeat({activations[0].size(0)}).sum();
  });
}

// The size of the joined ids depends on all features.
TEST(ExportPt2ModelTest, ManyNumbersOfIdsInOneSize) {
  expect_many_features_agree([](const auto& activations, const auto& ids) {
    return activations[0] + at::cat(ids).cumsum(0).sum();
  });
}

TEST(ExportPt2Test, AConversionThatFailsLeavesNoFile) {
  TPUEmbedding layer = layer_of({});
  layer->embedding_tables()["t"].detach().fill_(1e30);
  const std::string path = test::new_file();
  EXPECT_VALUE_ERROR(
      export_pt2(layer, path, example_of({int64s({1})}), {.dtype = at::kHalf}),
      "[export_pt2] table 't' can't be stored as float16: some values are "
      "beyond the range");
  test::expect_nothing_at(path);
}

TEST(ExportPt2Test, NamesSayWhatTheArgumentsAre) {
  const auto table = make_table({.name = "t", .vocabulary_size = 9, .dim = 2});
  const TPUEmbedding layer(TPUEmbeddingOptions{
      .features =
          {{"user",
            Nest<FeatureConfig>{
                {"class", FeatureConfig{.table = table}},
                {"history", FeatureConfig{.table = table}}}},
           {"user_history", FeatureConfig{.table = table}},
           {"\xc3\xa9 1", FeatureConfig{.table = table}}},
      .optimizer = optim::Adagrad{}});
  const std::string path = test::new_file();
  const Features features{
      {"user", Features{{"history", ragged({{1}, {2, 3}})}}},
      {"\xc3\xa9 1", int64s({1, 2})}};
  const Pt2Signature signature = export_pt2(
      layer,
      path,
      {.features = features},
      {.features = {"user/history", "\xc3\xa9 1"}});
  std::vector<std::string> names;
  for (const Pt2Value& input : signature.inputs) {
    names.push_back(input.name);
  }
  EXPECT_EQ(
      names,
      (std::vector<std::string>{
          "user_history_values", "user_history_row_splits", "x_1"}));
  EXPECT_EQ(signature.inputs[0].path, "user/history");
  EXPECT_EQ(signature.inputs[0].part, "values");
  EXPECT_EQ(signature.inputs[2].path, "\xc3\xa9 1");
  ASSERT_EQ(signature.outputs.size(), 2);
  EXPECT_EQ(signature.outputs[0].path, "user/history");
  EXPECT_EQ(
      signature.outputs[0].shape,
      (std::vector<std::optional<int64_t>>{std::nullopt, 2}));
  const Pt2Program program(path);
  EXPECT_EQ(program.signature(), signature);
  EXPECT_NE(
      to_string(signature).find("user_history_values"), std::string::npos);
}

// A model whose forward() is a function of its modules.
struct FunctionImpl : torch::nn::Module {
  using Function = std::function<
      at::Tensor(FunctionImpl&, const Features&, const at::Tensor&)>;

  explicit FunctionImpl(Function function) : function_(std::move(function)) {
    const auto users =
        make_table({.name = "users", .vocabulary_size = 20, .dim = 4});
    const auto items = make_table(
        {.name = "items",
         .vocabulary_size = 30,
         .dim = 4,
         .combiner = Combiner::kSqrtn});
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"user", FeatureConfig{.table = users}},
                 {"item", FeatureConfig{.table = items}},
                 {"history", FeatureConfig{.table = items}}},
            .optimizer = optim::Adagrad{}}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            torch::nn::Linear(14, 8),
            torch::nn::BatchNorm1d(8),
            torch::nn::ReLU(),
            torch::nn::Dropout(0.5),
            torch::nn::Linear(8, 1)));
    cross = register_module("cross", Cross(CrossOptions{}));
    dots = register_module("dots", DotInteraction());
  }
  at::Tensor forward(const Features& features, const at::Tensor& input) {
    return function_(*this, features, input);
  }
  at::Tensor embed(const Features& features) {
    return Concatenate()->forward(embedding->forward(features));
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
  Cross cross{nullptr};
  DotInteraction dots{nullptr};
  Function function_;
};

std::shared_ptr<FunctionImpl> make_model(FunctionImpl::Function function) {
  return std::make_shared<FunctionImpl>(std::move(function));
}

std::shared_ptr<FunctionImpl> make_ranker() {
  return make_model(
      [](auto& self, const Features& features, const auto& input) {
        const at::Tensor embedded = at::cat({self.embed(features), input}, 1);
        return at::sigmoid(self.tower->forward(embedded)).squeeze(1);
      });
}

Features three_examples() {
  return {
      {"user", int64s({1, 2, 3})},
      {"item", sparse({{4, 5}, {6}, {29}}, 2)},
      {"history", ragged({{7, 8, 9}, {}, {10}})}};
}

Features five_examples() {
  return {
      {"user", int64s({9, 8, 7, 6, 5})},
      {"item", sparse({{1}, {2, 3}, {}, {4, 4}, {0}}, 2)},
      {"history", ragged({{}, {1, 2, 3, 4}, {5}, {6}, {7, 7}})}};
}

ExportExample model_example() {
  return {.features = three_examples(), .inputs = {at::rand({3, 2})}};
}

std::vector<at::Tensor> model_arguments(
    const Features& features,
    const at::Tensor& input) {
  std::vector<at::Tensor> arguments;
  for (const Feature& feature : features.flatten()) {
    for (const at::Tensor& part : test::parts_of(feature)) {
      arguments.push_back(part);
    }
  }
  arguments.push_back(input);
  return arguments;
}

void expect_model_agrees(const std::shared_ptr<FunctionImpl>& model) {
  const std::string path = test::new_file();
  export_pt2(model, path, model_example());
  const Pt2Program program(path);
  model->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor input = at::rand({5, 2});
  test::expect_close(
      program.run(model_arguments(five_examples(), input))[0],
      model->forward(five_examples(), input));
}

TEST(ExportPt2ModelTest, TablesAndTowerMatchTheModel) {
  expect_model_agrees(make_ranker());
}

TEST(ExportPt2ModelTest, OwnLayersMatchTheModel) {
  expect_model_agrees(make_model(
      [](auto& self, const Features& features, const auto& /*input*/) {
        return self.cross->forward(self.embed(features));
      }));
  expect_model_agrees(make_model(
      [](auto& self, const Features& features, const auto& /*input*/) {
        return self.dots->forward(self.embedding->forward(features));
      }));
}

TEST(ExportPt2ModelTest, SizesThatCppReadsBecomeExpressions) {
  expect_model_agrees(make_model(
      [](auto& self, const Features& features, const at::Tensor& input) {
        const at::Tensor embedded = self.embed(features);
        return embedded.view({input.size(0) * 3, 4}).sum(1, true) +
            at::arange(input.size(0) * 3).unsqueeze(1);
      }));
}

TEST(ExportPt2ModelTest, InPlaceOperatorsAndLists) {
  expect_model_agrees(make_model(
      [](auto& self, const Features& features, const at::Tensor& input) {
        at::Tensor embedded = self.embed(features) * 1.0;
        embedded.add_(1).mul_(2);
        const auto parts = embedded.chunk(3, 1);
        return at::cat({parts[2], parts[0] + parts[1], input}, 1);
      }));
}

TEST(ExportPt2ModelTest, StateDictHasTheModelsNames) {
  const auto model = make_ranker();
  const std::string path = test::new_file();
  export_pt2(model, path, model_example());
  std::vector<std::string> names;
  for (const auto& [name, tensor] : Pt2Program(path).state_dict()) {
    names.push_back(name);
    if (name == "tower.0.weight") {
      EXPECT_TRUE(tensor.equal(model->named_parameters()[name]));
    }
  }
  for (const char* name :
       {"embedding.table_0",
        "embedding.table_1",
        "tower.0.weight",
        "tower.1.running_mean",
        "tower.4.bias"}) {
    EXPECT_EQ(std::count(names.begin(), names.end(), name), 1) << name;
  }
}

TEST(ExportPt2ModelTest, RefusesModelsThatReadValues) {
  const std::string path = test::new_file();
  EXPECT_VALUE_ERROR(
      export_pt2(
          make_model(
              [](auto& self, const Features& features, const auto& input) {
                const double scale = input.sum().item().toDouble();
                return self.embed(features) * scale;
              }),
          path,
          model_example()),
      "[export_pt2] forward() must not read values of tensors, but it does so "
      "after aten::sum");
  test::expect_nothing_at(path);
}

TEST(ExportPt2ModelTest, RefusesConditionsOnSizes) {
  const std::string path = test::new_file();
  EXPECT_VALUE_ERROR(
      export_pt2(
          make_model(
              [](auto& self, const Features& features, const auto& input) {
                const at::Tensor embedded = self.embed(features);
                return input.size(0) > 12 ? embedded.relu() : embedded.tanh();
              }),
          path,
          model_example()),
      "forward() must call the same operators for batches of all sizes");
  EXPECT_VALUE_ERROR(
      export_pt2(
          make_model(
              [](auto& self, const Features& features, const auto& input) {
                return self.embed(features) * (1.0 / input.size(0));
              }),
          path,
          model_example()),
      "must not depend on the sizes of the batch, unless it is an integer");
  EXPECT_VALUE_ERROR(
      export_pt2(
          make_model(
              [](auto& self, const Features& features, const auto& input) {
                return self.embed(features).slice(0, 0, input.size(0) / 2);
              }),
          path,
          model_example()),
      "sizes must be sums of products of the batch size");
  test::expect_nothing_at(path);
}

TEST(ExportPt2ModelTest, RefusesAModelWithoutTables) {
  const std::string path = test::new_file();
  EXPECT_VALUE_ERROR(
      export_pt2(
          make_model([](auto& /*self*/, const Features&, const auto& input) {
            return input * 2;
          }),
          path,
          model_example()),
      "[export_pt2] expected a model whose forward() calls a TPUEmbedding");
  test::expect_nothing_at(path);
}

TEST(ExportPt2ModelTest, ExportLeavesTheModelUnchanged) {
  const auto model = make_ranker();
  model->train();
  const std::string tables = test::saved(model->embedding);
  export_pt2(model, test::new_file(), model_example(), {.dtype = at::kChar});
  EXPECT_TRUE(model->is_training());
  EXPECT_EQ(test::saved(model->embedding), tables);
  for (const at::Tensor& parameter : model->parameters()) {
    EXPECT_TRUE(parameter.requires_grad());
  }
}

TEST(ExportPt2Test, AFullDiskLeavesNoFile) {
  const std::string path = test::new_file();
  const TPUEmbedding layer = layer_of({});
  const test::SmallFiles full(1000);
  EXPECT_THROW(export_pt2(layer, path, example_of({int64s({1})})), c10::Error);
  test::expect_nothing_at(path);
}

TEST(ExportPt2Test, RefusesPathsAndExamples) {
  const TPUEmbedding layer = layer_of({});
  EXPECT_THROW(
      export_pt2(layer, "/no/such/folder/f.pt2", example_of({int64s({1})})),
      c10::Error);
  const std::string path = test::new_file();
  EXPECT_VALUE_ERROR(
      export_pt2(layer, path, {}),
      "[export_pt2] example.features must have the feature 'f'");
  EXPECT_VALUE_ERROR(
      export_pt2(layer, path, example_of({int64s({})})), "[export_pt2]");
  EXPECT_VALUE_ERROR(
      export_pt2(
          layer, path, example_of({int64s({1})}), {.features = {"user"}}),
      "expected paths of the layer's features, but got 'user'");
  EXPECT_VALUE_ERROR(
      export_pt2(TPUEmbedding(nullptr), path, {}), "got an empty holder");
  test::expect_nothing_at(path);
}

std::string read_bytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream stream(path, std::ios::binary);
  stream.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

TEST(Pt2ProgramTest, RefusesDamagedFiles) {
  const std::string path = test::new_file();
  export_pt2(layer_of({}), path, example_of({ragged({{1}, {2, 3}})}));
  const std::string bytes = read_bytes(path);
  const std::string damaged = path + ".damaged";
  for (const size_t size :
       {size_t{0}, size_t{1}, bytes.size() / 2, bytes.size() - 1}) {
    write_bytes(damaged, bytes.substr(0, size));
    EXPECT_VALUE_ERROR(Pt2Program{damaged}, "[Pt2Program]");
  }
  // A flipped bit in a record is noticed. One in the padding between records is not.
  const size_t weights = bytes.find("data/weights/weight_0");
  const size_t graph = bytes.find("\"graph_module\"");
  ASSERT_NE(weights, std::string::npos);
  ASSERT_NE(graph, std::string::npos);
  for (const size_t position : {graph + 20, graph + 2000}) {
    std::string flipped = bytes;
    flipped[position] = static_cast<char>(flipped[position] ^ 1);
    write_bytes(damaged, flipped);
    EXPECT_VALUE_ERROR(Pt2Program{damaged}, "does not agree with its checksum");
  }
  for (size_t position = 0; position < bytes.size(); position += 97) {
    std::string flipped = bytes;
    flipped[position] = static_cast<char>(flipped[position] ^ 0x40);
    write_bytes(damaged, flipped);
    try {
      const Pt2Program program(damaged);
      program.run({int64s({1, 2}), int64s({0, 1, 2})});
    } catch (const c10::Error&) {
    }
  }
  write_bytes(damaged, "PK");
  EXPECT_VALUE_ERROR(Pt2Program{damaged}, "[Pt2Program]");
  EXPECT_THROW(Pt2Program{path + ".missing"}, c10::Error);
}

// The records of a zip file, in order.
using Records = std::vector<std::pair<std::string, std::string>>;

Records read_records(const std::string& path) {
  caffe2::serialize::PyTorchStreamReader reader(path);
  Records records;
  for (const std::string& name : reader.getAllRecords()) {
    const auto [data, size] = reader.getRecord(name);
    records.emplace_back(
        name, std::string(static_cast<const char*>(data.get()), size));
  }
  return records;
}

std::string& find_record(Records& records, const std::string& name) {
  for (auto& [record, text] : records) {
    if (record == name) {
      return text;
    }
  }
  throw std::runtime_error("no record " + name);
}

// Writes records whose checksums agree, as an attacker could.
void write_records(Records records, const std::string& path) {
  std::string& values = find_record(records, "extra/tessera.json");
  Json json = Json::parse(values);
  for (auto& [name, checksum] : json["checksums"].items()) {
    for (const auto& [record, text] : records) {
      if (record == name) {
        checksum = checksum_of(text);
      }
    }
  }
  values = json.dump();
  find_record(records, "extra/tessera.checksum") = checksum_of(values);
  caffe2::serialize::PyTorchStreamWriter writer(path);
  for (const auto& [name, text] : records) {
    if (!name.starts_with(".data/") && name != "version") {
      writer.writeRecord(name, text.data(), text.size());
    }
  }
  writer.writeEndOfFile();
}

// Changes one character of the graph, of the weights' config or of the description. Each
// file is refused, or it runs.
TEST(Pt2ProgramTest, HostileFilesWithRightChecksumsDoNoHarm) {
  const std::string path = test::new_file();
  export_pt2(layer_of({}), path, example_of({ragged({{1}, {2, 3}})}));
  const Records records = read_records(path);
  write_records(records, path);
  const std::vector<at::Tensor> batch{int64s({1, 2}), int64s({0, 1, 2})};
  EXPECT_EQ(Pt2Program(path).run(batch)[0].size(0), 2);

  std::mt19937 random(1);
  const std::string letters = "0129-{}[],:\"aft.";
  int refused = 0;
  for (int i = 0; i < 600; ++i) {
    Records hostile = records;
    std::string& text = find_record(
        hostile,
        i % 3 == 0       ? "data/weights/model_weights_config.json"
            : i % 3 == 1 ? "models/model.json"
                         : "extra/tessera.json");
    std::string changed = text;
    changed[random() % text.size()] = letters[random() % letters.size()];
    if (i % 3 != 2 || Json::accept(changed)) {
      text = changed;
    }
    try {
      write_records(hostile, path);
      Pt2Program(path).run(batch);
    } catch (const Json::exception&) {  // of write_records()
    } catch (const c10::Error&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

// The checksums agree, as in a file of another release or machine.
TEST(Pt2ProgramTest, RefusesOtherVersionsAndNumbersOutOfRange) {
  const std::string path = test::new_file();
  export_pt2(layer_of({}), path, example_of({ragged({{1}, {2, 3}})}));
  const Records records = read_records(path);
  const auto expect_refused = [&](const std::string& record,
                                  const std::string& from,
                                  const std::string& to,
                                  const std::string& message) {
    SCOPED_TRACE(record + ": " + to.substr(0, 40));
    Records changed = records;
    std::string& text = find_record(changed, record);
    const size_t place = text.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    text.replace(place, from.size(), to);
    write_records(changed, path);
    EXPECT_VALUE_ERROR(Pt2Program{path}, message);
  };
  expect_refused(
      "byteorder",
      "little",
      "big",
      "the record 'byteorder' must be 'little', but is 'big'");
  expect_refused(
      "archive_version", "0", "1", "the record 'archive_version' must be '0'");
  expect_refused(
      "archive_format", "pt2", "pt3", "the record 'archive_format' must be");
  constexpr const char* kValues = "extra/tessera.json";
  expect_refused(
      kValues,
      R"("version":1)",
      R"("version":2)",
      "'extra/tessera.json' must have the version 1, but has 2");
  for (const char* shape : {"[null,-3]", "[null,4]", "[null]", "[2,3]", "{}"}) {
    expect_refused(
        kValues,
        R"("shape":[null,3])",
        std::string(R"("shape":)") + shape,
        "with the type and the shape that the graph has");
  }
  constexpr const char* kModel = "models/model.json";
  for (const char* number :
       {"9223372036854775808", "18446744073709551615", "1e30", "3.5", "true"}) {
    expect_refused(
        kModel,
        R"("as_int":3})",
        std::string(R"("as_int":)") + number + "}",
        "expected an integer of 64 bits, but got ");
  }
  expect_refused(
      kModel,
      R"("major":8)",
      R"("major":18446744073709551624)",  // 8 modulo 2^64
      "expected an integer of 64 bits");
  expect_refused(
      kModel,
      R"("sizes":[)",
      R"("sizes":[{"as_int":-1},)",
      "expected a size or a stride");
}

TEST(Pt2ProgramTest, ATensorOfManyDimensionsTakesLittleMemory) {
  const std::string path = test::new_file();
  export_pt2(layer_of({}), path, example_of({ragged({{1}, {2, 3}})}));
  Records records = read_records(path);
  std::string sizes = R"("sizes":[)";
  for (int i = 0; i < 100'000; ++i) {
    sizes += R"({"as_int":1},)";
  }
  std::string& text = find_record(records, "models/model.json");
  text.replace(text.find(R"("sizes":[)"), 9, sizes);
  write_records(records, path);
  test::PeakMemory peak;
  EXPECT_VALUE_ERROR(
      Pt2Program{path}, "expected tensors with at most 64 dimensions");
  EXPECT_LT(peak.growth(), int64_t{64} << 20);
}

TEST(Pt2ProgramTest, RefusesFilesOfOthers) {
  const std::string path = test::new_file();
  torch::save(at::ones({2}), path);
  EXPECT_VALUE_ERROR(
      Pt2Program{path}, "expected the record 'extra/tessera.json'");
}

}  // namespace export_pt2_test
}  // namespace tessera
