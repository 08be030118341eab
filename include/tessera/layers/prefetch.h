// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/layers/tpu_embedding.h>

#include <concepts>
#include <cstddef>
#include <exception>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

namespace tessera {

namespace detail {

/// A layer whose forward() has two halves.
template <class T>
concept HasPendingForward = requires(T& layer, const Features& features) {
  layer->finish_forward(layer->begin_forward(features));
};

template <class T>
concept IsBatchRange = requires(T& source) {
  *std::begin(source);
  std::begin(source) != std::end(source);
};

/// `T` is what features_of() returns: features, or a pair of features and weights.
template <class T>
concept HasFeatures = std::convertible_to<T, Features> || requires(T inputs) {
  requires std::convertible_to<decltype(inputs.first), Features>;
  requires std::convertible_to<decltype(inputs.second), Weights>;
};

template <class T>
using ElementOf =
    std::remove_cvref_t<decltype(*std::begin(std::declval<T&>()))>;

/// Checks the arguments of prefetch(). Each mistake gives one error, because the code
/// that needs correct arguments is not compiled then.
template <class Source, class Embedding, class FeaturesOf>
constexpr bool check_prefetch() {
  constexpr bool is_source = IsBatchRange<Source>;
  constexpr bool is_layer = HasPendingForward<Embedding>;
  static_assert(
      is_source,
      "[prefetch] the source is no range. Pass batches that a range-based for loop can read.");
  static_assert(
      is_layer,
      "[prefetch] the layer has no begin_forward(). Pass a TPUEmbedding or a PartialTPUEmbedding.");
  if constexpr (is_source && is_layer) {
    constexpr bool is_callable =
        std::invocable<FeaturesOf&, ElementOf<Source>&>;
    static_assert(
        is_callable,
        "[prefetch] features_of can't be called with a batch of the source. Pass a function whose only parameter is a batch, such as [](const Batch& batch) { ... }.");
    if constexpr (is_callable) {
      constexpr bool has_features =
          HasFeatures<std::invoke_result_t<FeaturesOf&, ElementOf<Source>&>>;
      static_assert(
          has_features,
          "[prefetch] features_of must return Features, or a pair of Features and Weights, but returns another type. Return for example Features{{\"user\", batch.users}}.");
      return has_features;
    }
  }
  return false;
}

/// A range over the batches of `source` with their activations. While the loop body
/// processes a batch, the rows of the next batch are looked up.
template <class Source, class Embedding, class FeaturesOf>
class Prefetch {
  using SourceIterator = decltype(std::begin(std::declval<Source&>()));
  using Pending = decltype(std::declval<Embedding&>()->begin_forward(
      std::declval<const Features&>()));
  using Batch = std::remove_cvref_t<decltype(*std::declval<SourceIterator&>())>;

 public:
  struct Item {
    Batch batch;
    Nest<at::Tensor> activations;
  };

  Prefetch(Source&& source, Embedding layer, FeaturesOf features_of)
      : source_(std::forward<Source>(source)),
        layer_(std::move(layer)),
        features_of_(std::move(features_of)) {}

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = Item;
    using difference_type = std::ptrdiff_t;

    explicit Iterator(Prefetch& range)
        : range_(&range),
          next_(std::begin(range.source_)),
          end_(std::end(range.source_)) {
      begin_next();
      advance();
    }

    Item& operator*() {
      return *item_;
    }
    Item* operator->() {
      return &*item_;
    }
    Iterator& operator++() {
      advance();
      return *this;
    }
    bool operator==(std::default_sentinel_t) const {
      return !item_.has_value();
    }

   private:
    // Advances the source only when the next batch is needed.
    void begin_next() {
      if (has_read_) {
        ++next_;
        has_read_ = false;
      }
      if (!(next_ != end_)) {
        return;
      }
      batch_.emplace(*next_);
      has_read_ = true;
      const auto inputs = range_->features_of_(*batch_);
      if constexpr (std::is_convertible_v<decltype(inputs), Features>) {
        pending_.emplace(range_->layer_->begin_forward(inputs));
      } else {
        pending_.emplace(
            range_->layer_->begin_forward(inputs.first, inputs.second));
      }
    }

    // The pending batch becomes the item, and the lookup of the next batch begins. An
    // error of the next batch is raised after the loop body has used this item.
    void advance() {
      item_.reset();
      if (error_ != nullptr) {
        std::rethrow_exception(error_);
      }
      if (!pending_) {
        return;
      }
      auto activations = range_->layer_->finish_forward(std::move(*pending_));
      item_.emplace(Item{std::move(*batch_), std::move(activations)});
      pending_.reset();
      batch_.reset();
      try {
        begin_next();
      } catch (...) {
        pending_.reset();
        error_ = std::current_exception();
      }
    }

    Prefetch* range_;
    SourceIterator next_;
    decltype(std::end(std::declval<Source&>())) end_;
    bool has_read_ = false;  // whether *next_ has been read
    std::optional<Batch> batch_;  // the batch of pending_
    std::optional<Pending> pending_;
    std::exception_ptr error_;
    std::optional<Item> item_;
  };

  /// Reads the first two batches. Call it once.
  Iterator begin() & {
    return Iterator(*this);
  }
  std::default_sentinel_t end() const {
    return {};
  }

 private:
  Source source_;
  Embedding layer_;
  FeaturesOf features_of_;
};

}  // namespace detail

// snippet: tests/docs/reference_layers_test.cpp prefetch
/// Pipelines lookups and training over any data source:
///
///   const auto features_of = [](const Batch& batch) {
///     return Features{{"user", batch.users}};
///   };
///   for (auto& [batch, activations] : prefetch(batches, embedding, features_of)) {
///     optimizer.zero_grad();
///     loss_of(tower->forward(activations["user"]), batch.labels).backward();
///     optimizer.step();
///   }
///
/// `features_of` returns a batch's features, or a pair of features and weights. In
/// training on a fused strategy, the activations of a batch are one step stale: they are
/// looked up before the update of the previous batch. An rvalue `source` is moved into
/// the range; any other must outlive the loop. `layer` is a TPUEmbedding or a
/// PartialTPUEmbedding. Returns a range, which can be read once.
template <class Source, class Embedding, class FeaturesOf>
auto prefetch(Source&& source, Embedding layer, FeaturesOf features_of) {
  if constexpr (detail::check_prefetch<Source, Embedding, FeaturesOf>()) {
    return detail::Prefetch<Source, Embedding, FeaturesOf>(
        std::forward<Source>(source), std::move(layer), std::move(features_of));
  } else {
    return std::initializer_list<std::pair<int, Nest<at::Tensor>>>{};
  }
}

}  // namespace tessera
