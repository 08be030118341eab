// SPDX-License-Identifier: Apache-2.0
#pragma once

// What holds for every layer. A test names its layers as cases:
//
//   INSTANTIATE_TEST_SUITE_P(
//       Dense, LayerContractTest, testing::ValuesIn(cases()), name_of_case);
//
// DenseLayerContractTest has what holds for those that take a nest of dense inputs.

#include <tessera/common/precision.h>
#include <tessera/layers/layer.h>
#include <tessera/layers/layer_json.h>

#include "tests/layers/autocast.h"
#include "tests/layers/gradient_check.h"

namespace tessera::test {

using Tensors = std::vector<at::Tensor>;
using Inputs = Nest<at::Tensor>;

struct LayerCase {
  std::string name;
  std::vector<std::vector<int64_t>> shapes;  // of the inputs
  std::function<std::shared_ptr<torch::nn::Module>()> make;
  std::function<at::Tensor(torch::nn::Module&, const Inputs&)> forward;
  std::function<void()> expect_options_in_json;
};

inline std::string name_of_case(const testing::TestParamInfo<LayerCase>& info) {
  return info.param.name + "_" + std::to_string(info.index);
}

inline void PrintTo(const LayerCase& layer, std::ostream* stream) {
  *stream << layer.name;
}

/// A layer of one input is called with a tensor, and others with a map of 'a', 'b', ...
template <class Holder>
LayerCase layer_case(
    const std::string& name,
    const typename Holder::ContainedType::Options& options,
    const std::vector<std::vector<int64_t>>& shapes,
    std::function<at::Tensor(Holder&, const Inputs&)> forward =
        [](Holder& layer, const Inputs& inputs) {
          return layer->forward(inputs);
        }) {
  using Impl = typename Holder::ContainedType;
  return {
      .name = name,
      .shapes = shapes,
      .make = [options] { return Holder(options).ptr(); },
      .forward =
          [forward](torch::nn::Module& module, const Inputs& inputs) {
            Holder layer(
                std::dynamic_pointer_cast<Impl>(module.shared_from_this()));
            return forward(layer, inputs);
          },
      .expect_options_in_json =
          [options] {
            const Json json = Holder(options)->get_config();
            EXPECT_EQ(
                JsonValue<typename Impl::Options>::read(json, "x"), options);
          }};
}

/// Compares inputs of one row, such as those of a user beside those of his candidates, with
/// the same rows repeated. A single row gets the sum of the gradients of its copies.
inline void expect_single_rows_count(
    const std::function<at::Tensor(const Inputs&)>& forward,
    const Inputs& like) {
  const Tensors parts = like.flatten();
  for (const int64_t items : {0, 1, 2, 3, 65, 300}) {
    // Bit i says whether input i has a single row.
    for (int64_t singles = 0; singles + 1 < 1 << parts.size(); ++singles) {
      SCOPED_TRACE(testing::Message() << items << " items, " << singles);
      Tensors rows;
      Tensors copies;
      for (size_t i = 0; i < parts.size(); ++i) {
        std::vector<int64_t> sizes = parts[i].sizes().vec();
        sizes[0] = (singles >> i & 1) != 0 ? 1 : items;
        rows.push_back(at::randn(sizes).requires_grad_());
        sizes[0] = items;
        copies.push_back(
            rows[i].detach().expand(sizes).clone().requires_grad_());
      }
      const at::Tensor expected = forward(like.pack(copies));
      const at::Tensor result = forward(like.pack(rows));
      EXPECT_TRUE(at::allclose(result, expected, 1e-4, 1e-5));
      {
        const at::NoGradGuard no_grad;
        const at::Tensor untrained = forward(like.pack(rows));
        EXPECT_TRUE(at::allclose(untrained, expected, 1e-4, 1e-5));
      }
      expected.square().sum().backward();
      result.square().sum().backward();
      for (size_t i = 0; i < parts.size() && items > 0; ++i) {
        const at::Tensor gradient = rows[i].size(0) == items
            ? copies[i].grad()
            : copies[i].grad().sum(0, /*keepdim=*/true);
        EXPECT_TRUE(at::allclose(rows[i].grad(), gradient, 1e-3, 1e-4)) << i;
      }
    }
  }
}

class LayerContractTest : public testing::TestWithParam<LayerCase> {
 protected:
  LayerContractTest()
      : module_(GetParam().make()), layer_(layer_of(*module_)) {}

