// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/negative_sampling.h>

#include "packages/data/src/random_stream.h"
#include "packages/data/tests/column_builders.h"

namespace tessera::data::negative_sampling_test {

using Distribution = NegativeDistribution;

Columns clicks(
    const std::vector<int64_t>& users,
    const std::vector<int64_t>& items) {
  Texts names;
  for (const int64_t item : items) {
    names.push_back("item " + std::to_string(item));
  }
  return columns_of(
      {{"user", integers(users)},
       {"item", integers(items)},
       {"name", text(names)}});
}

// Item i of {10, 20, ...} is clicked i + 1 times, each time by another user.
Columns popular_clicks(int64_t num_items) {
  std::vector<int64_t> users;
  std::vector<int64_t> items;
  for (int64_t item = 0; item < num_items; ++item) {
    for (int64_t k = 0; k <= item; ++k) {
      users.push_back(static_cast<int64_t>(users.size()));
      items.push_back(10 * (item + 1));
    }
  }
  return clicks(users, items);
}

std::vector<int64_t> values_of(const Column& column) {
  return to_vector(std::get<at::Tensor>(column.values));
}

// The number of negatives that are each item.
std::map<int64_t, double> count_negatives(const Column& negatives) {
  std::map<int64_t, double> counts;
  for (const int64_t item : values_of(negatives)) {
    counts[item] += 1.0;
  }
  return counts;
}

// The chi-square statistic against probabilities that are proportional to the weights.
double chi_square(
    const std::map<int64_t, double>& counts,
    const std::map<int64_t, double>& weights) {
  double total = 0.0;
  double total_weight = 0.0;
  for (const auto& [item, count] : counts) {
    EXPECT_TRUE(weights.contains(item)) << item;
    total += count;
  }
  for (const auto& [item, weight] : weights) {
    total_weight += weight;
  }
  double sum = 0.0;
  for (const auto& [item, weight] : weights) {
    const double expected = total * weight / total_weight;
    const auto found = counts.find(item);
    const double count = found == counts.end() ? 0.0 : found->second;
    sum += (count - expected) * (count - expected) / expected;
  }
  return sum;
}

// An upper bound of the statistic that is exceeded with a probability of 0.001
// (Wilson-Hilferty).
double chi_square_limit(double degrees) {
  const double part = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - part + 3.09 * std::sqrt(part), 3.0);
}

TEST(NegativeSamplerTest, AddsAListToEachExample) {
  const Columns columns = clicks({1, 1, 2}, {5, 6, 7});
  const NegativeSampler sampler(
      Dataset(columns), {.output = "others", .num_negatives = 4});
  EXPECT_EQ(sampler.num_items(), 3);
  EXPECT_EQ(sampler.options().num_negatives, 4);
  const Columns result = sampler(columns, {});
  EXPECT_EQ(result.batch_size(), 3);
  EXPECT_EQ(to_vector(result.at("others").row_splits), (Ids{0, 4, 8, 12}));
  const std::vector<int64_t> negatives = values_of(result.at("others"));
  for (size_t i = 0; i < negatives.size(); ++i) {
    EXPECT_NE(negatives[i], 5 + static_cast<int64_t>(i / 4));
  }
}

TEST(NegativeSamplerTest, UniformNegativesAreUniform) {
  const Columns columns = popular_clicks(20);
  const NegativeSampler sampler(
      Dataset(columns),
      {.excluded = ExcludedItems::kNone, .num_negatives = 200, .seed = 5});
  std::map<int64_t, double> weights;
  for (int64_t item = 1; item <= 20; ++item) {
    weights[10 * item] = 1.0;
  }
  EXPECT_LT(
      chi_square(count_negatives(sampler.sample(columns, {})), weights),
      chi_square_limit(19));
}

TEST(NegativeSamplerTest, PopularNegativesFollowThePowerOfTheCount) {
  const Columns columns = popular_clicks(20);
  for (const double power : {0.0, 0.5, 0.75, 1.0, 2.0}) {
    const NegativeSampler sampler(
        Dataset(columns),
        {.distribution = Distribution::kPopularity,
         .excluded = ExcludedItems::kNone,
         .num_negatives = 500,
         .power = power,
         .seed = 6});
    std::map<int64_t, double> weights;
    for (int64_t item = 1; item <= 20; ++item) {
      weights[10 * item] = std::pow(static_cast<double>(item), power);
    }
    EXPECT_LT(
        chi_square(count_negatives(sampler.sample(columns, {})), weights),
        chi_square_limit(19))
        << power;
  }
}

