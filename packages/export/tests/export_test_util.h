// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/export/export_pt2.h>
#include <tessera/export/export_torchscript.h>
#include <tessera/layers/dense/concatenate.h>
#include <tessera/optim/optimizers/adagrad.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/serialization/import.h>

#include "tests/layers/layer_test_util.h"

namespace tessera::test {

using TensorLists = std::map<std::string, std::vector<at::Tensor>>;
using TensorMap = std::map<std::string, at::Tensor>;

/// Returns a path named after the running test. Removes the file that was there.
inline std::string new_file() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string name =
      std::string(info->test_suite_name()) + "_" + info->name() + ".pt";
  std::replace(name.begin(), name.end(), '/', '_');
  const auto path = std::filesystem::path(testing::TempDir()) / name;
  std::filesystem::remove(path);
  return path.string();
}

/// Checks that there is neither this file nor a temporary file of it.
inline void expect_nothing_at(const std::string& path) {
  const std::filesystem::path absent(path);
  for (const auto& entry :
       std::filesystem::directory_iterator(absent.parent_path())) {
    EXPECT_FALSE(entry.path().filename().string().starts_with(
        absent.filename().string()))
        << entry.path();
  }
}

inline c10::IValue to_dict(const TensorLists& lists) {
  c10::Dict<std::string, c10::List<at::Tensor>> dict;
  for (const auto& [name, tensors] : lists) {
    dict.insert(name, c10::List<at::Tensor>(tensors));
  }
  return dict;
}

inline c10::IValue to_dict(const TensorMap& tensors) {
  c10::Dict<std::string, at::Tensor> dict;
  for (const auto& [name, tensor] : tensors) {
    dict.insert(name, tensor);
  }
  return dict;
}

/// Returns the tensors of a feature, as the exported forward() takes them.
inline std::vector<at::Tensor> parts_of(const Feature& feature) {
  if (const auto* sparse = std::get_if<SparseFeature>(&feature)) {
    return {sparse->indices, sparse->values, sparse->dense_shape};
  }
  if (const auto* ragged = std::get_if<RaggedFeature>(&feature)) {
    return {ragged->values, ragged->row_splits};
  }
  return {std::get<at::Tensor>(feature)};
}

/// The tensors of all features, one after the other, as a Pt2Program takes them.
inline std::vector<at::Tensor> arguments_of(const Features& features) {
  std::vector<at::Tensor> arguments;
  for (const Feature& feature : features.flatten()) {
    for (const at::Tensor& part : parts_of(feature)) {
      arguments.push_back(part);
    }
  }
  return arguments;
}

inline TensorLists all_parts_of(const Features& features) {
  TensorLists lists;
  features.for_each([&](const std::string& path, const Feature& feature) {
    lists[path] = parts_of(feature);
  });
  return lists;
}

/// Returns the activations of an exported embedding.
inline TensorMap run_embedding(
    torch::jit::Module& loaded,
    const TensorLists& features,
    const TensorMap& weights = {}) {
  const at::NoGradGuard no_grad;
  TensorMap activations;
  const auto result =
      loaded.forward({to_dict(features), to_dict(weights)}).toGenericDict();
  for (const auto& entry : result) {
    activations[entry.key().toStringRef()] = entry.value().toTensor();
  }
  return activations;
}

inline void expect_error(
    torch::jit::Module& loaded,
    const TensorLists& features,
    const TensorMap& weights,
    const std::string& text) {
  SCOPED_TRACE(text);
  try {
    run_embedding(loaded, features, weights);
    ADD_FAILURE() << "expected an error";
  } catch (const std::exception& error) {
    EXPECT_CONTAINS(error.what(), text);
  }
}

/// Checks that no feature `f` of a wrong structure is taken.
inline void expect_broken_parts_refused(torch::jit::Module& loaded) {
  const at::Tensor ids = int64s({1, 2});
  const std::vector<std::pair<std::vector<at::Tensor>, std::string>> cases{
      {{at::zeros({2})}, "TypeError: [feature 'f'] ids must be int32 or int64"},
      {{at::zeros({}, at::kLong)}, "rank 1 or above"},
      {{at::zeros({2}), ids}, "TypeError: [feature 'f'] values must be int32"},
      {{ids, int64s({0, 1})}, "end with the number of values, 2"},
      {{ids, int64s({1, 2})}, "must begin with 0"},
      {{ids, int64s({0, 2, 1, 2})}, "must not decrease"},
      {{ids, at::empty({0}, at::kLong)}, "[batch + 1]"},
      {{ids.view({2, 1}), int64s({0, 2})}, "values must have rank 1"},
      {{int64s({0, 0, 0, 5}).view({2, 2}), ids, int64s({1, 2})}, "inside"},
      {{int64s({0, 0, -1, 0}).view({2, 2}), ids, int64s({1, 2})}, "inside"},
      {{int64s({0, 0}).view({1, 2}), ids, int64s({1, 2})},
       "[nnz, rank] = [2, 2]"},
      {{int64s({0, 0}).view({2, 1}), ids, int64s({1})}, "2 entries or more"},
      {{}, "but got 0 tensors"},
      {{ids, ids, ids, ids}, "but got 4 tensors"}};
  for (const auto& [parts, text] : cases) {
    expect_error(loaded, {{"f", parts}}, {}, text);
  }
}

