// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <initializer_list>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}  // namespace torch::nn

namespace tessera {
class TableModule;
}  // namespace tessera

namespace tessera::training {

namespace detail {

template <class Value, class Base>
concept IsDerivedValue = std::derived_from<std::remove_cvref_t<Value>, Base> &&
    !std::is_lvalue_reference_v<Value>;

// snippet: tests/docs/reference_training_test.cpp PointerOrValue
/// A shared pointer to a metric or callback. It can also be made from a temporary object.
///
///   const auto auc = std::make_shared<AUC>();  // is read after the training
///   fit(batches, step, {.model = model, .metrics = {auc, LogLoss()}});
///   std::cout << auc->result() << "\n";
///
/// Pass a pointer to an object that you want to read. A named object is refused, because
/// fit() would fill a copy of it.
template <class Base>
class PointerOrValue : public std::shared_ptr<Base> {
 public:
  using std::shared_ptr<Base>::shared_ptr;
  PointerOrValue() = default;
  PointerOrValue(std::shared_ptr<Base> pointer)  // NOLINT: implicit
      : std::shared_ptr<Base>(std::move(pointer)) {}
  template <IsDerivedValue<Base> Value>
  requires std::move_constructible<Value> PointerOrValue(
      Value&& value)  // NOLINT: implicit
      : std::shared_ptr<Base>(std::make_shared<std::remove_cvref_t<Value>>(
            std::forward<Value>(value))) {}

  template <std::derived_from<Base> Value>
  PointerOrValue(Value&) = delete;  // pass a std::shared_ptr
  template <IsDerivedValue<Base> Value>
  requires(!std::move_constructible<Value>) PointerOrValue(Value&&)
  = delete;  // pass a std::shared_ptr
};

}  // namespace detail

/// A shared pointer to a model. It can also be made from the model's holder, so `model`
/// stands for `model.ptr()`.
class ModelPointer : public std::shared_ptr<torch::nn::Module> {
 public:
  using shared_ptr::shared_ptr;
  ModelPointer() = default;
  ModelPointer(std::shared_ptr<torch::nn::Module> model)  // NOLINT: implicit
      : shared_ptr(std::move(model)) {}
  template <class Holder>
  requires requires(const Holder& holder) {
    typename Holder::ContainedType;
    { holder.ptr() } -> std::convertible_to<std::shared_ptr<torch::nn::Module>>;
  }
  ModelPointer(const Holder& holder)  // NOLINT: implicit
      : shared_ptr(holder.ptr()) {}
};

/// Modules with tables, made from their holders: {embedding, engine}, or a std::vector of
/// TPUEmbedding.
class TableModules : public std::vector<std::shared_ptr<TableModule>> {
  /// Made from any holder of a TableModule. An empty holder gives nullptr.
  struct Entry {
    template <class Holder>
    requires requires(const Holder& holder) {
      typename Holder::ContainedType;
      { holder.ptr() } -> std::convertible_to<std::shared_ptr<TableModule>>;
    }
    Entry(const Holder& holder)  // NOLINT: implicit
        : module(holder.is_empty() ? nullptr : holder.ptr()) {}

    std::shared_ptr<TableModule> module;
  };

 public:
  TableModules() = default;
  TableModules(std::initializer_list<Entry> layers) {
    add(layers);
  }
  template <std::convertible_to<Entry> Holder>
  TableModules(const std::vector<Holder>& layers) {  // NOLINT: implicit
    add(layers);
  }

 private:
  template <class Layers>
  void add(const Layers& layers) {
    for (const auto& layer : layers) {
      push_back(Entry(layer).module);
    }
  }
};

}  // namespace tessera::training