// Even if a user knows nearly all items, the other ones keep their ratios.
TEST(NegativeSamplerTest, KnownItemsAreNeverDrawn) {
  constexpr int64_t kItems = 200;
  Columns all = popular_clicks(kItems);
  std::vector<int64_t> users = values_of(all.at("user"));
  std::vector<int64_t> items = values_of(all.at("item"));
  for (const int64_t known : {kItems - 4, kItems / 2}) {
    // User -1 knows the last `known` items, which are the popular ones.
    std::vector<int64_t> more_users = users;
    std::vector<int64_t> more_items = items;
    for (int64_t i = kItems - known; i < kItems; ++i) {
      more_users.push_back(-1);
      more_items.push_back(10 * (i + 1));
    }
    const Dataset dataset(clicks(more_users, more_items));
    for (const Distribution distribution :
         {Distribution::kUniform, Distribution::kPopularity}) {
      const NegativeSampler sampler(
          dataset,
          {.user = "user",
           .distribution = distribution,
           .excluded = ExcludedItems::kKnown,
           .num_negatives = 20'000,
           .power = 1.0,
           .seed = 7});
      const Columns example = clicks({-1}, {10 * kItems});
      std::map<int64_t, double> weights;
      for (int64_t i = 1; i <= kItems - known; ++i) {
        weights[10 * i] = distribution == Distribution::kUniform
            ? 1.0
            : static_cast<double>(i);
      }
      EXPECT_LT(
          chi_square(count_negatives(sampler.sample(example, {})), weights),
          chi_square_limit(static_cast<double>(weights.size() - 1)));
      // The own item is excluded although the user was not seen with it.
      const auto other =
          count_negatives(sampler.sample(clicks({-1}, {10}), {}));
      EXPECT_FALSE(other.contains(10));
      EXPECT_EQ(other.size(), weights.size() - 1);
    }
  }
}

TEST(NegativeSamplerTest, NegativesDependOnSeedEpochAndRowOnly) {
  const Columns columns = popular_clicks(20);
  const Dataset dataset(columns);
  const NegativeSampler::Options options{
      .user = "user",
      .distribution = Distribution::kPopularity,
      .excluded = ExcludedItems::kKnown,
      .num_negatives = 3,
      .seed = 1};
  const NegativeSampler sampler(dataset, options);
  const auto read = [&](const Batches& batches, int64_t epoch, int64_t skip) {
    std::vector<int64_t> negatives;
    BatchReader reader = batches(epoch);
    reader.skip(skip);
    for (const Columns& batch : reader) {
      const auto some = values_of(batch.at("negatives"));
      negatives.insert(negatives.end(), some.begin(), some.end());
    }
    return negatives;
  };
  const Dataset shuffled = dataset.shuffle({.buffer = 1000, .seed = 2});
  const Batches batches = shuffled.batch({.size = 32}).map(sampler);
  const std::vector<int64_t> expected = read(batches, 0, 0);
  ASSERT_EQ(static_cast<int64_t>(expected.size()), 3 * *dataset.size());
  EXPECT_EQ(read(shuffled.map(sampler).batch({.size = 7}), 0, 0), expected);
  EXPECT_EQ(read(batches.prefetch(2), 0, 0), expected);
  EXPECT_EQ(
      read(batches, 0, 2),
      std::vector<int64_t>(expected.begin() + 3 * 64, expected.end()));
  EXPECT_NE(read(batches, 1, 0), expected);
  NegativeSampler::Options other = options;
  other.seed = 2;
  EXPECT_NE(
      read(
          shuffled.batch({.size = 32}).map(NegativeSampler(dataset, other)),
          0,
          0),
      expected);
  // Several threads use the same sampler.
  std::vector<std::vector<int64_t>> found(4);
  run_in_threads(4, [&](size_t i) { found[i] = read(batches, 0, 0); });
  for (const std::vector<int64_t>& negatives : found) {
    EXPECT_EQ(negatives, expected);
  }
}

