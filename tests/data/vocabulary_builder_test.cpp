// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/vocabulary_builder.h>

#include "tests/data/column_builders.h"
#include "tests/test_util.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <random>

namespace tessera::data {
namespace vocabulary_builder_test {

using namespace test;  // NOLINT(google-build-using-namespace)
using transforms::VocabularyValues;

constexpr int64_t kMax = std::numeric_limits<int64_t>::max();

std::vector<int64_t> skewed(size_t count) {
  std::mt19937_64 random(3);
  std::vector<int64_t> values;
  for (size_t i = 0; i < count; ++i) {
    values.push_back(
        static_cast<int64_t>(random() % (1 + random() % 2000)) * 4096 - 77);
  }
  return values;
}

// Counts and sorts in a simple way.
std::vector<int64_t> reference(
    const std::vector<int64_t>& values,
    int64_t min_count,
    size_t max_size) {
  std::map<int64_t, int64_t> counts;
  for (const int64_t value : values) {
    ++counts[value];
  }
  std::vector<std::pair<int64_t, int64_t>> sorted;
  for (const auto& [value, count] : counts) {
    if (count >= min_count) {
      sorted.emplace_back(count, value);
    }
  }
  std::sort(sorted.rbegin(), sorted.rend());
  sorted.resize(std::min(sorted.size(), max_size));
  std::vector<int64_t> result;
  for (const auto& [count, value] : sorted) {
    result.push_back(value);
  }
  return result;
}

TEST(VocabularyBuilderTest, TakesTheMostFrequentValuesFirst) {
  const std::vector<int64_t> values = skewed(20'000);
  VocabularyBuilder builder;
  builder.add(integers(values));
  EXPECT_EQ(
      builder.finish().values, VocabularyValues(reference(values, 1, 1 << 20)));
  EXPECT_EQ(
      builder.finish({.min_count = 12}).values,
      VocabularyValues(reference(values, 12, 1 << 20)));
  EXPECT_EQ(
      builder.finish({.min_count = 2, .max_size = 100}).values,
      VocabularyValues(reference(values, 2, 100)));
}

TEST(VocabularyBuilderTest, BatchesOrderAndMergingDoNotMatter) {
  std::vector<int64_t> values = skewed(5'000);
  VocabularyBuilder whole;
  whole.add(integers(values));
  std::shuffle(values.begin(), values.end(), std::mt19937_64(5));
  VocabularyBuilder first;
  VocabularyBuilder second;
  for (size_t i = 0; i < values.size(); i += 100) {
    (i % 300 == 0 ? first : second)
        .add(integers({values.begin() + i, values.begin() + i + 100}));
  }
  VocabularyBuilder merged;
  merged.merge(first);
  merged.merge(second);
  merged.merge(VocabularyBuilder());
  EXPECT_EQ(merged.size(), whole.size());
  EXPECT_EQ(merged.finish(), whole.finish());
  EXPECT_NE(first.finish(), whole.finish());
  merged.merge(merged);
  EXPECT_EQ(merged.finish({.min_count = 4}), whole.finish({.min_count = 2}));
}

TEST(VocabularyBuilderTest, DoesNotCountMissingValues) {
  VocabularyBuilder builder;
  builder.add(
      ragged(text({"", "b", std::string("\xff\0", 2), "", "b"}), {0, 2, 5}));
  EXPECT_EQ(builder.size(), 2);
  EXPECT_EQ(
      builder.finish().values,
      VocabularyValues(
          std::vector<std::string>{"b", std::string("\xff\0", 2)}));
  VocabularyBuilder of_integers;
  of_integers.add(integers({kMissing, kMax, kMissing + 1}));
  EXPECT_EQ(
      of_integers.finish().values,
      VocabularyValues(std::vector<int64_t>{kMax, kMissing + 1}));
}

TEST(VocabularyBuilderTest, EqualCountsAreOrderedByBytes) {
  VocabularyBuilder builder;
  builder.add(text({"a", "\xff", "Z", "aa", "\x7f"}));
  EXPECT_EQ(
      builder.finish().values,
      VocabularyValues(
          std::vector<std::string>{"\xff", "\x7f", "aa", "a", "Z"}));
}

TEST(VocabularyBuilderTest, RefusesOtherKindsOfValues) {
  VocabularyBuilder builder;
  EXPECT_TYPE_ERROR(builder.add(numbers({1.0F})), "but got floats");
  EXPECT_VALUE_ERROR(builder.add({}), "'VocabularyBuilder'] values must be");
  builder.add(integers({1}));
  EXPECT_TYPE_ERROR(
      builder.add(text({"a"})),
      "expected integers like the values before, but got text");
  VocabularyBuilder of_text;
  of_text.add(text({"a"}));
  EXPECT_TYPE_ERROR(
      of_text.merge(builder),
      "expected text like the values before, but got integers");
  EXPECT_EQ(builder.size(), 1);
}

TEST(VocabularyBuilderTest, ErrorsNameTheColumn) {
  VocabularyBuilder builder("site");
  EXPECT_VALUE_ERROR(builder.add({}), "[Columns 'site'] values must be");
  EXPECT_TYPE_ERROR(
      builder.add(numbers({1.0F})), "[VocabularyBuilder 'site'] expected");
  builder.add(text({"a"}));
  EXPECT_TYPE_ERROR(
      builder.add(integers({1})), "[VocabularyBuilder 'site'] expected text");
  EXPECT_VALUE_ERROR(
      builder.finish({.min_count = 2}),
      "[VocabularyBuilder 'site'] none of 1 different values was seen 2 times");
  EXPECT_VALUE_ERROR(
      builder.finish({.max_size = 0}),
      "[VocabularyBuilder 'site'] max_size must be >= 1, but got 0. Leave");
  Columns columns;
  columns.add("site", integers({1}));
  EXPECT_VALUE_ERROR(
      learn_vocabulary(Dataset(columns), "page"),
      "[learn_vocabulary] there is no column 'page'. Known: site.");
}

TEST(VocabularyBuilderTest, RefusesLimitsThatLeaveNothing) {
  VocabularyBuilder builder;
  EXPECT_VALUE_ERROR(
      builder.finish(), "expected at least one value, but got none.");
  builder.add(integers({1, 2, 2}));
  EXPECT_VALUE_ERROR(
      builder.finish({.min_count = 3}),
      "none of 2 different values was seen 3");
  EXPECT_VALUE_ERROR(
      builder.finish({.min_count = 0}), "min_count must be >= 1, but got 0.");
  EXPECT_VALUE_ERROR(
      builder.finish({.max_size = 0}), "max_size must be >= 1, but got 0.");
}

TEST(VocabularyBuilderTest, AMovedFromBuilderIsAnError) {
  VocabularyBuilder from("C1");
  from.add(integers({1, 2}));
  VocabularyBuilder to = std::move(from);
  EXPECT_EQ(to.size(), 2);
  const std::string text = "got one that was moved from";
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_TORCH_ERROR(from.add(integers({1})), text);
  EXPECT_TORCH_ERROR(from.add(test::text({"a"})), text);
  EXPECT_TORCH_ERROR(from.merge(to), text);
  EXPECT_TORCH_ERROR(from.merge(VocabularyBuilder()), text);
  EXPECT_TORCH_ERROR(to.merge(from), text);
  EXPECT_TORCH_ERROR(from.size(), text);
  EXPECT_TORCH_ERROR(from.finish(), text);
  // NOLINTEND(bugprone-use-after-move)
  EXPECT_EQ(to.size(), 2);
  from = VocabularyBuilder("C2");
  EXPECT_EQ(from.size(), 0);
}

}  // namespace vocabulary_builder_test
}  // namespace tessera::data
