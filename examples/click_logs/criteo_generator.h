// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace click_logs {

/// Made-up clicks in the format of the Criteo click logs.
struct CriteoGeneratorOptions {
  /// How many, >= 0, from first_example on: a test set is the same seed's
  /// examples behind those of the training set. Their sum is below 2^63.
  int64_t examples = 100'000;
  int64_t first_example = 0;
  int64_t seed = 1;
  /// Different categories in each of the 26 columns, in [1, 10 million]. The k-th
  /// is as popular as 1 / k.
  std::vector<int64_t> vocabulary_sizes = {
      100, 50,  600, 400, 60,  20,  200, 80,  10, 300, 150, 500, 120,
      25,  160, 400, 12,  150, 100, 10,  500, 18, 15,  300, 40,  250};
  /// The part of integers and categories that is empty, in [0, 1].
  double missing_rate = 0.05;
  /// Multiplies all effects; 0 makes clicks pure chance, 1 gives the best model
  /// an AUC of about 0.8. In [0, 10].
  double effect_strength = 1.0;
  /// Mean click probability, in (0, 1).
  double click_rate = 0.25;

  bool operator==(const CriteoGeneratorOptions&) const = default;
};

/// Examples whose true click probability is known, so that a model can be held
/// against the best possible one. Each is a function of the seed and its number.
///
///   logit = bias + sum of effects: of each integer (of its logarithm, bent in
///           some columns), of each category and of each missing value; and
///           products: of two hidden numbers of each category, between pairs of
///           the columns with the fewest categories, and of a category with an
///           integer
///
/// Errors:  c10::ValueError for options out of range.
class CriteoGenerator {
 public:
  explicit CriteoGenerator(CriteoGeneratorOptions options = {});

  /// Appends the line of an example, with its newline, and gives the probability
  /// of the click that the label was drawn with.
  float append_line(int64_t example, std::string& text) const;

  /// Writes the examples to a file, compressed when its name ends in .gz.
  /// Until it is complete, it is beside the path, as path + ".tmp-tessera".
  /// Returns the click probabilities, float32 [examples].
  /// Errors:  c10::ValueError when the file can't be written; what was there
  ///          before stays.
  at::Tensor write(const std::string& path) const;

  const CriteoGeneratorOptions& options() const {
    return options_;
  }

 private:
  // Effects are integers, in units of 2^-16: sums are the same on every machine.
  struct Category {
    uint64_t text = 0;  // 8 hexadecimal digits
    int32_t effect = 0;
    int32_t slope = 0;  // of an integer column
    std::array<int32_t, 2> hidden = {};
  };
  // Walker's alias method: a slot gives its own category or another one.
  struct Slot {
    uint32_t threshold = 0;
    uint32_t other = 0;
  };
  struct CategoryColumn {
    std::vector<Category> categories;  // [vocab + 1], the last one: missing
    std::vector<Slot> slots;  // [vocab]
  };
  struct IntegerColumn {
    int64_t bits = 0;
    int64_t shift = 0;
    int32_t slope = 0;
    int32_t bend = 0;
    int32_t missing_effect = 0;
  };
  struct Example;

  // A slot for each weight; they are 1 on average.
  static std::vector<Slot> make_slots(std::vector<double> weights);

  void make_integer_columns();
  void make_category_columns();
  void choose_products();
  void choose_bias();
  Example make_example(int64_t example) const;
  int64_t logit_of(const Example& example) const;

  CriteoGeneratorOptions options_;
  std::vector<IntegerColumn> integer_columns_;
  std::vector<CategoryColumn> category_columns_;
  std::vector<std::array<size_t, 2>> category_pairs_;
  std::vector<std::array<size_t, 2>> integer_category_pairs_;
  int64_t bias_ = 0;
};

}  // namespace click_logs
