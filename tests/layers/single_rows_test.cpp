// SPDX-License-Identifier: Apache-2.0
// Inputs of one row beside inputs of many, such as those of a user beside those of his
// candidates. The results must be those of the same row repeated.
#include <tessera/layers/concatenate.h>
#include <tessera/layers/cross.h>
#include <tessera/layers/dot_interaction.h>
#include <tessera/layers/mlp.h>

#include "tests/test_util.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

namespace tessera {
namespace single_rows_test {

using Inputs = Nest<at::Tensor>;
using Forward = std::function<at::Tensor(const Inputs&)>;

// Inputs of users and items in all orders, with a batch of items.
std::vector<Inputs> mixed_inputs(int64_t items, int64_t dim) {
  const auto user = [&] { return at::randn({1, dim}); };
  const auto item = [&] { return at::randn({items, dim}); };
  return {
      {{"a", user()}, {"b", item()}},
      {{"a", item()}, {"b", user()}},
      {{"a", user()}, {"b", user()}, {"c", item()}, {"d", item()}},
      {{"a", item()}, {"b", user()}, {"c", item()}, {"d", user()}},
      {{"a", user()}, {"b", item()}, {"c", item()}, {"d", user()}}};
}

Inputs repeated(const Inputs& inputs, int64_t items) {
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& leaf : inputs.flatten()) {
    std::vector<int64_t> sizes = leaf.sizes().vec();
    sizes[0] = items;
    leaves.push_back(leaf.expand(sizes).contiguous().clone());
  }
  return inputs.pack(std::move(leaves));
}

std::vector<at::Tensor> gradients(
    const Forward& forward,
    const Inputs& inputs) {
  std::vector<at::Tensor> leaves = inputs.flatten();
  for (at::Tensor& leaf : leaves) {
    leaf.requires_grad_();
  }
  forward(inputs).square().sum().backward();
  std::vector<at::Tensor> result;
  for (at::Tensor& leaf : leaves) {
    result.push_back(leaf.grad());
    leaf.mutable_grad() = at::Tensor();
    leaf.requires_grad_(false);
  }
  return result;
}

// Compares results and gradients with those of repeated inputs. A single row gets the sum
// of the gradients of its copies.
void expect_as_repeated(
    const Forward& forward,
    const Inputs& inputs,
    int64_t items) {
  const Inputs all = repeated(inputs, items);
  const at::Tensor expected = forward(all);
  EXPECT_TRUE(at::allclose(forward(inputs), expected, 1e-4, 1e-5));
  {
    const at::NoGradGuard no_grad;
    EXPECT_TRUE(at::allclose(forward(inputs), expected, 1e-4, 1e-5));
  }
  if (items == 0) {
    return;
  }
  const std::vector<at::Tensor> actual = gradients(forward, inputs);
  const std::vector<at::Tensor> copies = gradients(forward, all);
  for (size_t i = 0; i < actual.size(); ++i) {
    const at::Tensor sum = actual[i].size(0) == items
        ? copies[i]
        : copies[i].sum(0, /*keepdim=*/true);
    EXPECT_TRUE(at::allclose(actual[i], sum, 1e-3, 1e-4)) << "input " << i;
  }
}

const std::vector<int64_t> kItems{0, 1, 2, 3, 65, 300};

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

TEST(SingleRowsTest, MLPGivesWhatRepeatedRowsGive) {
  for (const bool use_bias : {true, false}) {
    for (const Activation activation : {Activation::kRelu, Activation::kTanh}) {
      for (const int64_t items : kItems) {
        for (const Inputs& inputs : mixed_inputs(items, 4)) {
          MLP mlp(MLPOptions{
              .units = {5, 3}, .activation = activation, .use_bias = use_bias});
          const Forward forward = [&](const Inputs& x) {
            return mlp->forward(x);
          };
          expect_as_repeated(forward, inputs, items);
        }
      }
    }
  }
}

TEST(SingleRowsTest, MLPTakesThemInHigherRanks) {
  MLP mlp(MLPOptions{.units = {5, 3}});
  const Inputs inputs{{"a", at::randn({1, 2, 3})}, {"b", at::randn({7, 2, 4})}};
  expect_as_repeated(
      [&](const Inputs& x) { return mlp->forward(x); }, inputs, 7);
}

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

TEST(SingleRowsTest, CrossGivesWhatRepeatedRowsGive) {
  for (const std::optional<int64_t> projection_dim :
       {std::optional<int64_t>(), std::optional<int64_t>(2)}) {
    for (const int64_t items : kItems) {
      for (const Inputs& inputs : mixed_inputs(items, 3)) {
        Cross first(
            CrossOptions{.projection_dim = projection_dim, .diag_scale = 0.5});
        Cross second(CrossOptions{.projection_dim = projection_dim});
        expect_as_repeated(
            [&](const Inputs& x0) {
              return second->forward(x0, first->forward(x0));
            },
            inputs,
            items);
      }
    }
  }
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

TEST(SingleRowsTest, DotInteractionGivesWhatRepeatedRowsGive) {
  for (const bool self : {false, true}) {
    for (const bool skip_gather : {false, true}) {
      for (const int64_t items : kItems) {
        for (const Inputs& inputs : mixed_inputs(items, 5)) {
          DotInteraction dots(DotInteractionOptions{
              .self_interaction = self, .skip_gather = skip_gather});
          expect_as_repeated(
              [&](const Inputs& x) { return dots->forward(x); }, inputs, items);
        }
      }
    }
  }
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
      EXPECT_TRUE(at::equal(dots->forward(inputs), expected))
          << users << " users of dim " << dim;
    }
  }
}

TEST(SingleRowsTest, ConcatenateRepeatsThem) {
  Concatenate concatenate;
  for (const int64_t items : kItems) {
    for (const Inputs& inputs : mixed_inputs(items, 2)) {
      expect_as_repeated(
          [&](const Inputs& x) { return concatenate->forward(x); },
          inputs,
          items);
    }
  }
  const Inputs lines{{"a", at::randn({1})}, {"b", at::randn({4, 2, 3})}};
  expect_as_repeated(
      [&](const Inputs& x) { return concatenate->forward(x); }, lines, 4);
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

TEST(SingleRowsTest, OtherBatchSizesAreRefused) {
  const Inputs inputs{{"a", at::randn({2, 3})}, {"b", at::randn({3, 3})}};
  EXPECT_VALUE_ERROR(
      MLP(MLPOptions{.units = {2}})->forward(inputs),
      "[MLP 'b'] all inputs must have the same batch size or one row, but this "
      "one has 3 rows and an earlier one 2. Correct the batch.");
  EXPECT_VALUE_ERROR(
      Cross()->forward(inputs),
      "[Cross 'b'] all inputs must have the same batch size or one row, but "
      "this one has 3 rows and an earlier one 2");
  EXPECT_VALUE_ERROR(
      DotInteraction()->forward(inputs),
      "[DotInteraction 'b'] all inputs must have the same batch size or one "
      "row, but this one has 3 rows and an earlier one 2");
  EXPECT_VALUE_ERROR(
      Concatenate()->forward(inputs),
      "[Concatenate 'b'] all inputs must have the same batch size or one row, "
      "but this one has 3 rows and an earlier one 2");
}

}  // namespace single_rows_test
}  // namespace tessera