/// A layer with one feature `f` over a table `t` of 3 columns.
struct Kind {
  FeatureConfig config = {};
  Combiner combiner = Combiner::kMean;
  at::ScalarType dtype = at::kFloat;
  std::optional<QuantizationConfig> quantization = {};
  std::optional<int64_t> padding_key = {};
  std::optional<int64_t> default_key = {};
};

/// The table has 10 rows, or rows of these keys.
inline TPUEmbedding layer_of(
    const Kind& kind = {},
    const at::Tensor& keys = {}) {
  FeatureConfig config = kind.config;
  TableConfig table{
      .name = "t",
      .vocabulary_size = 10,
      .dim = 3,
      .combiner = kind.combiner,
      .dtype = kind.dtype,
      .quantization = kind.quantization};
  if (keys.defined()) {
    table.vocabulary_size = 0;
    table.keys = DynamicKeys{
        .capacity = 64,
        .padding_key = kind.padding_key,
        .default_key = kind.default_key};
  }
  config.table = make_table(table);
  TPUEmbedding layer(TPUEmbeddingOptions{
      .features = {{"f", config}}, .optimizer = optim::Adagrad{}});
  if (keys.defined()) {
    layer->update_embedding_table("t", keys, at::rand({keys.numel(), 3}) - 0.5);
  }
  return layer;
}

struct Input {
  Feature feature;
  at::Tensor weights = {};
};

inline ExportExample example_of(const Input& input) {
  ExportExample example{.features = {{"f", input.feature}}};
  if (input.weights.defined()) {
    example.weights = {{"f", std::optional<Feature>(input.weights)}};
  }
  return example;
}

inline at::Tensor evaluate(TPUEmbedding& layer, const Input& input) {
  const at::NoGradGuard no_grad;
  const ExportExample example = example_of(input);
  return layer->forward(example.features, example.weights)["f"];
}

inline torch::jit::Module export_and_load(
    const TPUEmbedding& layer,
    const ExportOptions& options = {}) {
  const std::string path = new_file();
  export_torchscript(layer, path, options);
  return torch::jit::load(path);
}

enum class ExportFormat { kTorchScript, kPt2 };

/// Tests of what both formats give for layers of layer_of().
class ExportFormatTest : public testing::TestWithParam<ExportFormat> {
 protected:
  static bool is_pt2() {
    return GetParam() == ExportFormat::kPt2;
  }

  static void export_layer(
      const TPUEmbedding& layer,
      const std::string& path,
      const Input& input,
      const ExportOptions& options = {}) {
    if (is_pt2()) {
      export_pt2(layer, path, example_of(input), options);
    } else {
      export_torchscript(layer, path, options);
    }
  }

  /// The file's activations of each input. All must be of the same kind.
  static std::vector<at::Tensor> run_file(
      const TPUEmbedding& layer,
      const std::vector<Input>& inputs,
      const ExportOptions& options = {}) {
    return run_files(layer, {inputs}, options)[0];
  }

  /// The same for several kinds. A TorchScript file takes all kinds, so it is written once.
  static std::vector<std::vector<at::Tensor>> run_files(
      const TPUEmbedding& layer,
      const std::vector<std::vector<Input>>& kinds,
      const ExportOptions& options) {
    std::vector<std::vector<at::Tensor>> results;
    if (is_pt2()) {
      for (const std::vector<Input>& inputs : kinds) {
        results.push_back(run_pt2(layer, inputs, options));
      }
      return results;
    }
    torch::jit::Module loaded = export_and_load(layer, options);
    for (const std::vector<Input>& inputs : kinds) {
      results.emplace_back();
      for (const Input& input : inputs) {
        TensorMap weights;
        if (input.weights.defined()) {
          weights["f"] = input.weights;
        }
        results.back().push_back(run_embedding(
            loaded, {{"f", parts_of(input.feature)}}, weights)["f"]);
      }
    }
    return results;
  }

