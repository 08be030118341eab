// SPDX-License-Identifier: Apache-2.0
#include "examples/click_logs/criteo_generator.h"

#include "examples/click_logs/text_file_writer.h"
#include "src/common/check.h"
#include "src/common/random_key.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <utility>

namespace click_logs {

namespace {

using tessera::mix_bits;

constexpr size_t kIntegers = 13;
constexpr size_t kCategories = 26;
constexpr int64_t kOne = 1 << 16;  // 1.0
constexpr int64_t kMissingInteger = -1;  // the position of a missing integer

// Returns random bits that depend only on the arguments.
uint64_t hash(int64_t seed, uint64_t purpose, uint64_t column, uint64_t item) {
  uint64_t value =
      mix_bits(static_cast<uint64_t>(seed) + 0x9e3779b97f4a7c15ULL);
  value = mix_bits(value ^ (purpose << 56) ^ (column << 40));
  return mix_bits(value + item * 0x9e3779b97f4a7c15ULL);
}

enum Purpose : uint64_t {
  kExample = 1,
  kCategoryName,
  kCategoryEffect,
  kCategorySlope,
  kHiddenNumber,
  kOtherHiddenNumber,
  kIntegerSlope,
  kIntegerBend,
  kMissingEffect
};

class RandomBits {
 public:
  explicit RandomBits(uint64_t state) : state_(state) {}
  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15ULL;
    return mix_bits(state_);
  }

 private:
  uint64_t state_;
};

// Returns a nearly normal number with mean 0: a sum of four uniform numbers.
int32_t normal(uint64_t bits, double deviation) {
  constexpr double kDeviationOfSum = 0.57735026918962573;
  int64_t sum = -2 * (kOne - 1);
  for (int i = 0; i < 4; ++i) {
    sum += static_cast<int64_t>(bits >> (16 * i) & 0xffff);
  }
  return static_cast<int32_t>(
      std::llround(static_cast<double>(sum) * (deviation / kDeviationOfSum)));
}

int64_t multiply(int64_t left, int64_t right) {
  return left * right / kOne;
}

uint64_t hexadecimal(uint32_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::array<char, 8> text;
  for (size_t i = 0; i < text.size(); ++i) {
    text[i] = kDigits[value >> (28 - 4 * i) & 15];
  }
  return std::bit_cast<uint64_t>(text);
}

// The finaliser of Murmur3. It is one-to-one, so no two categories of a column have the
// same name.
uint32_t scatter(uint32_t value) {
  value = (value ^ (value >> 16)) * 0x85ebca6bU;
  value = (value ^ (value >> 13)) * 0xc2b2ae35U;
  return value ^ (value >> 16);
}

double click_probability(int64_t logit) {
  return 1.0 /
      (1.0 + std::exp(-static_cast<double>(logit) / static_cast<double>(kOne)));
}

// The popularities of `size` categories: proportional to 1 / k, with mean 1.
std::vector<double> popularities(size_t size) {
  std::vector<double> weights(size);
  double sum = 0.0;
  for (size_t k = 0; k < size; ++k) {
    weights[k] = 1.0 / static_cast<double>(k + 1);
    sum += weights[k];
  }
  for (double& weight : weights) {
    weight *= static_cast<double>(size) / sum;
  }
  return weights;
}

void append_integer(int64_t value, std::string& text) {
  std::array<char, 24> digits;
  const auto end =
      std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr;
  text.append(digits.data(), end);
}

void check_option(const char* name, double value, double low, double high) {
  TESSERA_CHECK_VALUE(
      value >= low && value <= high,
      "[CriteoGenerator] {} must be in [{}, {}], but got {}. Correct the option.",
      name,
      low,
      high,
      value);
}

void validate(const CriteoGeneratorOptions& options) {
  TESSERA_CHECK_VALUE(
      options.examples >= 0,
      "[CriteoGenerator] examples must be >= 0, but got {}. Correct the option.",
      options.examples);
  TESSERA_CHECK_VALUE(
      options.first_example >= 0,
      "[CriteoGenerator] first_example must be >= 0, but got {}. Correct the option.",
      options.first_example);
  TESSERA_CHECK_VALUE(
      options.first_example <=
          std::numeric_limits<int64_t>::max() - options.examples,
      "[CriteoGenerator] first_example must be at most 2^63 - 1 - examples, but got {} with {} examples. Lower one of them.",
      options.first_example,
      options.examples);
  TESSERA_CHECK_VALUE(
      options.vocabulary_sizes.size() == kCategories,
      "[CriteoGenerator] expected {} vocabulary_sizes, one per column, but got {}. Pass one for each column.",
      kCategories,
      options.vocabulary_sizes.size());
  for (const int64_t size : options.vocabulary_sizes) {
    check_option("vocabulary_sizes", static_cast<double>(size), 1, 1e7);
  }
  check_option("missing_rate", options.missing_rate, 0, 1);
  check_option("effect_strength", options.effect_strength, 0, 10);
  TESSERA_CHECK_VALUE(
      options.click_rate > 0 && options.click_rate < 1,
      "[CriteoGenerator] click_rate must be in (0, 1), but got {}. Correct the option.",
      options.click_rate);
}

}  // namespace