  static Layer& layer_of(torch::nn::Module& module) {
    return dynamic_cast<Layer&>(module);
  }
  std::string name() const {
    return "[" + layer_.class_name();
  }

  /// Random inputs, which are leaves.
  Inputs inputs(at::ScalarType dtype = at::kFloat) const {
    Inputs::Map map;
    for (const std::vector<int64_t>& shape : GetParam().shapes) {
      map.emplace_back(
          std::string(1, static_cast<char>('a' + map.size())),
          at::randn(shape, dtype).requires_grad_());
    }
    return map.size() == 1 ? Inputs(map[0].second) : Inputs::map(map);
  }

  at::Tensor forward(const Inputs& inputs) {
    return GetParam().forward(*module_, inputs);
  }

  /// The parameters and the inputs.
  Tensors leaves(const Inputs& inputs) const {
    Tensors leaves = module_->parameters();
    for (const at::Tensor& input : inputs.flatten()) {
      leaves.push_back(input);
    }
    return leaves;
  }

  const Threads one_thread_{1};  // kernels want enough rows for each
  std::shared_ptr<torch::nn::Module> module_;
  Layer& layer_;
};

TEST_P(LayerContractTest, GradientsMatchFiniteDifferences) {
  const Inputs x = inputs(at::kDouble);
  module_->to(at::kDouble);
  forward(x);
  expect_gradients([&] { return forward(x); }, leaves(x));
}

TEST_P(LayerContractTest, ACloneHasEqualParametersOfItsOwn) {
  const Inputs x = inputs();
  const at::Tensor expected = forward(x).detach().clone();
  const auto copy = module_->clone();
  EXPECT_EQ(layer_of(*copy).get_config(), layer_.get_config());
  EXPECT_TENSOR_EQ(GetParam().forward(*copy, x), expected);
  const at::NoGradGuard no_grad;
  for (at::Tensor& parameter : copy->parameters()) {
    parameter.fill_(1);
  }
  EXPECT_EQ(
      at::equal(GetParam().forward(*copy, x), expected),
      copy->parameters().empty());
  EXPECT_TENSOR_EQ(forward(x), expected);
}

TEST_P(LayerContractTest, AnUnbuiltLayerLoadsABuiltOne) {
  const Inputs x = inputs();
  const at::Tensor expected = forward(x);
  auto other = GetParam().make();
  copy_by_archive(module_, other);
  EXPECT_TENSOR_EQ(GetParam().forward(*other, x), expected);
}

TEST_P(LayerContractTest, IsRebuiltFromItsJson) {
  GetParam().expect_options_in_json();
  const Inputs x = inputs();
  const at::Tensor expected = forward(x);
  const Json json = Json::parse(to_json(*module_).dump());
  auto rebuilt = layer_from_json(json);
  EXPECT_EQ(Json::parse(to_json(*rebuilt).dump()), json);
  copy_by_archive(module_, rebuilt);
  EXPECT_TENSOR_EQ(GetParam().forward(*rebuilt, x), expected);
}

TEST_P(LayerContractTest, ADeviceThatLibTorchLacksIsRefused) {
  const std::string text =
      "] the layer must go to a device that LibTorch can use, but got ";
  for (const bool is_built : {false, true}) {
    if (is_built) {
      forward(inputs());
    }
    EXPECT_VALUE_ERROR(module_->to(torch::kXLA), name() + "::to" + text);
    EXPECT_VALUE_ERROR(
        module_->to(torch::kXLA, torch::kDouble), name() + "::to" + text);
    EXPECT_VALUE_ERROR(
        module_->clone(torch::Device(torch::kXLA)), name() + "::clone" + text);
    if (!at::hasCUDA()) {
      EXPECT_VALUE_ERROR(
          module_->to(torch::kCUDA),
          text +
              "cuda: this LibTorch was built without it. Choose another device, or leave the layer on the cpu.");
    }
  }
  for (const at::Tensor& parameter : module_->parameters()) {
    EXPECT_TRUE(parameter.is_cpu());
    EXPECT_EQ(parameter.scalar_type(), at::kFloat);
  }
}

/// Layers of a nest of dense inputs.
class DenseLayerContractTest : public LayerContractTest {};

TEST_P(DenseLayerContractTest, SecondDerivativesMatchFiniteDifferences) {
  const Inputs x = inputs(at::kDouble);
  forward(x);
  expect_gradients(
      [&] {
        const at::AutoGradMode enable_grad(true);
        Tensors gradients = torch::autograd::grad(
            {forward(x).pow(3).sum()},
            x.flatten(),
            {},
            std::nullopt,
            /*create_graph=*/true);
        for (at::Tensor& gradient : gradients) {
          gradient = gradient.flatten();
        }
        return at::cat(gradients);
      },
      leaves(x),
      1e-5);
}

// Kernels compute float32, and LibTorch's operators compute doubles.
TEST_P(DenseLayerContractTest, SecondDerivativesOfFloat32MatchDoubles) {
  const Inputs x = inputs(at::kDouble);
  forward(x);
  const auto run = [&](at::ScalarType dtype) {
    module_->to(dtype);
    Tensors sources;
    for (const at::Tensor& input : x.flatten()) {
      sources.push_back(input.detach().to(dtype).requires_grad_());
    }
    const Inputs of_dtype = x.pack(sources);
    at::Tensor penalty = at::zeros({}, dtype);
    for (const at::Tensor& gradient : torch::autograd::grad(
             {forward(of_dtype).pow(3).sum()},
             sources,
             {},
             std::nullopt,
             /*create_graph=*/true)) {
      penalty = penalty + gradient.square().sum();
    }
    return torch::autograd::grad({penalty}, leaves(of_dtype), {}, {}, {}, true);
  };
  const Tensors results = run(at::kFloat);
  const Tensors expected = run(at::kDouble);
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(results[i].defined(), expected[i].defined());
    if (results[i].defined()) {
      const double size = expected[i].abs().max().item<double>();
      expect_close(results[i].to(at::kDouble), expected[i], 1e-3, 1e-4 * size);
    }
  }
}

