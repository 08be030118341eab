// SPDX-License-Identifier: Apache-2.0
// Weights that a Python program has trained, back in a model.
#include <tessera/export/load_state_dict.h>
#include <tessera/layers/embedding_engine_module.h>
#include <torch/nn/modules/batchnorm.h>

#include "packages/export/tests/export_test_util.h"

namespace tessera::test::load_state_dict_test {

struct NetworkImpl : torch::nn::Module {
  explicit NetworkImpl(uint64_t seed, at::ScalarType dtype = at::kFloat) {
    at::manual_seed(seed);
    const auto users = make_table(
        {.name = "users", .vocabulary_size = 10, .dim = 3, .dtype = dtype});
    embedding = register_module(
        "embedding",
        TPUEmbedding(TPUEmbeddingOptions{
            .features =
                {{"item", feature_of("items", 7, 2)},
                 {"user", FeatureConfig{.table = users}}},
            .optimizer = optim::Adagrad{},
            .seed = seed}));
    tower = register_module(
        "tower",
        torch::nn::Sequential(
            Concatenate(),
            torch::nn::Linear(5, 4),
            torch::nn::BatchNorm1d(4),
            torch::nn::Linear(4, 1)));
  }
  at::Tensor forward(const Features& features) {
    return tower->forward(embedding->forward(features));
  }