struct CriteoGenerator::Example {
  std::array<int64_t, kIntegers> integers;
  // The logarithm of each integer, scaled to [0, 1), or kMissingInteger.
  std::array<int64_t, kIntegers> positions;
  std::array<uint32_t, kCategories> categories;
  uint64_t chance;
};

CriteoGenerator::CriteoGenerator(CriteoGeneratorOptions options)
    : options_(std::move(options)) {
  validate(options_);
  make_integer_columns();
  make_category_columns();
  choose_products();
  choose_bias();
}

void CriteoGenerator::make_integer_columns() {
  for (uint64_t i = 0; i < kIntegers; ++i) {
    const auto effect = [&](uint64_t purpose, double deviation) {
      return normal(
          hash(options_.seed, purpose, i, 0),
          options_.effect_strength * deviation);
    };
    integer_columns_.push_back(
        {.bits = static_cast<int64_t>(4 + i),
         .shift = i == 1 ? 3 : 0,  // the second column also has negative values
         .slope = effect(kIntegerSlope, 0.9),
         .bend = i % 4 == 2 ? effect(kIntegerBend, 0.8) : 0,
         .missing_effect = effect(kMissingEffect, 0.3)});
  }
}

void CriteoGenerator::make_category_columns() {
  for (uint64_t i = 0; i < kCategories; ++i) {
    const auto size = static_cast<size_t>(options_.vocabulary_sizes[i]);
    CategoryColumn column;
    // The more categories, the smaller are their effects, because most categories have
    // too few examples to learn a large effect.
    const auto bits = static_cast<double>(std::bit_width(size));
    const double deviation = options_.effect_strength * 6.0 / (bits * bits);
    const double hidden = std::sqrt(options_.effect_strength);
    const auto name_key =
        static_cast<uint32_t>(hash(options_.seed, kCategoryName, i, 0));
    for (uint64_t k = 0; k <= size; ++k) {
      const auto number = [&](uint64_t purpose, double spread) {
        return normal(hash(options_.seed, purpose, i, k), spread);
      };
      column.categories.push_back(
          {.text = hexadecimal(scatter(static_cast<uint32_t>(k) ^ name_key)),
           .effect = number(kCategoryEffect, deviation),
           .slope = number(kCategorySlope, 0.25 * options_.effect_strength),
           .hidden = {
               number(kHiddenNumber, 0.25 * hidden),
               number(kOtherHiddenNumber, 0.25 * hidden)}});
    }

    column.slots = make_slots(popularities(size));
    category_columns_.push_back(std::move(column));
  }
}

std::vector<CriteoGenerator::Slot> CriteoGenerator::make_slots(
    std::vector<double> weights) {
  std::vector<Slot> slots(weights.size());
  std::vector<uint32_t> small;
  std::vector<uint32_t> large;
  for (uint32_t k = 0; k < slots.size(); ++k) {
    slots[k] = {.threshold = 0xffffffff, .other = k};
    (weights[k] < 1.0 ? small : large).push_back(k);
  }
  while (!small.empty() && !large.empty()) {
    const uint32_t filled = small.back();
    const uint32_t donor = large.back();
    small.pop_back();
    slots[filled] = {
        .threshold = static_cast<uint32_t>(weights[filled] * 4294967296.0),
        .other = donor};
    weights[donor] -= 1.0 - weights[filled];
    if (weights[donor] < 1.0) {
      large.pop_back();
      small.push_back(donor);
    }
  }
  return slots;
}

void CriteoGenerator::choose_products() {
  std::array<size_t, kCategories> by_size;
  std::iota(by_size.begin(), by_size.end(), 0);
  std::stable_sort(by_size.begin(), by_size.end(), [&](size_t a, size_t b) {
    return options_.vocabulary_sizes[a] < options_.vocabulary_sizes[b];
  });
  for (size_t i = 0; i < 8; i += 2) {
    category_pairs_.push_back({by_size[i], by_size[i + 1]});
  }
  for (size_t i = 0; i < 3; ++i) {
    integer_category_pairs_.push_back({2 * i, by_size[2 * i]});
  }
}

