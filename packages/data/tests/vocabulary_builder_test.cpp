// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/vocabulary_builder.h>
#include <tessera/engine/embedding_engine.h>
#include <tessera/optim/optimizers/adagrad.h>

#include "packages/data/tests/area_under_curve.h"
#include "packages/data/tests/column_builders.h"

namespace tessera::data::vocabulary_builder_test {

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
      VocabularyValues(Texts{"b", std::string("\xff\0", 2)}));
  VocabularyBuilder of_integers;
  of_integers.add(integers({kMissing, kMax, kMissing + 1}));
  EXPECT_EQ(
      of_integers.finish().values, VocabularyValues(Ids{kMax, kMissing + 1}));
}

TEST(VocabularyBuilderTest, EqualCountsAreOrderedByBytes) {
  VocabularyBuilder builder;
  builder.add(text({"a", "\xff", "Z", "aa", "\x7f"}));
  EXPECT_EQ(
      builder.finish().values,
      VocabularyValues(Texts{"\xff", "\x7f", "aa", "a", "Z"}));
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
  EXPECT_VALUE_ERROR(
      learn_vocabulary(Dataset(columns_of({{"site", integers({1})}})), "page"),
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

// Made-up clicks. A user clicks on popular items and on those that are like the user.
struct MadeUpClicks {
  static constexpr int64_t kItems = 300;
  static constexpr int64_t kFactors = 4;

  explicit MadeUpClicks(uint64_t seed) : random(seed) {
    for (int64_t i = 0; i < kItems; ++i) {
      popularity.push_back(normal(random));
      items.push_back(vector());
    }
  }

  std::vector<double> vector() {
    std::vector<double> values;
    for (int64_t k = 0; k < kFactors; ++k) {
      values.push_back(normal(random));
    }
    return values;
  }

  // Adds `count` examples of a new user.
  void add_user(const std::string& name, int64_t count) {
    const std::vector<double> user = vector();
    for (; count > 0; --count) {
      const auto item = static_cast<int64_t>(random() % kItems);
      double logit = popularity[item];
      for (int64_t k = 0; k < kFactors; ++k) {
        logit += 0.7 * user[k] * items[item][k];
      }
      const double drawn = static_cast<double>(random() >> 11) * 0x1p-53;
      users.push_back(name);
      item_ids.push_back(item);
      clicked.push_back(drawn < 1 / (1 + std::exp(-logit)) ? 1.0F : 0.0F);
    }
  }

  Columns take() {
    std::vector<size_t> order(users.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    Texts names;
    Ids ids;
    std::vector<float> labels;
    for (const size_t i : order) {
      names.push_back(users[i]);
      ids.push_back(item_ids[i]);
      labels.push_back(clicked[i]);
    }
    users.clear();
    item_ids.clear();
    clicked.clear();
    return columns_of(
        {{"user", text(names)},
         {"item", integers(ids)},
         {"click", numbers(labels)}});
  }

  std::mt19937_64 random;
  std::normal_distribution<double> normal;
  std::vector<double> popularity;
  std::vector<std::vector<double>> items;
  Texts users;
  std::vector<int64_t> item_ids;
  std::vector<float> clicked;
};

enum class UnknownRow { kRandom, kZeros, kTrained };

// Trains a factorization, and returns its AUC on the clicks of users that training did not
// have.
double auc_of_new_users(
    const Columns& train,
    const Columns& test,
    UnknownRow unknown,
    uint64_t seed) {
  const Dataset dataset(train);
  const FeaturePipeline pipeline(
      {{"user",
        {"user"},
        learn_vocabulary(
            dataset,
            "user",
            {.min_count = unknown == UnknownRow::kTrained ? 2 : 1})},
       {"item",
        {"item"},
        transforms::Identity{.num_ids = MadeUpClicks::kItems}},
       {"popularity",
        {"item"},
        transforms::Identity{.num_ids = MadeUpClicks::kItems}}});
  TableConfig users = *pipeline.make_table("user", {.dim = 8});
  users.zero_rows = unknown == UnknownRow::kRandom ? 0 : users.zero_rows;
  EmbeddingEngine engine(
      {.features =
           {{"user", FeatureConfig{.table = make_table(users)}},
            {"item",
             FeatureConfig{.table = pipeline.make_table("item", {.dim = 8})}},
            {"popularity",
             FeatureConfig{
                 .table = pipeline.make_table("popularity", {.dim = 1})}}},
       .optimizer = optim::Adagrad{.learning_rate = 0.2},
       .seed = seed});
  const auto logits = [&](const Columns& batch, bool training) {
    engine.enqueue(pipeline.apply(batch).features, {}, {.training = training});
    const auto rows = engine.dequeue();
    return (rows["user"] * rows["item"]).sum(1) + rows["popularity"].squeeze(1);
  };
  const Batches batches = dataset.batch({.size = 256});
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    for (const Columns& batch : batches(epoch)) {
      at::binary_cross_entropy_with_logits(
          logits(batch, true),
          batch.tensor("click"),
          {},
          {},
          at::Reduction::Sum)
          .backward();
      engine.apply_gradients();
    }
  }
  const at::NoGradGuard no_grad;
  return area_under_curve(
      logits(test, false).contiguous(), test.tensor("click"));
}

// docs/data.md has the numbers.
TEST(VocabularyBuilderTest, ZerosForUnknownUsersAreBetterThanARandomVector) {
  // The batches are small, and threads that wait would take longer than the work.
  const Threads one(1);
  double random = 0;
  double zeros = 0;
  double trained = 0;
  constexpr uint64_t kSeeds = 5;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    MadeUpClicks clicks(seed);
    for (int64_t user = 0; user < 2000; ++user) {
      // A third of the users have one click, and others have up to 40.
      const bool has_one = clicks.random() % 3 == 0;
      const auto count = static_cast<int64_t>(1 + clicks.random() % 40);
      clicks.add_user(c10::str("user ", user), has_one ? 1 : count);
    }
    const Columns train = clicks.take();
    for (int64_t user = 0; user < 500; ++user) {
      clicks.add_user(c10::str("new ", user), 20);
    }
    const Columns test = clicks.take();
    random += auc_of_new_users(train, test, UnknownRow::kRandom, seed) / kSeeds;
    zeros += auc_of_new_users(train, test, UnknownRow::kZeros, seed) / kSeeds;
    trained +=
        auc_of_new_users(train, test, UnknownRow::kTrained, seed) / kSeeds;
  }
  std::cout << "AUC of new users: random " << random << ", zeros " << zeros
            << ", trained " << trained << "\n";
  EXPECT_GT(zeros, random + 0.003);
  EXPECT_GT(trained, random + 0.003);
}

}  // namespace tessera::data::vocabulary_builder_test