TEST(NegativeSamplerTest, TextItemsGiveTextNegatives) {
  const Columns columns = popular_clicks(6);
  const auto sample = [&](const char* item, Distribution distribution) {
    const NegativeSampler sampler(
        Dataset(columns),
        {.item = item, .distribution = distribution, .num_negatives = 5});
    return sampler.sample(columns, {.is_batch = true});
  };
  for (const Distribution distribution :
       {Distribution::kUniform,
        Distribution::kPopularity,
        Distribution::kInBatch}) {
    const std::vector<int64_t> numbers =
        values_of(sample("item", distribution));
    const Column texts = sample("name", distribution);
    const auto& names = std::get<Texts>(texts.values);
    ASSERT_EQ(names.size(), numbers.size());
    for (size_t i = 0; i < names.size(); ++i) {
      EXPECT_EQ(names[i], "item " + std::to_string(numbers[i]));
    }
  }
}

TEST(NegativeSamplerTest, InBatchNegativesAreTheItemsOfOtherExamples) {
  const Dataset dataset(popular_clicks(20));
  const NegativeSampler sampler(
      dataset,
      {.distribution = Distribution::kInBatch,
       .excluded = ExcludedItems::kOwn,
       .num_negatives = 30'000,
       .seed = 8});
  // 999 and 998 are not in the dataset.
  const Columns batch = clicks({1, 2, 3, 4, 5, 6}, {10, 20, 20, 20, 999, 998});
  const Column negatives = sampler.sample(batch, {.is_batch = true});
  const std::vector<int64_t> splits = to_vector(negatives.row_splits);
  const std::vector<int64_t> values = values_of(negatives);
  const auto counts_of = [&](size_t row) {
    std::map<int64_t, double> counts;
    for (int64_t i = splits[row]; i < splits[row + 1]; ++i) {
      counts[values[i]] += 1.0;
    }
    return counts;
  };
  EXPECT_LT(
      chi_square(counts_of(0), {{20, 3.0}, {998, 1.0}, {999, 1.0}}),
      chi_square_limit(2));
  EXPECT_LT(
      chi_square(counts_of(1), {{10, 1.0}, {998, 1.0}, {999, 1.0}}),
      chi_square_limit(2));
  EXPECT_LT(
      chi_square(counts_of(4), {{10, 1.0}, {20, 3.0}, {998, 1.0}}),
      chi_square_limit(2));
}

TEST(NegativeSamplerTest, ABatchWithoutAllowedItemsGivesNoNegatives) {
  const Dataset dataset(clicks({1, 1, 2}, {10, 20, 30}));
  const NegativeSampler sampler(
      dataset,
      {.user = "user",
       .distribution = Distribution::kInBatch,
       .excluded = ExcludedItems::kKnown,
       .num_negatives = 2});
  // User 1 knows both items, user 2 does not know item 10, and user 3 is new.
  const Column negatives =
      sampler.sample(clicks({1, 2, 3}, {10, 20, 10}), {.is_batch = true});
  EXPECT_EQ(to_vector(negatives.row_splits), (Ids{0, 0, 2, 4}));
  EXPECT_EQ(values_of(negatives), (Ids{10, 10, 20, 20}));
  EXPECT_EQ(
      to_vector(
          sampler.sample(clicks({9}, {10}), {.is_batch = true}).row_splits),
      (Ids{0, 0}));
  // Rare items are found, too.
  std::vector<int64_t> users(1000, 1);
  std::vector<int64_t> items(1000, 10);
  items.back() = 30;
  const Column rare = sampler.sample(clicks(users, items), {.is_batch = true});
  EXPECT_EQ(to_vector(rare.row_splits)[999], 2 * 999);
}

TEST(NegativeSamplerTest, ExcludesNothingIfNotAsked) {
  const Columns columns = clicks({1, 1}, {10, 20});
  const NegativeSampler sampler(
      Dataset(columns),
      {.excluded = ExcludedItems::kNone, .num_negatives = 100});
  const std::vector<int64_t> values = values_of(sampler.sample(columns, {}));
  EXPECT_NE(std::count(values.begin(), values.begin() + 100, 10), 0);
}

TEST(NegativeSamplerTest, RefusesExamplesForWhichAllItemsAreExcluded) {
  const Columns columns = clicks({1, 1, 2}, {10, 20, 10});
  const NegativeSampler sampler(
      Dataset(columns), {.user = "user", .excluded = ExcludedItems::kKnown});
  EXPECT_EQ(
      values_of(sampler.sample(clicks({2, 3}, {10, 10}), {})), (Ids{20, 20}));
  EXPECT_VALUE_ERROR(
      sampler.sample(clicks({2, 1}, {10, 20}), {.first_row = 7}),
      "all items are excluded for example 8 (counted from 0). Drop such "
      "examples, or exclude fewer items.");
  EXPECT_VALUE_ERROR(
      NegativeSampler(Dataset(clicks({1}, {10})), {})
          .sample(clicks({1}, {10}), {}),
      "all items are excluded for example 0");
}

