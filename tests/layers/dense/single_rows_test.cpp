// SPDX-License-Identifier: Apache-2.0
// Inputs of one row beside inputs of many, such as those of a user beside those of his
// candidates. The results must be those of the same row repeated.
#include <tessera/layers/dense/concatenate.h>
#include <tessera/layers/dense/cross.h>
#include <tessera/layers/dense/dot_interaction.h>
#include <tessera/layers/dense/mlp.h>

#include "tests/layers/layer_contract.h"

namespace tessera::test::single_rows_test {

Inputs repeated(const Inputs& inputs, int64_t items) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& leaf : inputs.flatten()) {
    std::vector<int64_t> sizes = leaf.sizes().vec();
    sizes[0] = items;
    leaves.push_back(leaf.expand(sizes).contiguous().clone());
  }
  return inputs.pack(std::move(leaves));
}

// Counts the multiplications of matrix products by LibTorch's operators.
class CountProducts {
 public:
  CountProducts()
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(
                [](const at::RecordFunction& call)
                    -> std::unique_ptr<at::ObserverContext> {
                  const std::string name = call.name();
                  const auto inputs = call.inputs();
                  if (name == "aten::addmm" || name == "aten::mm") {
                    const size_t first = name == "aten::addmm" ? 1 : 0;
                    const at::Tensor a = inputs[first].toTensor();
                    const at::Tensor b = inputs[first + 1].toTensor();
                    count += a.size(0) * a.size(1) * b.size(1);
                  }
                  return nullptr;
                })
                .needsInputs(true)
                .scopes({at::RecordScope::FUNCTION}))) {
    count = 0;
  }
  CountProducts(const CountProducts&) = delete;
  CountProducts& operator=(const CountProducts&) = delete;
  ~CountProducts() {
    at::removeCallback(handle_);
  }

  static inline thread_local int64_t count = 0;

 private:
  at::CallbackHandle handle_;
};

TEST(SingleRowsTest, MLPComputesTheirProductOnce) {
  const at::NoGradGuard no_grad;
  MLP mlp(MLPOptions{
      .units = {8, 1},
      .activation = Activation::kTanh});  // computed by LibTorch's operators
  const Inputs inputs{
      {"user", at::randn({1, 30})}, {"item", at::randn({50, 2})}};
  mlp->forward(inputs);
  const CountProducts products;
  mlp->forward(inputs);
  EXPECT_EQ(products.count, 30 * 8 + 50 * 2 * 8 + 50 * 8);
}

TEST(SingleRowsTest, CrossComputesTheirProductOnce) {
  const at::NoGradGuard no_grad;
  Cross cross;
  const Inputs inputs{
      {"user", at::randn({1, 30})}, {"item", at::randn({50, 2})}};
  cross->forward(inputs);
  const CountProducts products;
  cross->forward(inputs);
  EXPECT_EQ(products.count, 30 * 32 + 50 * 2 * 32);
}

// Many features, so that some of the kernel's blocks of rows have only users.
TEST(SingleRowsTest, DotInteractionTakesManySingleRows) {
  const at::NoGradGuard no_grad;
  for (const int64_t users : {1, 3, 4, 9, 13, 40}) {
    for (const int64_t dim : {1, 16, 19}) {
      DotInteraction dots;
      const Inputs inputs{
          {"users", at::randn({1, users, dim})},
          {"items", at::randn({70, 13, dim})},
          {"one more", at::randn({1, dim})}};
      const at::Tensor expected = dots->forward(repeated(inputs, 70));
      // The kernel adds in the same order.
      EXPECT_TENSOR_EQ(dots->forward(inputs), expected)
          << users << " users of dim " << dim;
    }
  }
}

TEST(SingleRowsTest, ConcatenateRepeatsThem) {
  Concatenate layer;
  for (const Inputs& inputs : std::vector<Inputs>{
           {at::ones({2, 2}), at::ones({2, 2}), at::ones({2, 2})},
           {at::ones({2}), at::ones({2, 2, 3})}}) {
    expect_single_rows_count(
        [&](const Inputs& x) { return layer->forward(x); }, inputs);
  }
  EXPECT_VALUE_ERROR(
      layer->forward({{"a", at::ones({2, 3})}, {"b", at::ones({3, 3})}}),
      "[Concatenate 'b'] all inputs must have the same batch size or one row, "
      "but this one has 3 rows and an earlier one 2");
}

TEST(SingleRowsTest, CrossTakesThemBesideItsSecondInput) {
  for (const std::optional<int64_t> projection_dim :
       {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    Cross first(
        CrossOptions{.projection_dim = projection_dim, .diag_scale = 0.5});
    Cross second(CrossOptions{.projection_dim = projection_dim});
    expect_single_rows_count(
        [&](const Inputs& x0) {
          return second->forward(x0, first->forward(x0));
        },
        {at::ones({2, 3}), at::ones({2, 3}), at::ones({2, 3})});
  }
}

TEST(SingleRowsTest, InputsWithoutColumnsMayStandBesideThem) {
  const at::Tensor joined = Concatenate()->forward(
      Inputs{{"a", at::randn({5, 0})}, {"b", at::randn({1, 3})}});
  EXPECT_EQ(joined.sizes(), (std::vector<int64_t>{5, 3}));
  const at::Tensor dots = DotInteraction()->forward(Inputs{
      {"a", at::randn({5, 0, 4})},
      {"b", at::randn({1, 4})},
      {"c", at::randn({1, 4})}});
  EXPECT_EQ(dots.sizes(), (std::vector<int64_t>{5, 1}));
}

TEST(SingleRowsTest, ShapesOfOneRowFitAllBatchSizes) {
  const auto shape = [](auto layer, Nest<PartialShape> inputs) {
    return layer->compute_output_shape(inputs).leaf();
  };
  const MLP mlp(MLPOptions{.units = {3}});
  const PartialShape one{1, 2};
  const PartialShape seven{7, 2};
  const PartialShape unknown{std::nullopt, 2};
  const PartialShape of_seven{7, 3};
  const PartialShape of_unknown{std::nullopt, 3};
  const PartialShape of_one{1, 3};
  EXPECT_EQ(shape(mlp, {{"a", one}, {"b", seven}}), of_seven);
  EXPECT_EQ(shape(mlp, {{"a", seven}, {"b", one}}), of_seven);
  EXPECT_EQ(shape(mlp, {{"a", unknown}, {"b", one}}), of_unknown);
  EXPECT_EQ(shape(mlp, {{"a", one}, {"b", unknown}}), of_unknown);
  EXPECT_EQ(shape(mlp, {{"a", unknown}, {"b", seven}}), of_seven);
  EXPECT_EQ(shape(mlp, {{"a", one}, {"b", one}}), of_one);
  const PartialShape pairs{7, 1};
  EXPECT_EQ(shape(DotInteraction(), {{"a", one}, {"b", seven}}), pairs);
  const PartialShape columns{7, 4};
  EXPECT_EQ(shape(Concatenate(), {{"a", one}, {"b", seven}}), columns);
  EXPECT_EQ(shape(Cross(), {{"a", seven}, {"b", one}}), columns);
}

}  // namespace tessera::test::single_rows_test
