// SPDX-License-Identifier: Apache-2.0
// The code of docs/keras.md and of LayerImpl's docstring about own layers and
// models as JSON. check_docs.cmake compares it with them.
#include <tessera/tessera.h>

#include "tests/docs/pages_fixture.h"
#include "tests/test_util.h"

namespace own_layer_test {

// snippet: own_layer
struct ScaleOptions {
  double initial_value = 1.0;
  bool operator==(const ScaleOptions&) const = default;
  TESSERA_FIELDS(initial_value)
};

class ScaleImpl : public tessera::LayerImpl<ScaleImpl, ScaleOptions> {
 public:
  static constexpr const char* kClassName = "Scale";
  using LayerImpl::LayerImpl;

  torch::Tensor forward(const torch::Tensor& x) {
    build_on_first_call(x);
    tessera::check_fits(x, scale_, kClassName);
    return x * scale_;
  }
  tessera::Nest<tessera::PartialShape> compute_output_shape(
      const tessera::Nest<tessera::PartialShape>& inputs) const override {
    return tessera::check_rows(inputs, kClassName);
  }

 private:
  void make_parameters(
      const tessera::Nest<tessera::PartialShape>& inputs) override {
    const int64_t dim = tessera::known_dim(inputs.leaf(), kClassName);
    scale_ = register_parameter(
        "scale", torch::full({dim}, options().initial_value));
  }
  torch::Tensor scale_;
};
TORCH_MODULE(Scale);
const bool is_registered = tessera::register_layer<Scale>();  // for JSON
// end snippet

class OwnLayerTest : public tessera::test::PagesTest {};

TEST_F(OwnLayerTest, RefusesInputsThatDoNotFit) {
  for (const char* shape : {"[]", "[null]", "[null, null]"}) {
    const auto json = tessera::parse_json(
        R"({"class_name": "Scale", "config": {}, "build_config": {"input_shape": )" +
        std::string(shape) + "}}");
    EXPECT_THROW(tessera::layer_from_json(json), c10::ValueError) << shape;
  }
  Scale layer;
  EXPECT_THROW(layer->forward(torch::ones({3})), c10::ValueError);
  EXPECT_EQ(layer->forward(torch::ones({2, 3})).size(1), 3);
  EXPECT_THROW(layer->forward(torch::ones({2, 1})), c10::ValueError);
}

TEST_F(OwnLayerTest, RebuildsAModelFromJsonAndWeights) {
  // snippet: json
  const auto users =
      tessera::make_table({.name = "users", .vocabulary_size = 10, .dim = 4});
  torch::nn::Sequential model(
      tessera::TPUEmbedding(tessera::TPUEmbeddingOptions{
          .features = {{"user", tessera::FeatureConfig{.table = users}}},
          .optimizer = tessera::optim::Adagrad{.learning_rate = 0.1}}),
      tessera::Concatenate(),
      Scale(ScaleOptions{.initial_value = 0.5}),
      torch::nn::Linear(4, 1));
  const tessera::Features features{{"user", torch::tensor({7, 3})}};
  const auto scores = model->forward(features);
  const std::string text = tessera::to_json(model).dump();  // no weights
  tessera::save_to_file(model, "weights.pt");

  auto again =
      tessera::from_json<torch::nn::Sequential>(tessera::parse_json(text));
  tessera::load_from_file(again, "weights.pt");
  // end snippet
  EXPECT_TRUE(is_registered);
  EXPECT_EQ(again->ptr(2)->name(), "tessera::Scale");
  EXPECT_EQ(tessera::to_json(again).dump(), text);
  EXPECT_TRUE(at::equal(again->forward(features), scores));
}

}  // namespace own_layer_test