TEST_P(DenseLayerContractTest, ComputesTheShapeOfItsOutput) {
  const Inputs x = inputs();
  const PartialShape shape =
      layer_.compute_output_shape(shapes_of(x, "")).leaf();
  EXPECT_FALSE(layer_.input_shapes().has_value());
  layer_.build(shapes_of(x, ""));
  const at::Tensor output = forward(x);
  ASSERT_EQ(static_cast<int64_t>(shape.size()), output.dim());
  EXPECT_FALSE(shape[0].has_value());
  for (int64_t i = 1; i < output.dim(); ++i) {
    EXPECT_EQ(shape[i], output.size(i));
  }
}

TEST_P(DenseLayerContractTest, BFloat16ChangesOnlyTheLastDigits) {
  const Inputs x = inputs();
  const auto run = [&](const Inputs& given,
                       std::optional<Precision> precision) {
    module_->zero_grad();
    at::Tensor result;
    {
      const PrecisionScope scope(precision);
      result = forward(given);
    }
    const at::Tensor weights = at::linspace(-1.0, 1.0, result.numel());
    result.to(at::kFloat).mul(weights.view_as(result)).sum().backward();
    Tensors results{result.detach()};
    for (const at::Tensor& parameter : module_->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
      results.push_back(parameter.grad().clone());
    }
    return results;
  };
  const Tensors expected = run(x, {});
  Tensors rounded;
  for (const at::Tensor& leaf : x.flatten()) {
    rounded.push_back(leaf.detach().to(at::kBFloat16).requires_grad_());
  }
  for (const Inputs& given : {x, x.pack(rounded)}) {
    const Tensors results = run(given, Precision::kBFloat16);
    ASSERT_EQ(results.size(), expected.size());
    for (size_t i = 0; i < results.size(); ++i) {
      const double size = expected[i].abs().max().item<double>();
      EXPECT_TRUE(at::allclose(
          results[i].to(at::kFloat), expected[i], 0.03, 0.03 * size))
          << i;
    }
  }
}

