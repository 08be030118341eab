// SPDX-License-Identifier: Apache-2.0
// Compares layers with TensorFlow Recommenders and Keras-RS. The numbers come from
// make_layer_fixtures.py.
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/embed_reduce.h>
#include <tessera/layers/dense/multi_layer_dcn.h>
#include <tessera/layers/layer_json.h>

#include "tests/golden_util.h"
#include "tests/test_util.h"

namespace tessera::test::layers_golden_test {

using Tensors = std::map<std::string, at::Tensor>;

const Json& document() {
  static const Json json = read_golden("layers.json");
  return json;
}

std::vector<Json> cases_of(const std::string& layer, const char* list) {
  std::vector<Json> cases;
  for (const Json& item : document().at(list)) {
    if (item.at("layer") == layer) {
      cases.push_back(item);
    }
  }
  EXPECT_FALSE(cases.empty());
  return cases;
}

template <class Layer>
Layer make_layer(const Json& item) {
  using Options = typename Layer::ContainedType::Options;
  return Layer(JsonValue<Options>::read(item.at("options"), "options"));
}

// Inputs in the order of the file, which is that of the arguments.
std::vector<at::Tensor> inputs_of(const Json& item) {
  std::vector<at::Tensor> inputs;
  for (const auto& [name, value] : item.at("inputs").items()) {
    inputs.push_back(golden_tensor(value).requires_grad_());
  }
  return inputs;
}

Nest<at::Tensor> list_of(const std::vector<at::Tensor>& tensors) {
  return Nest<at::Tensor>::list({tensors.begin(), tensors.end()});
}

void set_weights(torch::nn::Module& layer, const Json& item) {
  const at::NoGradGuard no_grad;
  auto parameters = layer.named_parameters();
  ASSERT_EQ(parameters.size(), item.at("weights").size());
  for (const auto& [name, value] : item.at("weights").items()) {
    ASSERT_NE(parameters.find(name), nullptr) << name;
    const at::Tensor weight = golden_tensor(value);
    ASSERT_EQ(parameters[name].sizes(), weight.sizes()) << name;
    parameters[name].copy_(weight);
  }
}

void expect_gradient(const at::Tensor& source, const Json& golden) {
  const at::Tensor expected = golden_tensor(golden);
  // A small gradient may be the sum of large terms. LibTorch's order of the terms depends on
  // the number of threads.
  const double largest =
      expected.numel() == 0 ? 0.0 : expected.abs().max().item<double>();
  expect_close(
      source.grad().defined() ? source.grad() : at::zeros_like(source),
      expected,
      1e-5,
      1e-6 * std::max(1.0, largest));
}

void expect_case(
    const Json& item,
    const at::Tensor& output,
    torch::nn::Module& layer,
    const std::vector<at::Tensor>& inputs) {
  expect_close(output, golden_tensor(item.at("output")));
  (output * golden_tensor(item.at("slopes"))).sum().backward();
  const Json& gradients = item.at("gradients");
  size_t i = 0;
  for (const auto& [name, value] : item.at("inputs").items()) {
    expect_gradient(inputs[i++], gradients.at(name));
  }
  for (const auto& parameter : layer.named_parameters()) {
    expect_gradient(parameter.value(), gradients.at(parameter.key()));
  }
}

std::string name_of(const Json& item) {
  return item.at("options").dump() + " of " + item.at("inputs").dump();
}

TEST(LayersGoldenTest, DotInteraction) {
  for (const Json& item : cases_of("DotInteraction", "cases")) {
    SCOPED_TRACE(name_of(item));
    auto layer = make_layer<DotInteraction>(item);
    const auto inputs = inputs_of(item);
    const at::Tensor output = layer->forward(list_of(inputs));
    expect_case(item, output, *layer, inputs);
  }
}

TEST(LayersGoldenTest, Cross) {
  for (const Json& item : cases_of("Cross", "cases")) {
    SCOPED_TRACE(name_of(item));
    auto layer = make_layer<Cross>(item);
    const auto inputs = inputs_of(item);
    layer->build(shapes_of(inputs[0], ""));
    set_weights(*layer, item);
    const at::Tensor output = inputs.size() == 1
        ? layer->forward(inputs[0])
        : layer->forward(inputs[0], inputs[1]);
    expect_case(item, output, *layer, inputs);
  }
}

TEST(LayersGoldenTest, MultiLayerDCN) {
  for (const Json& item : cases_of("MultiLayerDCN", "cases")) {
    SCOPED_TRACE(name_of(item));
    auto layer = make_layer<MultiLayerDCN>(item);
    const auto inputs = inputs_of(item);
    layer->build(shapes_of(inputs[0], ""));
    set_weights(*layer, item);
    expect_case(item, layer->forward(inputs[0]), *layer, inputs);
  }
}

TEST(LayersGoldenTest, EmbedReduce) {
  for (const Json& item : cases_of("EmbedReduce", "cases")) {
    SCOPED_TRACE(name_of(item) + " and " + item.at("ids").dump());
    auto layer = make_layer<EmbedReduce>(item);
    const auto inputs = inputs_of(item);
    set_weights(*layer, item);
    const Feature ids = golden_feature(item.at("ids"));
    std::optional<Feature> weights;
    if (!inputs.empty()) {
      const auto* dense = std::get_if<at::Tensor>(&ids);
      weights = dense != nullptr ? inputs[0].view(dense->sizes()) : inputs[0];
    }
    expect_case(item, layer->forward(ids, weights), *layer, inputs);
  }
}

// Cases that the originals accept and Tessera refuses. The documentation of the
// originals excludes them, or the originals accept them by accident.
const std::vector<std::string> kRefusedOnlyHere{
    R"(Cross {"projection_dim":0} [[2,3]])",
    R"(MultiLayerDCN {"projection_dim":0} [[2,3]])",
    R"(EmbedReduce {"input_dim":7,"output_dim":3} [[1,2]])",  // id -1
    R"(EmbedReduce {"input_dim":7,"output_dim":3} [[1,1,2]])",
    R"(EmbedReduce {"input_dim":7,"output_dim":3} [[1,2],[1]])"};

void run(const Json& item) {
  std::vector<at::Tensor> inputs = inputs_of(item);
  const std::string layer = item.at("layer");
  if (layer == "DotInteraction") {
    make_layer<DotInteraction>(item)->forward(list_of(inputs));
  } else if (layer == "Cross") {
    inputs.resize(2);
    make_layer<Cross>(item)->forward(inputs[0], inputs[1]);
  } else if (layer == "MultiLayerDCN") {
    make_layer<MultiLayerDCN>(item)->forward(inputs[0]);
  } else {
    std::optional<Feature> weights;
    if (inputs.size() == 2) {
      weights = inputs[1];
    }
    make_layer<EmbedReduce>(item)->forward(
        inputs[0].detach().to(at::kLong), weights);
  }
}

TEST(LayersGoldenTest, RefusesWhatTheOriginalsRefuse) {
  std::vector<std::string> refused_only_here;
  for (const Json& item : document().at("refused")) {
    Json shapes;
    for (const auto& [name, value] : item.at("inputs").items()) {
      shapes.push_back(value.at("shape"));
    }
    const std::string name = item.at("layer").get<std::string>() + " " +
        item.at("options").dump() + " " + shapes.dump();
    SCOPED_TRACE(name);
    bool is_refused = false;
    try {
      run(item);
    } catch (const c10::Error&) {
      is_refused = true;
    }
    if (!item.at("error").is_null()) {
      EXPECT_TRUE(is_refused) << item.at("error");
    } else if (is_refused) {
      refused_only_here.push_back(name);
    }
  }
  EXPECT_EQ(refused_only_here, kRefusedOnlyHere);
}

}  // namespace tessera::test::layers_golden_test
