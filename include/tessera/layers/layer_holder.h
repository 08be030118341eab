// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/pimpl.h>

#include <concepts>
#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

namespace tessera {

namespace detail {

/// An argument for the constructor of a layer, not a layer itself.
template <class T, class Impl>
concept LayerArgument =
    !std::derived_from<std::remove_cvref_t<T>, torch::nn::ModuleHolder<Impl>> &&
    !std::convertible_to<T, std::shared_ptr<Impl>>;

}  // namespace detail

// snippet: tests/docs/reference_traps_test.cpp LayerHolder
/// The holder of a layer of Tessera: MLP is a LayerHolder<MLPImpl>. It is a
/// torch::nn::ModuleHolder that also takes the options of the layer in braces:
///
///   MLP tower({.units = {64, 1}});
///
/// With TORCH_MODULE(MLP), the same line gives hundreds of lines of compiler errors.
template <class ImplType>
class LayerHolder : public torch::nn::ModuleHolder<ImplType> {
  using Holder = torch::nn::ModuleHolder<ImplType>;

 public:
  using Impl = ImplType;

  /// Makes a layer with default options.
  LayerHolder() = default;
  /// An empty holder. Assign a layer to it before use.
  LayerHolder(std::nullptr_t) : Holder(nullptr) {}  // NOLINT: implicit
  LayerHolder(std::shared_ptr<Impl> layer)  // NOLINT: implicit
      : Holder(std::move(layer)) {}
  explicit LayerHolder(typename Impl::Options options)
      : Holder(std::make_shared<Impl>(std::move(options))) {}

  // This constructor catches braces that are not options, so that the compiler's error
  // has few lines. The constructor is a template, because it would otherwise be a second
  // default constructor.
  template <class = void>
  explicit LayerHolder(...) = delete;  // is a field misspelt or out of order?

  /// Makes a layer from other arguments of its constructors.
  template <detail::LayerArgument<ImplType> First, class... Rest>
  explicit LayerHolder(First&& first, Rest&&... rest)
      : Holder(make(std::forward<First>(first), std::forward<Rest>(rest)...)) {}

 private:
  template <class... Args>
  static std::shared_ptr<Impl> make(Args&&... args) {
    constexpr bool can_make = std::constructible_from<Impl, Args...>;
    static_assert(
        can_make,
        "The layer has no constructor with these arguments. Pass its options, "
        "such as Cross(CrossOptions{...}) or Cross({...}).");
    if constexpr (can_make) {
      return std::make_shared<Impl>(std::forward<Args>(args)...);
    } else {
      return nullptr;
    }
  }
};

}  // namespace tessera
