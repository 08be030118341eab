// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/dataset.h>
#include <tessera/data/transforms.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::data {

namespace detail {

/// Which of the counted values a vocabulary keeps.
struct VocabularyLimits {
  /// Values that occur less often are left out. With 1, no value is left out. Training
  /// then has no unknown values, so their row keeps its initial vector, which is zeros in
  /// a table of FeaturePipeline::make_table(). With 2, the values that occur once train
  /// this row. This pays off if new values behave unlike the others.
  int64_t min_count = 1;
  /// The maximum number of values. The most frequent ones are kept. Unlike Keras's
  /// max_tokens, this does not count the ids of missing and unknown values.
  std::optional<int64_t> max_size = {};

  bool operator==(const VocabularyLimits&) const = default;
};

}  // namespace detail

// snippet: tests/docs/reference_data_test.cpp VocabularyBuilder
/// Counts the values of a column, batch by batch, and makes a vocabulary of them.
///
///   VocabularyBuilder builder("C3");
///   while (const auto batch = reader.next()) {
///     builder.add(to_columns(*batch).at("C3"));
///   }
///   const transforms::Vocabulary site =
///       builder.finish({.min_count = 2, .max_size = 50'000});
///
/// Missing values are not counted. The memory grows with the number of different values:
/// about 48 to 96 bytes for an integer, and 80 bytes plus the text for a text.
/// Errors:  c10::Error from add(), merge(), size() and finish() of a builder that was
///          moved from.
class VocabularyBuilder {
 public:
  VocabularyBuilder();
  /// `column` is the name that errors mention.
  explicit VocabularyBuilder(std::string column);
  ~VocabularyBuilder();
  VocabularyBuilder(VocabularyBuilder&&) noexcept;
  VocabularyBuilder& operator=(VocabularyBuilder&&) noexcept;

  /// Counts the values of a column.
  /// Errors:  c10::TypeError for floats, and if text and integers are mixed.
  void add(const Column& column);

  /// Adds the counts of another builder. Threads can each use a builder and merge them.
  /// Errors:  c10::TypeError if one builder has text and the other has integers.
  void merge(const VocabularyBuilder& other);

  std::string column() const {
    return column_;
  }
  /// The number of different values so far.
  int64_t size() const;

  /// Makes the vocabulary. The most frequent values come first. Among equally frequent
  /// values, the larger come first, as in Keras; text is ordered by its bytes. The order
  /// of the calls of add() does not matter.
  /// Errors:  c10::ValueError for limits < 1, or if no value is left.
  transforms::Vocabulary finish(
      const detail::VocabularyLimits& limits = {}) const;

 private:
  struct Counts;
  // Errors:  c10::Error for a builder that was moved from.
  Counts& counts() const;
  // Error messages begin with this text.
  std::string where() const;

  std::string column_;
  std::unique_ptr<Counts> counts_;
};

// snippet: tests/docs/reference_dataset_test.cpp learn_vocabulary
/// The vocabulary of a column of a dataset, which is read once.
///
///   const transforms::Vocabulary items =
///       learn_vocabulary(train, "item", {.min_count = 2});
///
/// With min_count = 1, training has no unknown values. See detail::VocabularyLimits.
///
/// Errors:  those of the dataset and of a VocabularyBuilder; c10::ValueError if there is
///          no such column.
transforms::Vocabulary learn_vocabulary(
    const Dataset& dataset,
    const std::string& column,
    const detail::VocabularyLimits& limits = {});

}  // namespace tessera::data
