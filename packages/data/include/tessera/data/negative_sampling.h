// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/dataset.h>

#include <cstdint>
#include <memory>
#include <string>

namespace tessera::data {

/// The distribution of the negatives.
enum class NegativeDistribution {
  /// Each item has the same probability.
  kUniform,
  /// The probability of an item is proportional to count^power.
  kPopularity,
  /// The items of the other examples in the batch, each example with the same
  /// probability. An example gets no negatives if the batch has no allowed item.
  kInBatch
};

/// Items that are never drawn as negatives.
enum class ExcludedItems {
  kNone,
  /// The item of the example.
  kOwn,
  /// The item of the example, and all items of its user in the dataset of the sampler.
  kKnown
};

// snippet: tests/docs/reference_dataset_test.cpp NegativeSampler
/// Adds randomly drawn items to each example as negatives, for data that has clicks but no
/// rejections. Set `excluded` to kKnown to leave out all items of the user.
///
///   const NegativeSampler negatives(
///       train,
///       {.item = "item",
///        .user = "user",
///        .distribution = NegativeDistribution::kPopularity,
///        .excluded = ExcludedItems::kKnown,
///        .num_negatives = 4});
///   const Batches batches =
///       train.shuffle({.buffer = 100'000}).batch({.size = 256}).map(negatives);
///
/// Except with kInBatch, the candidates are the distinct items of the dataset from which
/// the sampler is made. Candidates are drawn with replacement. Excluded items are never
/// drawn, and the probabilities of the others keep their ratios.
///
/// The negatives of an example depend only on the seed, the epoch, the number of the
/// example in the epoch, its item and its user, and with kInBatch on its batch.
///
/// The constructor reads the dataset once. A copy shares the data. Thread safe.
/// Errors:  c10::ValueError for options that are not valid, for a dataset without
///          examples, for columns that are missing or have lists, and for missing items;
///          c10::TypeError for columns of another kind.
class NegativeSampler {
 public:
  /// The negatives that a sampler draws, and the columns that it reads.
  struct Options {
    /// The column with the item, one integer or text per example.
    std::string item = "item";
    /// The column with the user, one integer or text per example. Needed for kKnown.
    std::string user = {};
    /// The new column with the list of negatives of each example.
    std::string output = "negatives";
    NegativeDistribution distribution = NegativeDistribution::kUniform;
    ExcludedItems excluded = ExcludedItems::kOwn;
    /// The number of negatives of each example, in [1, 65536]. They may repeat.
    int64_t num_negatives = 1;
    /// The exponent of the counts of kPopularity, in [0, 16].
    double power = 0.75;
    int64_t seed = 0;

    bool operator==(const Options&) const = default;
  };

  NegativeSampler(const Dataset& positives, Options options);

  /// Adds the column `output`, for Batches::map() and Dataset::map().
  /// Errors:  c10::ValueError if the column exists; with kInBatch, if the examples are not
  ///          a whole batch; otherwise, if all items are excluded for an example.
  Columns operator()(Columns examples, const MapContext& context) const;

  /// The negatives of examples: a list for each example, of the kind of the item column.
  /// Errors:  those of operator(), except that the column `output` may exist.
  Column sample(const Columns& examples, const MapContext& context) const;

  /// The number of distinct items.
  int64_t num_items() const;
  const Options& options() const&;
  Options options() const&&;

 private:
  struct Items;

  std::shared_ptr<const Items> items_;
};

}  // namespace tessera::data
