// SPDX-License-Identifier: Apache-2.0
// Compares layers with DeepCTR-Torch and with the formulas of the papers, in float32 and
// float64. The numbers come from make_model_fixtures.py.
#include <tessera/layers/layer_json.h>
#include <tessera/models/deep_fm.h>
#include <tessera/models/dice.h>
#include <tessera/models/din_attention.h>
#include <tessera/models/factorization_machine.h>
#include <tessera/models/matrix_factorization.h>
#include <tessera/models/mixture_of_experts.h>

#include "tests/golden_util.h"
#include "tests/test_util.h"

namespace tessera::test::models_golden_test {

const Json& document() {
  static const Json json = read_golden("models.json");
  return json;
}

at::Tensor tensor_of(const Json& json, at::ScalarType dtype) {
  return at::tensor(json.at("values").get<std::vector<double>>(), at::kDouble)
      .view(json.at("shape").get<std::vector<int64_t>>())
      .to(dtype);
}

void expect_like(const at::Tensor& actual, const Json& expected) {
  ASSERT_TRUE(actual.defined());
  const bool is_double = actual.scalar_type() == at::kDouble;
  expect_close(
      actual,
      tensor_of(expected, at::kDouble),
      is_double ? 1e-9 : 1e-4,
      is_double ? 1e-10 : 1e-5);
}

template <class Tensors>
void set_tensors(Tensors own, const Json& values, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  ASSERT_EQ(own.size(), values.size());
  for (const auto& [name, value] : values.items()) {
    ASSERT_NE(own.find(name), nullptr) << name;
    const at::Tensor tensor = tensor_of(value, dtype);
    ASSERT_EQ(own[name].sizes(), tensor.sizes()) << name;
    own[name].copy_(tensor);
  }
}

template <class Holder>
using Call =
    std::function<at::Tensor(Holder&, const Json&, const Nest<at::Tensor>&)>;

template <class Holder>
void expect_case(
    const Json& item,
    const Call<Holder>& call,
    at::ScalarType dtype) {
  using Options = typename Holder::ContainedType::Options;
  SCOPED_TRACE(item.at("options").dump() + " " + at::toString(dtype));
  Holder layer(JsonValue<Options>::read(item.at("options"), "options"));
  Nest<at::Tensor>::Map map;
  for (const auto& [name, value] : item.at("inputs").items()) {
    map.emplace_back(name, tensor_of(value, dtype).requires_grad_());
  }
  const Nest<at::Tensor> inputs = Nest<at::Tensor>::map(std::move(map));
  {
    // Builds the layer. A Dice in eval mode does not change.
    const at::NoGradGuard no_grad;
    layer->eval();
    call(layer, item, inputs);
  }
  set_tensors(layer->named_parameters(), item.at("weights"), dtype);
  set_tensors(
      layer->named_buffers(), item.value("buffers", Json::object()), dtype);
  layer->train(item.value("is_training", true));

  const at::Tensor output = call(layer, item, inputs);
  ASSERT_EQ(output.scalar_type(), dtype);
  expect_like(output, item.at("output"));
  (output * tensor_of(item.at("slopes"), dtype)).sum().backward();
  const Json& gradients = item.at("gradients");
  for (const auto& [name, input] : inputs) {
    SCOPED_TRACE(name);
    expect_like(input.grad(), gradients.at(name));
  }
  for (const auto& parameter : layer->named_parameters()) {
    SCOPED_TRACE(parameter.key());
    expect_like(parameter.value().grad(), gradients.at(parameter.key()));
  }
  if (item.contains("buffers_after")) {
    for (const auto& buffer : layer->named_buffers()) {
      SCOPED_TRACE(buffer.key());
      expect_like(buffer.value(), item.at("buffers_after").at(buffer.key()));
    }
  }
}

template <class Holder>
void expect_cases(
    const char* name,
    const Call<Holder>& call =
        [](auto& layer, const Json&, const auto& inputs) {
          return layer->forward(inputs);
        }) {
  int count = 0;
  for (const Json& item : document().at("cases")) {
    if (item.at("layer") == name) {
      expect_case(item, call, at::kDouble);
      expect_case(item, call, at::kFloat);
      ++count;
    }
  }
  EXPECT_GT(count, 0);
}

TEST(ModelsGoldenTest, MatrixFactorization) {
  expect_cases<MatrixFactorization>("MatrixFactorization");
}

TEST(ModelsGoldenTest, FactorizationMachine) {
  expect_cases<FactorizationMachine>("FactorizationMachine");
}

TEST(ModelsGoldenTest, DeepFM) {
  expect_cases<DeepFM>("DeepFM");
}

TEST(ModelsGoldenTest, Dice) {
  expect_cases<Dice>("Dice", [](auto& layer, const Json&, const auto& inputs) {
    return layer->forward(inputs["x"]);
  });
}

TEST(ModelsGoldenTest, DINAttention) {
  expect_cases<DINAttention>(
      "DINAttention", [](auto& layer, const Json& item, const auto& inputs) {
        const auto lengths =
            item.at("lengths").template get<std::vector<int64_t>>();
        return layer->forward(
            inputs["query"], inputs["keys"], at::tensor(lengths, at::kLong));
      });
}

TEST(ModelsGoldenTest, MMoE) {
  expect_cases<MMoE>("MMoE", [](auto& layer, const Json&, const auto& inputs) {
    return at::cat(layer->forward(inputs).flatten(), 1);
  });
}

}  // namespace tessera::test::models_golden_test
