// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/reader_iterator.h>

#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace tessera::data {

class BatchStage;  // private

// snippet: tests/docs/reference_dataset_test.cpp MapContext
/// Tells a function of map() where in the epoch its examples are:
///
///   const auto add_epoch = [](Columns batch, const MapContext& context) {
///     const int64_t size = batch.batch_size();
///     batch.add("epoch", {.values = torch::full({size}, context.epoch)});
///     return batch;
///   };
///   const Batches batches = dataset.batch({.size = 256}).map(add_epoch);
struct MapContext {
  int64_t epoch = 0;
  /// The number of the first example, counted from 0 in the order of the epoch.
  int64_t first_row = 0;
  /// True if the examples are a whole batch. If false, their number depends on the source,
  /// and the result for an example must not depend on the others.
  bool is_batch = false;

  bool operator==(const MapContext&) const = default;
};

/// A function for map(): `Columns (Columns)` or `Columns (Columns, const MapContext&)`.
template <class T>
concept ColumnsMap =
    std::is_invocable_r_v<Columns, T&, Columns, const MapContext&> ||
    std::is_invocable_r_v<Columns, T&, Columns>;

namespace detail {

using MapFunction = std::function<Columns(Columns, const MapContext&)>;

template <class Map>
MapFunction to_map_function(Map map) {
  if constexpr (
      std::is_invocable_r_v<Columns, Map&, Columns, const MapContext&>) {
    return MapFunction(std::move(map));
  } else {
    std::function<Columns(Columns)> function(std::move(map));
    if (function == nullptr) {
      return nullptr;
    }
    return [function = std::move(function)](
               Columns columns, const MapContext&) -> Columns {
      return function(std::move(columns));
    };
  }
}

}  // namespace detail

/// A place between two batches. Save it to continue there later.
struct BatchPosition {
  int64_t epoch = 0;
  /// The number of batches of this epoch before the place.
  int64_t batch = 0;

  bool operator==(const BatchPosition&) const = default;
};

// snippet: tests/docs/reference_dataset_test.cpp BatchReader
/// Reads the batches of one epoch. Batches::operator() and resume() return it.
///
///   BatchReader reader = batches(0);
///   std::optional<Columns> first = reader.next();
///   const BatchPosition position = reader.position();
///   // Later, or in another process:
///   for (Columns& batch : batches.resume(position)) {
///     train(batch);
///   }
///
/// Errors:  those of the source, and of the functions of filter() and map(). After an
///          error, next() raises the same error again. c10::Error from each member of a
///          reader that was moved from.
/// Not thread safe.
class BatchReader {
 public:
  BatchReader(std::shared_ptr<const BatchStage> stage, int64_t epoch);
  BatchReader(BatchReader&&) noexcept;
  BatchReader& operator=(BatchReader&&) noexcept;
  /// A reader may be destroyed before all batches are read. With prefetch(), the
  /// destructor waits until the thread has finished its current batch.
  ~BatchReader();

  /// The next batch, or nullopt after the last one. The caller owns its tensors.
  std::optional<Columns> next();

  /// Skips the next batches without reading their examples, if all steps before batch()
  /// know how many examples they have. After filter(), it reads what it skips. Returns
  /// the number of skipped batches, which is smaller than `count` at the end.
  /// Errors:  c10::ValueError if count < 0.
  int64_t skip(int64_t count);

  /// The number of batches in the epoch. Unset if it is not known before they are read.
  std::optional<int64_t> size() const;
  BatchPosition position() const;

  using Iterator = detail::ReaderIterator<BatchReader, Columns>;

  /// Iterates over the remaining batches.
  Iterator begin() {
    return Iterator(*this);
  }
  std::default_sentinel_t end() const {
    return {};
  }

 private:
  struct State;
  State& state() const;

  std::unique_ptr<State> state_;
};

// snippet: tests/docs/reference_dataset_test.cpp Batches
/// The batches of a Dataset, for any number of epochs. fit(), make_pass() and prefetch()
/// read them. A copy shares the data.
///
///   const Batches batches = dataset.shuffle({.buffer = 100'000, .seed = 1})
///                               .batch({.size = 256})
///                               .prefetch(2);
///   for (int64_t epoch = 0; epoch < 2; ++epoch) {
///     for (Columns& batch : batches(epoch)) {
///       train(batch);
///     }
///   }
///
/// The batches of an epoch are always the same. They depend neither on the number of
/// threads nor on how many examples the source returns at once.
class Batches {
 public:
  explicit Batches(std::shared_ptr<const BatchStage> stage);
  // A move would leave an object without data behind.
  Batches(const Batches&) = default;
  Batches& operator=(const Batches&) = default;

  /// Applies a function to each batch. The function may add, change and remove columns,
  /// and may change the number of examples. Different readers may call the function at
  /// the same time, and prefetch() calls it on another thread. A training resumes exactly
  /// only if the result depends on nothing but the arguments.
  template <ColumnsMap Map>
  Batches map(Map map) const {
    return map_with(detail::to_map_function(std::move(map)));
  }

  /// Reads batches ahead. Each reader has a thread, which fills a queue of up to `count`
  /// batches. Errors are raised by next(), after the batches before them.
  /// Errors:  c10::ValueError unless count is in [1, 65536].
  Batches prefetch(int64_t count) const;

  /// The number of batches in an epoch. Unset if it is not known before they are read.
  std::optional<int64_t> size() const;

  /// A reader of the batches of an epoch.
  /// Errors:  c10::ValueError if epoch < 0.
  BatchReader operator()(int64_t epoch) const;

  /// A reader that continues at a position of an earlier reader.
  /// Errors:  c10::ValueError for a negative epoch or batch, or if the epoch has fewer
  ///          batches.
  BatchReader resume(const BatchPosition& position) const;

 private:
  Batches map_with(detail::MapFunction map) const;

  std::shared_ptr<const BatchStage> stage_;
};

}  // namespace tessera::data
