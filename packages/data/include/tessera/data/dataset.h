// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/batches.h>
#include <tessera/data/columns.h>
#include <tessera/data/example_source.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

namespace tessera::data {

class RowStage;  // private
struct DatasetAccess;  // private

namespace detail {

/// The options of Dataset::shuffle().
struct ShuffleOptions {
  /// The number of examples in memory that are shuffled together, >= 1.
  int64_t buffer = 0;
  int64_t seed = 0;

  bool operator==(const ShuffleOptions&) const = default;
};

// snippet: tests/docs/reference_dataset_test.cpp CacheOptions
/// The options of Dataset::cache():
///
///   const Dataset cached = dataset.cache({.max_bytes = int64_t{1} << 30});
struct CacheOptions {
  /// The maximum number of bytes of the cached values, >= 1. More bytes are an error.
  int64_t max_bytes = int64_t{4} << 30;

  bool operator==(const CacheOptions&) const = default;
};

/// The options of Dataset::batch().
struct BatchOptions {
  /// The number of examples in a batch, >= 1.
  int64_t size = 0;
  /// If true, the last examples are dropped if they do not fill a batch.
  bool drop_last = false;

  bool operator==(const BatchOptions&) const = default;
};

}  // namespace detail

// snippet: tests/docs/reference_dataset_test.cpp Dataset
/// Examples in files or in memory, and the steps that turn them into batches. Each step
/// returns a new Dataset and changes nothing. A copy shares the data.
///
///   Columns columns;
///   columns.add("user", {.values = torch::tensor({1, 1, 2, 3})});
///   columns.add("price", {.values = torch::tensor({5.0F, 0.5F, 8.0F, 2.0F})});
///   const Dataset dataset(columns);
///   const Dataset expensive = dataset.filter([](const Columns& examples) {
///     return std::get<torch::Tensor>(examples.at("price").values) > 1.0;
///   });
///   for (Columns& batch :
///        expensive.shuffle({.buffer = 1000}).batch({.size = 2})(0)) {
///     train(batch);
///   }
///
/// Nothing is read before a reader is opened, except where a comment says so. The
/// examples and their order depend neither on the number of threads nor on how many
/// examples the source returns at once. Readers of several threads may read one Dataset.
class Dataset {
 public:
  /// Errors:  c10::ValueError if there is no source.
  explicit Dataset(std::shared_ptr<const ExampleSource> source);
  /// The tensors are not copied. Do not change them.
  /// Errors:  c10::ValueError if there are no columns.
  explicit Dataset(Columns columns);
  // A move would leave an object without data behind.
  Dataset(const Dataset&) = default;
  Dataset& operator=(const Dataset&) = default;

  /// Shuffles the examples within blocks of `buffer` consecutive examples. If all
  /// examples fit into one block, each order has the same probability. Otherwise, the
  /// blocks begin at different examples in each epoch. The order depends only on the
  /// options and the epoch. A reader can start anywhere in an epoch, because it only
  /// needs the block of its first example.
  /// Errors:  c10::ValueError if buffer < 1.
  Dataset shuffle(const detail::ShuffleOptions& options) const;

  /// The first `count` examples, or all if there are fewer.
  /// Errors:  c10::ValueError if count < 0.
  Dataset take(int64_t count) const;

  /// All but the first `count` examples.
  /// Errors:  c10::ValueError if count < 0.
  Dataset skip(int64_t count) const;

  /// The examples of this dataset, and then those of `other`. Both must have the same
  /// columns in the same order.
  /// Errors:  c10::ValueError while reading, if the columns differ.
  Dataset concatenate(const Dataset& other) const;

  /// Keeps the examples for which `predicate` returns true. The predicate gets n
  /// consecutive examples and returns bool [n] on the CPU. Its result for an example must
  /// not depend on the other examples. size() of the new dataset is unset.
  /// Errors:  c10::ValueError or c10::TypeError while reading, if the result is not bool
  ///          [n].
  Dataset filter(std::function<at::Tensor(const Columns&)> predicate) const;

  /// Applies a function to consecutive examples. The function may add, change and remove
  /// columns. It must return as many examples as it got. The number of examples per call
  /// is not defined, so the result for an example must not depend on the others. See
  /// Batches::map() for functions of whole batches.
  /// Errors:  c10::ValueError while reading, if the function returns another number of
  ///          examples, or other columns than before.
  template <ColumnsMap Map>
  Dataset map(Map map) const {
    return map_with(detail::to_map_function(std::move(map)));
  }

  /// Keeps the examples of epoch 0 in memory when they are first read. All copies of the
  /// result share them. Call shuffle() after cache(), because a cached order does not
  /// change.
  /// Errors:  c10::ValueError if max_bytes < 1, and while reading, if the values take
  ///          more bytes.
  Dataset cache(const detail::CacheOptions& options = {}) const;

  /// Errors:  c10::ValueError if size < 1.
  Batches batch(const detail::BatchOptions& options) const;

  /// The number of examples. Unset if it is not known before they are read.
  std::optional<int64_t> size() const;

  // snippet: tests/docs/reference_dataset_test.cpp head
  /// The first examples of epoch 0, which this call reads. Print them to see the columns:
  ///
  ///   std::cout << ratings.head(3);
  ///
  /// Errors:  c10::ValueError if count < 0; those of the source.
  Columns head(int64_t count = 5) const;

  /// A reader of the examples of an epoch, beginning at the example with the number
  /// `first`. Do not change the tensors that the reader returns.
  /// Errors:  c10::ValueError if epoch < 0 or first < 0.
  std::unique_ptr<ExampleReader> open(int64_t epoch = 0, int64_t first = 0)
      const;

 private:
  friend struct DatasetAccess;

  explicit Dataset(std::shared_ptr<const RowStage> stage);
  Dataset map_with(detail::MapFunction map) const;

  std::shared_ptr<const RowStage> stage_;
};

}  // namespace tessera::data
