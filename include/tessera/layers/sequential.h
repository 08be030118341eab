// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/features/feature.h>
#include <tessera/features/nest.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <optional>

namespace tessera {

// snippet: tests/docs/reference_layers_test.cpp SequentialImpl
/// A torch::nn::Sequential whose forward() takes features in braces.
///
///   Sequential model(embedding, MLP({.units = {8, 1}}));
///   const auto logits = model->forward(
///       {{"user", torch::tensor({1, 2})}, {"movie", torch::tensor({3, 4})}});
///
/// torch::nn::Sequential has the same results, but needs `Features{{"user", ...}}`,
/// because its forward() is a template. JSON knows both by the name "Sequential". A
/// Sequential can't contain another one, because AnyModule takes no overloaded forward().
/// Errors:  c10::Error if the first layer does not take features.
class SequentialImpl : public torch::nn::SequentialImpl {
 public:
  using torch::nn::SequentialImpl::SequentialImpl;

  using torch::nn::SequentialImpl::forward;
  template <class Result = at::Tensor>
  Result forward(const Features& features) {
    return torch::nn::SequentialImpl::forward<Result>(features);
  }

  /// A deep copy.
  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device =
          std::nullopt) const override {
    const auto names = named_children().keys();
    auto copy = std::make_shared<SequentialImpl>();
    size_t i = 0;
    for (const torch::nn::AnyModule& layer : *this) {
      copy->push_back(names[i++], layer.clone(device));
    }
    return copy;
  }
};

class Sequential : public torch::nn::ModuleHolder<SequentialImpl> {
 public:
  using torch::nn::ModuleHolder<SequentialImpl>::ModuleHolder;

  Sequential() = default;
  /// Layers with names, as `Sequential({{"embedding", embedding}, {"tower", tower}})`.
  Sequential(std::initializer_list<torch::nn::NamedAnyModule> layers)
      : ModuleHolder(std::make_shared<SequentialImpl>(layers)) {}
};

}  // namespace tessera