// The weights of the other items are up to 5000^16 times as small.
TEST(NegativeSamplerTest, TheLargestPowerKeepsTheRatiosOfRareItems) {
  std::vector<int64_t> items(5000, 10);
  items.insert(items.end(), {20, 30, 30});
  const std::vector<int64_t> users(items.size(), 1);
  const NegativeSampler sampler(
      Dataset(clicks(users, items)),
      {.distribution = Distribution::kPopularity,
       .num_negatives = 65'536,
       .power = 16.0});
  const std::map<int64_t, double> counts =
      count_negatives(sampler.sample(clicks({1}, {10}), {}));
  EXPECT_FALSE(counts.contains(10));
  EXPECT_LT(
      chi_square(counts, {{20, 1.0}, {30, 65536.0}}), chi_square_limit(1));
}

TEST(NegativeSamplerTest, RefusesOptions) {
  const Dataset dataset(clicks({1}, {10}));
  const auto make = [&](const NegativeSampler::Options& options) {
    return NegativeSampler(dataset, options);
  };
  EXPECT_VALUE_ERROR(make({.item = ""}), "item and output must be names");
  EXPECT_VALUE_ERROR(make({.output = ""}), "item and output must be names");
  EXPECT_VALUE_ERROR(
      make({.excluded = ExcludedItems::kKnown}), "needs the users");
  EXPECT_VALUE_ERROR(
      make({.num_negatives = 0}), "num_negatives must be in [1, 65536]");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double power : {-1.0, 16.5, 1e308, nan}) {
    EXPECT_VALUE_ERROR(make({.power = power}), "power must be in [0, 16]");
  }
}

TEST(NegativeSamplerTest, RefusesColumns) {
  Columns columns = clicks({1, 2}, {10, kMissing});
  columns.add("lists", ragged(integers({1, 2}), {0, 1, 2}));
  columns.add("price", numbers({1.0F, 2.0F}));
  const Dataset dataset(columns);
  EXPECT_VALUE_ERROR(
      NegativeSampler(dataset, {.item = "x"}),
      "[NegativeSampler] there is no column 'x'. Known: user");
  EXPECT_VALUE_ERROR(
      NegativeSampler(dataset, {.item = "lists"}), "but it has lists");
  EXPECT_TYPE_ERROR(
      NegativeSampler(dataset, {.item = "price"}),
      "column 'price' must have integers or text, but it has floats");
  EXPECT_VALUE_ERROR(
      NegativeSampler(dataset, {}),
      "column 'item' has examples without an item");
  EXPECT_VALUE_ERROR(
      NegativeSampler(Dataset(clicks({}, {})), {}),
      "expected examples with items, but the dataset has none");
  const NegativeSampler sampler(
      Dataset(clicks({1, 2}, {10, 20})), {.output = "user"});
  EXPECT_VALUE_ERROR(
      sampler(clicks({1}, {10}), {}), "'user'] there is already a column");
  const Columns other = columns_of({{"item", text({"10"})}});
  EXPECT_TYPE_ERROR(
      sampler.sample(other, {}),
      "column 'item' must have the same kind as in the dataset of the sampler, but it has text");
  const NegativeSampler in_batch(
      Dataset(clicks({1, 2}, {10, 20})),
      {.distribution = Distribution::kInBatch});
  EXPECT_VALUE_ERROR(
      in_batch.sample(clicks({1}, {10}), {}), "Call map() after batch()");
}

TEST(AliasTableTest, DrawsByWeight) {
  for (const std::vector<double>& weights :
       {std::vector<double>{1.0},
        std::vector<double>{0.0, 1.0, 0.0},
        std::vector<double>{1e-300, 1.0, 2.0, 1e-300, 4.0},
        std::vector<double>{3.0, 3.0, 3.0}}) {
    const AliasTable table(weights);
    RandomStream random(1, 2, 3);
    std::map<int64_t, double> counts;
    for (int i = 0; i < 10'000; ++i) {
      counts[table.draw(random)] += 1.0;
    }
    std::map<int64_t, double> expected;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] > 1e-9) {
        expected[static_cast<int64_t>(i)] = weights[i];
      }
    }
    EXPECT_LT(
        chi_square(counts, expected),
        chi_square_limit(
            std::max(1.0, static_cast<double>(expected.size() - 1))));
  }
}

}  // namespace tessera::data::negative_sampling_test
