// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <tessera/data/columns.h>
#include <tessera/data/transforms.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace tessera::data {

/// Which of the counted values a vocabulary keeps.
struct VocabularyLimits {
  /// Values seen less often are left out.
  int64_t min_count = 1;
  /// At most so many, the most frequent. Keras's max_tokens counts the ids of
  /// missing and unknown values, too; this doesn't.
  std::optional<int64_t> max_size = {};

  bool operator==(const VocabularyLimits&) const = default;
};

/// Counts the values of a column, batch by batch, and makes a vocabulary of them.
///
///   VocabularyBuilder builder("C3");
///   while (auto batch = reader.next()) builder.add(to_columns(*batch).at("C3"));
///   transforms::Vocabulary site = builder.finish({.min_count = 10});
///
/// Missing values are not counted. Memory grows with the different values: about
/// 24 to 48 bytes for an integer, 80 bytes and the text for text.
/// Errors:  c10::Error from each member of a builder that was moved from.
class VocabularyBuilder {
 public:
  VocabularyBuilder();
  /// Errors name `column`.
  explicit VocabularyBuilder(std::string column);
  ~VocabularyBuilder();
  VocabularyBuilder(VocabularyBuilder&&) noexcept;
  VocabularyBuilder& operator=(VocabularyBuilder&&) noexcept;

  /// Errors:  c10::TypeError for floats, and for text among integers.
  void add(const Column& column);

  /// Adds what another one has counted: one for each thread or file, then one.
  /// Errors:  c10::TypeError when one has text and the other integers.
  void merge(const VocabularyBuilder& other);

  const std::string& column() const {
    return column_;
  }
  /// Different values so far.
  int64_t size() const;

  /// The frequent values first; of equally frequent ones the larger first, as in
  /// Keras, text being ordered by its bytes. The order of add() doesn't matter.
  /// Errors:  c10::ValueError for limits < 1, or when no value is left.
  transforms::Vocabulary finish(const VocabularyLimits& limits = {}) const;

 private:
  struct Counts;
  // Errors:  c10::Error for a builder that was moved from.
  Counts& counts() const;
  // How errors begin.
  std::string where() const;

  std::string column_;
  std::unique_ptr<Counts> counts_;
};

}  // namespace tessera::data