TEST_P(DenseLayerContractTest, MixedInputsBuildItInTheirPromotedDtype) {
  const Inputs x = inputs();
  const Tensors leaves = x.flatten();
  const Autocast autocast;
  if (leaves.size() == 1 || module_->parameters().empty()) {
    GTEST_SKIP() << "one input, or no parameters";
  }
  for (size_t i = 0; i < leaves.size(); ++i) {
    Tensors mixed = leaves;
    mixed[i] = mixed[i].to(at::kBFloat16);
    module_ = GetParam().make();
    const at::Tensor result = forward(x.pack(mixed));
    for (const at::Tensor& parameter : module_->parameters()) {
      EXPECT_EQ(parameter.scalar_type(), at::kFloat);
    }
    mixed[i] = mixed[i].to(at::kFloat);
    // Blocks of an MLP round otherwise than operators.
    const double tolerance = layer_.class_name() == "MLP" ? 0.05 : 0.0;
    EXPECT_TRUE(at::allclose(
        forward(x.pack(mixed)).to(at::kFloat),
        result.to(at::kFloat),
        tolerance,
        tolerance));
  }
}

TEST_P(DenseLayerContractTest, ParametersMayBeTransposed) {
  const Inputs x = inputs();
  const auto run = [&] {
    const at::Tensor result = forward(x);
    Tensors results = torch::autograd::grad(
        {result.square().sum()}, leaves(x), {}, {}, {}, true);
    results.push_back(result);
    return results;
  };
  forward(x);
  const Tensors expected = run();
  for (at::Tensor& parameter : module_->parameters()) {
    if (parameter.dim() == 2) {
      parameter.set_data(parameter.t().contiguous().t());
    }
  }
  const Tensors results = run();
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(results[i].defined(), expected[i].defined());
    if (results[i].defined()) {
      expect_close(results[i], expected[i]);
    }
  }
}

TEST_P(DenseLayerContractTest, ASingleRowCountsForAllRows) {
  expect_single_rows_count(
      [&](const Inputs& x) { return forward(x); }, inputs());
}

TEST_P(DenseLayerContractTest, RefusesInputsThatItCannotTake) {
  const Tensors leaves = inputs().flatten();
  // All inputs, but another first or last one.
  const auto with = [&](size_t i, const at::Tensor& other) {
    Tensors changed = leaves;
    changed[i] = other;
    return inputs().pack(changed);
  };
  const size_t last = leaves.size() - 1;
  EXPECT_VALUE_ERROR(forward(Inputs()), name() + "] expected one ");
  EXPECT_VALUE_ERROR(forward(with(0, at::Tensor())), name() + "] input");
  EXPECT_VALUE_ERROR(forward(with(0, at::randn({3}))), "but got [3]");
  EXPECT_VALUE_ERROR(forward(with(0, at::randn({}))), "but got []");
  EXPECT_TYPE_ERROR(
      forward(with(last, leaves[last].to(at::kLong))),
      "expected a dense floating-point tensor, but got Strided Long");
  if (last > 0) {
    EXPECT_TYPE_ERROR(
        forward(with(last, leaves[last].to(at::kDouble))),
        "'] all inputs must have the same dtype, but this one has Double");
    EXPECT_VALUE_ERROR(
        forward(with(last, at::cat({leaves[last], leaves[last]}))),
        c10::str(
            "'] all inputs must have the same batch size or one row, but this one has ",
            2 * leaves[last].size(0),
            " rows and an earlier one ",
            leaves[0].size(0)));
  }
  EXPECT_FALSE(layer_.input_shapes().has_value());

  forward(inputs());
  if (module_->parameters().empty()) {
    return;
  }
  EXPECT_VALUE_ERROR(
      forward(with(0, at::cat({leaves[0], leaves[0]}, -1))),
      name() + "] was built for inputs");
  EXPECT_TYPE_ERROR(
      forward(inputs(at::kDouble)),
      "] has parameters of Float, but got inputs of Double");
  EXPECT_VALUE_ERROR(
      GetParam().forward(
          *GetParam().make(), with(0, leaves[0].narrow(-1, 0, 0))),
      "the last dimension of the input must be >= 1");
}

}  // namespace tessera::test
