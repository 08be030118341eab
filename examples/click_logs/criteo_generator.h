// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace click_logs {

/// Options of generated clicks in the format of the Criteo click logs.
struct CriteoGeneratorOptions {
  /// The number of examples, >= 0, which start at first_example. A test set has the seed
  /// of its training set and starts after it. The sum of both options is below 2^63.
  int64_t examples = 100'000;
  int64_t first_example = 0;
  int64_t seed = 1;
  /// The number of categories in each of the 26 columns, in [1, 10 million]. The
  /// frequency of the k-th category is proportional to 1 / k.
  std::vector<int64_t> vocabulary_sizes = {
      100, 50,  600, 400, 60,  20,  200, 80,  10, 300, 150, 500, 120,
      25,  160, 400, 12,  150, 100, 10,  500, 18, 15,  300, 40,  250};
  /// The fraction of integers and categories that are empty, in [0, 1].
  double missing_rate = 0.05;
  /// Multiplies all effects, in [0, 10]. With 0, clicks are pure chance. With 1, the best
  /// model has an AUC of about 0.8.
  double effect_strength = 1.0;
  /// Mean click probability, in (0, 1).
  double click_rate = 0.25;

  bool operator==(const CriteoGeneratorOptions&) const = default;
};

/// Generates examples with known click probabilities, so that a model can be compared
/// with the best possible one. Each example is a function of the seed and its number.
///
///   logit = bias + effects + products
///
/// Each category, each missing value and the logarithm of each integer has an effect.
/// That of a logarithm is linear; in some columns its slope changes in the middle. The
/// products are those of two hidden numbers of each category, between pairs of the
/// columns with the fewest categories, and those of a category and an integer.
///
/// Errors:  c10::ValueError for options out of range.
class CriteoGenerator {
 public:
  explicit CriteoGenerator(CriteoGeneratorOptions options = {});

  /// Appends the line of an example, with its newline. Returns the click probability from
  /// which the label was drawn.
  float append_line(int64_t example, std::string& text) const;

  /// Writes the examples to a file, which is compressed if its name ends in .gz. Until it
  /// is complete, the file is at path + ".tmp-tessera".
  /// Returns the click probabilities, float32 [examples].
  /// Errors:  c10::ValueError if the file can't be written; an existing file stays.
  at::Tensor write(const std::string& path) const;

  const CriteoGeneratorOptions& options() const {
    return options_;
  }

 private:
  // Effects are integers in units of 2^-16, so that sums are equal on all machines.
  struct Category {
    uint64_t text = 0;  // 8 hexadecimal digits
    int32_t effect = 0;
    int32_t slope = 0;  // the factor of an integer in products
    std::array<int32_t, 2> hidden = {};
  };
  // Walker's alias method: a slot gives its own category or `other`.
  struct Slot {
    uint32_t threshold = 0;
    uint32_t other = 0;
  };
  struct CategoryColumn {
    std::vector<Category>
        categories;  // [vocab + 1]; the last is a missing value
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

  // Returns a slot for each weight. The weights have mean 1.
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