// Chooses the bias so that a sample has the mean click rate of the options.
void CriteoGenerator::choose_bias() {
  constexpr int64_t kSample = 8192;
  std::vector<int64_t> logits;
  for (int64_t i = 0; i < kSample; ++i) {
    logits.push_back(logit_of(make_example(-1 - i)));
  }
  int64_t low = -1000 * kOne;
  int64_t high = 1000 * kOne;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    double sum = 0.0;
    for (const int64_t logit : logits) {
      sum += click_probability(logit + middle);
    }
    if (sum < options_.click_rate * static_cast<double>(kSample)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  bias_ = low;
}

CriteoGenerator::Example CriteoGenerator::make_example(int64_t number) const {
  Example example;
  RandomBits random(
      hash(options_.seed, kExample, 0, static_cast<uint64_t>(number)));
  const auto missing_below =
      static_cast<uint64_t>(std::llround(options_.missing_rate * kOne));
  uint64_t missing_bits = 0;
  const auto is_missing = [&](size_t column) {
    if (column % 4 == 0) {
      missing_bits = random.next();
    }
    return (missing_bits >> (column % 4 * 16) & 0xffff) < missing_below;
  };
  for (size_t i = 0; i < kIntegers; ++i) {
    const IntegerColumn& column = integer_columns_[i];
    const uint64_t bits = random.next();
    // The integer is 2^uniform, rounded down. Its logarithm is interpolated linearly
    // between powers of two.
    const auto power = static_cast<int64_t>((bits >> 32) * column.bits >> 32);
    const int64_t value =
        ((kOne + static_cast<int64_t>(bits & 0xffff)) << power) / kOne;
    const int64_t logarithm = power * kOne +
        (value - (int64_t{1} << power)) * kOne / (int64_t{1} << power);
    example.integers[i] = value - 1 - column.shift;
    example.positions[i] =
        is_missing(i) ? kMissingInteger : logarithm / column.bits;
  }
  for (size_t i = 0; i < kCategories; ++i) {
    const std::vector<Slot>& slots = category_columns_[i].slots;
    const uint64_t bits = random.next();
    const auto own = static_cast<uint32_t>((bits >> 32) * slots.size() >> 32);
    const Slot& slot = slots[own];
    example.categories[i] = is_missing(i) ? static_cast<uint32_t>(slots.size())
        : static_cast<uint32_t>(bits) <= slot.threshold ? own
                                                        : slot.other;
  }
  example.chance = random.next();
  return example;
}

int64_t CriteoGenerator::logit_of(const Example& example) const {
  int64_t logit = bias_;
  for (size_t i = 0; i < kIntegers; ++i) {
    const IntegerColumn& column = integer_columns_[i];
    const int64_t position = example.positions[i];
    logit += position == kMissingInteger
        ? column.missing_effect
        : multiply(column.slope, position - kOne / 2) +
            multiply(column.bend, std::abs(position - kOne / 2) - kOne / 4);
  }
  const auto category = [&](size_t column) -> const Category& {
    return category_columns_[column].categories[example.categories[column]];
  };
  for (size_t i = 0; i < kCategories; ++i) {
    logit += category(i).effect;
  }
  for (const auto& [left, right] : category_pairs_) {
    const auto& a = category(left).hidden;
    const auto& b = category(right).hidden;
    logit += multiply(a[0], b[0]) + multiply(a[1], b[1]);
  }
  for (const auto& [integer, column] : integer_category_pairs_) {
    const int64_t position = example.positions[integer];
    if (position != kMissingInteger) {
      logit += multiply(category(column).slope, position - kOne / 2);
    }
  }
  return logit;
}

float CriteoGenerator::append_line(int64_t number, std::string& text) const {
  TESSERA_CHECK_VALUE(
      number >= 0,
      "[CriteoGenerator] expected the number of an example, >= 0, but got {}. Count examples from 0.",
      number);
  const Example example = make_example(number);
  // Rounds to 24 bits, which float32 can hold, because the exp() of different libraries
  // differs in the last of 53 bits.
  constexpr double kSteps = 1 << 24;
  const double probability =
      std::nearbyint(click_probability(logit_of(example)) * kSteps);
  const bool is_click = static_cast<double>(example.chance >> 40) < probability;
  text.push_back(is_click ? '1' : '0');
  for (size_t i = 0; i < kIntegers; ++i) {
    text.push_back('\t');
    if (example.positions[i] != kMissingInteger) {
      append_integer(example.integers[i], text);
    }
  }
  for (size_t i = 0; i < kCategories; ++i) {
    text.push_back('\t');
    const CategoryColumn& column = category_columns_[i];
    if (example.categories[i] < column.slots.size()) {
      const auto digits = std::bit_cast<std::array<char, 8>>(
          column.categories[example.categories[i]].text);
      text.append(digits.data(), digits.size());
    }
  }
  text.push_back('\n');
  return static_cast<float>(probability / kSteps);
}

at::Tensor CriteoGenerator::write(const std::string& path) const {
  constexpr size_t kBufferBytes = 1 << 18;
  // Allocated first, so that no file is created if there is not enough memory.
  at::Tensor probabilities = at::empty({options_.examples}, at::kFloat);
  float* probability = probabilities.mutable_data_ptr<float>();
  TextFileWriter file(path, "[CriteoGenerator]");
  std::string text;
  for (int64_t i = 0; i < options_.examples; ++i) {
    probability[i] = append_line(options_.first_example + i, text);
    if (text.size() >= kBufferBytes) {
      file.write(text);
      text.clear();
    }
  }
  file.write(text);
  file.finish();
  return probabilities;
}

}  // namespace click_logs