  TPUEmbedding embedding{nullptr};
  torch::nn::Sequential tower{nullptr};
};
TORCH_MODULE(Network);

const Features& some_features() {
  static const Features features{
      {"item", int64s({1, 6, 3})}, {"user", int64s({9, 2, 0})}};
  return features;
}

at::Tensor outputs_of(Network& network) {
  network->eval();
  const at::NoGradGuard no_grad;
  return network->forward(some_features());
}

// The weights of a network, by the names of its `.pt2` file.
NamedTensors state_dict_of(Network& network) {
  const std::string path = new_file();
  export_pt2(network, path, {.features = some_features()});
  return {.tensors = Pt2Program(path).state_dict()};
}

TEST(LoadStateDictTest, TakesTheWeightsOfAPt2File) {
  Network source(1);
  Network target(2);
  target->embedding->forward(some_features());
  ASSERT_FALSE(at::allclose(outputs_of(source), outputs_of(target)));
  load_state_dict(*target, state_dict_of(source));
  expect_close(outputs_of(target), outputs_of(source));
}

TEST(LoadStateDictTest, ConvertsToTheDtypeOfTheModel) {
  Network source(1);
  Network target(2, at::kBFloat16);
  load_state_dict(*target, state_dict_of(source));
  EXPECT_TRUE(at::allclose(
      target->embedding->read_rows("users", 0, 10),
      source->embedding->read_rows("users", 0, 10),
      1e-2,
      1e-4));
}

TEST(LoadStateDictTest, AnEmbeddingAloneHasNoPrefix) {
  Network source(1);
  const NamedTensors all = state_dict_of(source);
  Network target(2);
  load_state_dict(
      *target->embedding,
      {.tensors = {
           {"table_0", all["embedding.table_0"]},
           {"table_1", all["embedding.table_1"]}}});
  expect_close(
      target->embedding->read_rows("users", 0, 10),
      source->embedding->read_rows("users", 0, 10));
}

// Expects that load_state_dict() refuses the changed state_dict with an error that contains
// `text`, and that no weight changes.
template <class Error = c10::ValueError>
void expect_refused(
    const std::function<void(NamedTensors&)>& change,
    const std::string& text) {
  Network source(1);
  Network target(2);
  NamedTensors tensors = state_dict_of(source);
  const at::Tensor before = outputs_of(target).clone();
  change(tensors);
  EXPECT_RAISES(Error, load_state_dict(*target, tensors), text);
  EXPECT_TRUE(at::equal(outputs_of(target), before));
}

TEST(LoadStateDictTest, ChangesNothingIfSomethingIsWrong) {
  expect_refused(
      [](NamedTensors& state) { state.tensors.pop_back(); },
      "expected all weights of the model, but [");
  expect_refused(
      [](NamedTensors& state) { state.tensors.clear(); },
      "but [embedding.table_0, embedding.table_1, tower.1.bias, tower.1.weight, ");
  expect_refused(
      [](NamedTensors& state) {
        state.tensors.emplace_back("tower.9.weight", at::ones({1}));
      },
      "but it has no [tower.9.weight]");
  expect_refused(
      [](NamedTensors& state) { state.tensors.push_back(state.tensors[0]); },
      "each name must occur once");
  expect_refused(
      [](NamedTensors& state) {
        state.tensors.back().second = at::ones({3, 3, 3});
      },
      "but has [3, 3, 3]. Make the Python model with the sizes of this model");
  expect_refused<c10::TypeError>(
      [](NamedTensors& state) {
        for (auto& [name, tensor] : state.tensors) {
          if (name == "embedding.table_1") {
            tensor = tensor.to(at::kChar);
          }
        }
      },
      "the tensor 'embedding.table_1' must have a dtype of the same kind as the "
      "model's Float, but has Char");
  expect_refused(
      [](NamedTensors& state) { state.tensors[0].second = at::Tensor(); },
      "must be a dense tensor on the cpu, but is undefined");
  for (size_t i : {0, 3}) {
    expect_refused(
        [i](NamedTensors& state) {
          state.tensors[i].second = state.tensors[i].second.to_sparse();
        },
        "must be a dense tensor on the cpu, but is cpu Sparse");
    expect_refused(
        [i](NamedTensors& state) {
          state.tensors[i].second = state.tensors[i].second.to(at::kMeta);
        },
        "must be a dense tensor on the cpu, but is meta Strided");
  }
}

// Two modules share a weight, and a third one has it swapped with its own.
struct SharedImpl : torch::nn::Module {
  SharedImpl() {
    first = register_module("first", torch::nn::Linear(2, 2));
    register_module("second", first);
    other = register_module("other", torch::nn::Linear(2, 2));
  }
  torch::nn::Linear first{nullptr};
  torch::nn::Linear other{nullptr};
};

TEST(LoadStateDictTest, SharedWeightsAndViewsOfTheModelsOwn) {
  SharedImpl model;
  const at::NoGradGuard no_grad;
  const at::Tensor weight = model.first->weight.clone();
  const at::Tensor other = model.other->weight.clone();
  NamedTensors state{
      .tensors = {
          {"first.weight", model.other->weight.t()},
          {"first.bias", model.first->bias},
          {"other.weight", model.first->weight},
          {"other.bias", model.other->bias}}};
  load_state_dict(model, state);
  EXPECT_TRUE(at::equal(model.first->weight, other.t()));
  EXPECT_TRUE(at::equal(model.other->weight, weight));
  state.tensors[0].second = at::ones({2, 2});
  state.tensors.emplace_back("second.weight", at::ones({2, 2}));
  load_state_dict(model, state);
  EXPECT_TRUE(at::equal(model.first->weight, at::ones({2, 2})));
}

TEST(LoadStateDictTest, RefusesWeightsWithoutMemoryOfTheirOwn) {
  SharedImpl model;
  model.register_buffer("spread", at::ones({1}).expand({3}));
  EXPECT_VALUE_ERROR(
      load_state_dict(model, {.tensors = {{"spread", at::ones({3})}}}),
      "[load_state_dict] the model's weight 'spread' must be a dense tensor "
      "whose elements have memory of their own");
}

TEST(LoadStateDictTest, TakesTheTablesOfAnEngine) {
  EmbeddingEngineModule engine(EmbeddingEngineOptions{
      .features = {{"user", feature_of("users", 4, 2)}},
      .optimizer = optim::Adagrad{}});
  const at::Tensor rows = at::rand({4, 2});
  load_state_dict(*engine, {.tensors = {{"table_0", rows}}});
  expect_close(engine->read_rows("users", 0, 4), rows);
}

}  // namespace tessera::test::load_state_dict_test