  static std::vector<at::Tensor> run_pt2(
      const TPUEmbedding& layer,
      const std::vector<Input>& inputs,
      const ExportOptions& options) {
    const std::string path = new_file();
    export_pt2(layer, path, example_of(inputs[0]), options);
    const Pt2Program program(path);
    std::vector<at::Tensor> results;
    for (const Input& input : inputs) {
      std::vector<at::Tensor> arguments = parts_of(input.feature);
      if (input.weights.defined()) {
        arguments.push_back(input.weights);
      }
      results.push_back(program.run(arguments)[0]);
    }
    return results;
  }

  /// Compares the file's activations with the layer's, and returns them.
  static std::vector<std::vector<at::Tensor>> expect_agrees(
      TPUEmbedding layer,
      const std::vector<std::vector<Input>>& kinds,
      const ExportOptions& options = {},
      double tolerance = 1e-6) {
    auto actual = run_files(layer, kinds, options);
    for (size_t kind = 0; kind < kinds.size(); ++kind) {
      SCOPED_TRACE(kind);
      for (size_t i = 0; i < kinds[kind].size(); ++i) {
        SCOPED_TRACE(i);
        EXPECT_EQ(actual[kind][i].scalar_type(), at::kFloat);
        expect_close(
            actual[kind][i],
            evaluate(layer, kinds[kind][i]),
            tolerance,
            tolerance);
      }
    }
    return actual;
  }
};

inline const auto kExportFormats =
    testing::Values(ExportFormat::kTorchScript, ExportFormat::kPt2);

inline std::string format_name(
    const testing::TestParamInfo<ExportFormat>& info) {
  return info.param == ExportFormat::kPt2 ? "pt2" : "torchscript";
}

/// A layer with tables of users and of items.
inline TPUEmbedding user_item_embedding(
    const Strategy& strategy = Strategy::fused(),
    int64_t user_dim = 3) {
  const auto users =
      make_table({.name = "users", .vocabulary_size = 20, .dim = user_dim});
  const auto items = make_table(
      {.name = "items",
       .vocabulary_size = 30,
       .dim = 4,
       .combiner = Combiner::kSqrtn});
  return TPUEmbedding(TPUEmbeddingOptions{
      .features =
          {{"user", FeatureConfig{.table = users}},
           {"item", FeatureConfig{.table = items}},
           {"history", FeatureConfig{.table = items}}},
      .optimizer = optim::Adagrad{},
      .strategy = strategy});
}

/// A batch of it with 3 examples.
inline Features three_examples() {
  return {
      {"user", int64s({1, 2, 3})},
      {"item", sparse({{4, 5}, {6}, {29}}, 2)},
      {"history", ragged({{7, 8, 9}, {}, {10}})}};
}

inline Features five_examples() {
  return {
      {"user", int64s({9, 8, 7, 6, 5})},
      {"item", sparse({{1}, {2, 3}, {}, {4, 4}, {0}}, 2)},
      {"history", ragged({{}, {1, 2, 3, 4}, {5}, {6}, {7, 7}})}};
}

/// A model whose forward() is a function of its modules. A test may register more.
template <class Result = at::Tensor>
struct FunctionModel : torch::nn::Module {
  using Function =
      std::function<Result(FunctionModel&, const Features&, const at::Tensor&)>;

  FunctionModel(Function function, int64_t user_dim)
      : function_(std::move(function)) {
    embedding = register_module(
        "embedding", user_item_embedding(Strategy::fused(), user_dim));
    linear = register_module("linear", torch::nn::Linear(8 + user_dim, 2));
  }
  Result forward(const Features& features, const at::Tensor& input) {
    return function_(*this, features, input);
  }
  at::Tensor embed(const Features& features) {
    return Concatenate()->forward(embedding->forward(features));
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Linear linear{nullptr};

 private:
  Function function_;
};

template <class Result = at::Tensor>
std::shared_ptr<FunctionModel<Result>> make_model(
    typename FunctionModel<Result>::Function function,
    int64_t user_dim = 3) {
  return std::make_shared<FunctionModel<Result>>(std::move(function), user_dim);
}

/// An example of its inputs.
inline ExportExample model_example() {
  return {.features = three_examples(), .inputs = {at::rand({3, 2})}};
}

}  // namespace tessera::test
