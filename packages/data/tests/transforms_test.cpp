// SPDX-License-Identifier: Apache-2.0
#include <tessera/data/transforms.h>

#include "packages/data/tests/column_builders.h"

namespace tessera::data::transforms_test {

using namespace transforms;  // NOLINT(google-build-using-namespace)

constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

void expect_ids(
    const Transform& transform,
    const std::vector<Column>& inputs,
    const Ids& expected) {
  EXPECT_EQ(ids_of(transform, inputs), expected);
}

void expect_bags(
    const Transform& transform,
    const std::vector<Column>& inputs,
    const std::vector<Ids>& expected) {
  EXPECT_EQ(bags_of(transform, inputs), expected);
}

Texts unusual_texts() {
  return {"", "a", std::string("\xff\0\xfe", 3), std::string(300, 'x'), "日本"};
}

// The expected numbers are xxh3_64 of the bytes, mod 1000, by Python's xxhash 4.1.0.
TEST(HashTest, IsTheSameEverywhereAndForever) {
  const Column extremes = integers({0, 1, -1, kMax, kMin, 68065421});
  const auto hash = [](int64_t salt) {
    return Hash{.num_bins = 1000, .salt = salt, .missing = Missing::kAsValue};
  };
  expect_ids(hash(0), {extremes}, {897, 78, 627, 142, 495, 6});
  expect_ids(hash(42), {extremes}, {462, 795, 766, 570, 591, 408});
  expect_ids(hash(-1), {extremes}, {884, 988, 674, 678, 782, 169});
  expect_ids(hash(0), {text(unusual_texts())}, {138, 719, 268, 492, 296});
  expect_ids(hash(42), {text(unusual_texts())}, {650, 900, 71, 674, 287});
  expect_ids(
      Hash{.num_bins = int64_t{1} << 53, .missing = Missing::kAsValue},
      {integers({0})},
      {7664401075645657});
}

TEST(HashTest, AMissingValueHasItsOwnIdOrNone) {
  const Column column = integers({kMissing, 0, 1, kMissing});
  const Hash hash{.num_bins = 1001};
  expect_ids(hash, {column}, {0, 898, 79, 0});
  expect_bags(
      Hash{.num_bins = 1000, .missing = Missing::kDrop},
      {column},
      {{}, {897}, {78}, {}});
  expect_bags(
      Hash{.num_bins = 1000, .missing = Missing::kDrop},
      {text({"", "a"})},
      {{}, {719}});
  EXPECT_VALUE_ERROR(
      ids_of(Hash{.num_bins = 9, .missing = Missing::kError}, {column}),
      "[FeaturePipeline 'f'] Hash a value is missing");
}

TEST(HashTest, FillsTheBinsEvenly) {
  std::vector<int64_t> values(100'000);
  std::iota(values.begin(), values.end(), 0);
  for (int64_t& value : values) {
    value *= 64;  // without a hash, most bins would be empty
  }
  std::vector<int64_t> counts(65);
  for (const int64_t id : ids_of(Hash{.num_bins = 65}, {integers(values)})) {
    ++counts.at(id);
  }
  EXPECT_EQ(counts[0], 0);
  for (size_t bin = 1; bin < counts.size(); ++bin) {
    EXPECT_NEAR(counts[bin], 100'000 / 64, 250);  // six standard deviations
  }
}

TEST(BucketizeTest, ABoundaryBelongsToTheBinAboveIt) {
  const Bucketize bucketize{
      .boundaries = {-1.5, 0.0, 2.0}, .missing = Missing::kError};
  expect_ids(
      bucketize,
      {numbers({-kInfinity, -1.5F, -0.0F, 0.0F, 1.9F, 2.0F, kInfinity})},
      {0, 1, 2, 2, 2, 3, 3});
  expect_ids(
      bucketize,
      {integers({kMin + 1, -2, -1, 0, 1, 2, kMax})},
      {0, 0, 1, 2, 2, 3, 3});
  EXPECT_EQ(vocabulary_size(bucketize), 4);
}

TEST(BucketizeTest, AMissingNumberHasItsOwnIdOrNone) {
  const Bucketize own{.boundaries = {0.0}};
  expect_ids(own, {numbers({-1.0F, kNaN, 1.0F})}, {1, 0, 2});
  expect_ids(own, {integers({-1, kMissing, 1})}, {1, 0, 2});
  EXPECT_EQ(vocabulary_size(own), 3);
  expect_bags(
      Bucketize{.boundaries = {0.0}, .missing = Missing::kDrop},
      {numbers({-1.0F, kNaN, 1.0F})},
      {{0}, {}, {1}});
}

TEST(VocabularyTest, UnknownValuesComeFirst) {
  const Vocabulary vocabulary{
      .values = Ids{30, kMax, -7},
      .num_oov_indices = 2,
      .missing = Missing::kOwnId};
  EXPECT_EQ(vocabulary_size(vocabulary), 6);
  expect_ids(vocabulary, {integers({-7, kMax, 30, kMissing})}, {5, 4, 3, 0});
  std::set<int64_t> unknown;
  for (const int64_t id : ids_of(vocabulary, {integers({1, 2, 3, 4, 5, 6})})) {
    unknown.insert(id);
  }
  EXPECT_EQ(unknown, (std::set<int64_t>{1, 2}));
}

TEST(VocabularyTest, AMissingValueMayCountAsUnknownOrBeDropped) {
  Vocabulary vocabulary{
      .values = Texts{"a", "b"}, .missing = Missing::kAsValue};
  expect_ids(vocabulary, {text({"", "b", "?"})}, {0, 2, 0});
  EXPECT_EQ(vocabulary_size(vocabulary), 3);
  vocabulary.missing = Missing::kDrop;
  expect_bags(vocabulary, {text({"", "b", "?"})}, {{}, {2}, {0}});
  vocabulary.missing = Missing::kError;
  EXPECT_VALUE_ERROR(ids_of(vocabulary, {text({""})}), "a value is missing");
}

TEST(VocabularyTest, WithoutUnknownIdsAnUnknownValueIsAnError) {
  EXPECT_INDEX_ERROR(
      ids_of(
          Vocabulary{.values = Texts{"a"}, .num_oov_indices = 0},
          {text({"a", "b"})}),
      "[FeaturePipeline 'f'] Vocabulary 'b' is not in the vocabulary");
}

TEST(VocabularyTest, FindsEachOfManyValues) {
  std::vector<int64_t> values;
  std::map<int64_t, int64_t> positions;
  for (int64_t i = 0; i < 50'000; ++i) {
    values.push_back((i - 25'000) * 4096);  // all have the same low bits
    positions[values.back()] = i;
  }
  std::vector<int64_t> requested = values;
  requested.insert(requested.end(), {1, -1, kMax, 4095});
  const Ids ids = ids_of(
      Vocabulary{.values = values, .missing = Missing::kError},
      {integers(requested)});
  for (size_t i = 0; i < requested.size(); ++i) {
    const auto found = positions.find(requested[i]);
    ASSERT_EQ(ids[i], found == positions.end() ? 0 : 1 + found->second);
  }
}

TEST(VocabularyTest, TextMayHaveAnyBytes) {
  Texts values = unusual_texts();
  values.erase(values.begin());
  values.insert(values.end(), {std::string(1, '\0'), std::string(2, '\0')});
  expect_ids(
      Vocabulary{.values = values, .missing = Missing::kAsValue},
      {text(values)},
      {1, 2, 3, 4, 5, 6});
}

// The expected numbers are the chained hashes of the values, mod 10007, by Python's
// xxhash.
TEST(CrossTest, IsTheSameEverywhereAndForever) {
  const auto cross = [](int64_t salt) {
    return Cross{.num_bins = 10007, .salt = salt};
  };
  expect_ids(
      cross(0),
      {integers({1, 2, kMin}), integers({2, 1, 7})},
      {9774, 2615, 1475});
  expect_ids(
      cross(5),
      {integers({1, 2, kMin}), integers({2, 1, 7})},
      {7315, 9394, 8967});
  expect_ids(cross(0), {text({"ab", "a"}), text({"c", "bc"})}, {1655, 9209});
  expect_ids(cross(0), {integers({1}), text({"a"})}, {9255});
  expect_ids(cross(5), {integers({1}), integers({2}), integers({3})}, {204});
}

TEST(CrossTest, GivesAllCombinationsOfLists) {
  const Cross cross{.num_bins = 10007};
  const auto cross_one = [&](int64_t left, int64_t right) {
    return ids_of(cross, {integers({left}), integers({right})})[0];
  };
  const Column lists = ragged(integers({1, 2, 3}), {0, 2, 2, 3});
  expect_bags(
      cross,
      {lists, ragged(integers({7, 8, 9}), {0, 2, 3, 3})},
      {{cross_one(1, 7), cross_one(1, 8), cross_one(2, 7), cross_one(2, 8)},
       {},
       {}});
  expect_bags(
      cross,
      {lists, integers({5, 6, 7})},
      {{cross_one(1, 5), cross_one(2, 5)}, {}, {cross_one(3, 7)}});
  EXPECT_EQ(
      bags_of(cross, {lists, integers({5, 6, 7})}, 1),
      (std::vector<Ids>{{cross_one(1, 5)}, {}, {cross_one(3, 7)}}));
}

TEST(CrossTest, IsMissingWhereOneOfItsValuesIs) {
  Cross cross{.num_bins = 100, .missing = Missing::kOwnId};
  const Column left = integers({1, kMissing, 1});
  const Column right = text({"a", "a", ""});
  const Ids ids = ids_of(cross, {left, right});
  EXPECT_GT(ids[0], 0);
  EXPECT_EQ(ids[1], 0);
  EXPECT_EQ(ids[2], 0);
  cross.missing = Missing::kDrop;
  const std::vector<Ids> bags = bags_of(cross, {left, right});
  EXPECT_EQ(bags[0].size(), 1);
  EXPECT_TRUE(bags[1].empty() && bags[2].empty());
  cross.missing = Missing::kError;
  EXPECT_VALUE_ERROR(ids_of(cross, {left, right}), "a value is missing");
}

TEST(CrossTest, RefusesMoreCombinationsThanFitIntoMemory) {
  const std::vector<int64_t> many(10'000, 1);
  const Column lists = ragged(integers(many), {0, 10'000});
  const Cross cross{.num_bins = 10};
  EXPECT_VALUE_ERROR(
      bags_of(cross, {lists, lists}), "at most 2^26 combinations");
  // Without a value in the last column, there are no combinations, and no time is spent
  // on the other columns.
  expect_bags(cross, {lists, lists, lists, ragged(integers({}), {0, 0})}, {{}});
}

TEST(IdentityTest, LeavesIdsAsTheyAre) {
  const Identity identity{.num_ids = 3};
  expect_ids(identity, {integers({2, 0, 1})}, {2, 0, 1});
  EXPECT_EQ(vocabulary_size(identity), 3);
  for (const int64_t id : {int64_t{3}, int64_t{-1}, kMax, kMin + 1}) {
    EXPECT_INDEX_ERROR(
        ids_of(identity, {integers({id})}),
        "Identity ids must be in [0, 3), but got " + std::to_string(id));
  }
  EXPECT_VALUE_ERROR(
      ids_of(identity, {integers({kMissing})}), "a value is missing");
}

TEST(IdentityTest, GivesIdsOutOfRangeTheDefaultId) {
  Identity identity{.num_ids = 3, .default_id = 2};
  expect_ids(identity, {integers({1, 3, -1})}, {1, 2, 2});
  identity.missing = Missing::kAsValue;
  expect_ids(identity, {integers({kMissing, 0})}, {2, 0});
  identity.missing = Missing::kOwnId;
  expect_ids(identity, {integers({kMissing, 0, 9})}, {0, 1, 3});
  EXPECT_EQ(vocabulary_size(identity), 4);
  identity.missing = Missing::kDrop;
  expect_bags(identity, {integers({kMissing, 0})}, {{}, {0}});
}

TEST(Log1pTest, ClampsNegativeNumbers) {
  const at::Tensor got = dense_of(
      Log1p{.missing_value = -1.0}, integers({-3, 0, 1, 100, kMissing, kMax}));
  expect_close(
      got.view({-1}),
      floats(
          {0.0F,
           0.0F,
           std::log(2.0F),
           std::log(101.0F),
           -1.0F,
           std::log(2.0F) * 63}));
  expect_close(
      dense_of(Log1p{}, numbers({-0.5F, kNaN, 1e-8F})).view({-1}),
      floats({0.0F, 0.0F, 1e-8F}),
      1e-6,
      0.0);
}

TEST(NormalizeTest, SubtractsTheMeanAndDividesByTheDeviation) {
  expect_close(
      dense_of(
          Normalize{.mean = 3.0, .variance = 4.0, .missing_value = 9.0},
          numbers({1.0F, 3.0F, 8.0F, kNaN}))
          .view({-1}),
      floats({-1.0F, 0.0F, 2.5F, 9.0F}));
  expect_close(
      dense_of(Normalize{}, integers({-2, kMissing})).view({-1}),
      floats({-2.0F, 0.0F}));
}

TEST(NumbersTest, RefuseResultsThatAreNotFinite) {
  EXPECT_VALUE_ERROR(
      dense_of(Log1p{}, numbers({kInfinity})),
      "finite in float32, but got inf");
  EXPECT_VALUE_ERROR(
      dense_of(Normalize{.variance = 0.0}, numbers({3e38F})),
      "[FeaturePipeline 'f'] Normalize expected a number whose result is finite");
}

TEST(RaggedTest, KeepsTheFirstIdsOfEachExample) {
  const Column lists =
      ragged(integers({kMissing, 1, 2, 0, kMissing, 2}), {0, 3, 3, 6});
  const auto identity = [](Missing missing) {
    return Identity{.num_ids = 3, .missing = missing};
  };
  expect_bags(identity(Missing::kOwnId), {lists}, {{0, 2, 3}, {}, {1, 0, 3}});
  expect_bags(identity(Missing::kDrop), {lists}, {{1, 2}, {}, {0, 2}});
  EXPECT_EQ(
      bags_of(identity(Missing::kOwnId), {lists}, 2),
      (std::vector<Ids>{{0, 2}, {}, {1, 0}}));
  EXPECT_EQ(
      bags_of(identity(Missing::kDrop), {lists}, 1),
      (std::vector<Ids>{{1}, {}, {0}}));
  EXPECT_EQ(
      bags_of(identity(Missing::kDrop), {lists}, kMax),
      (std::vector<Ids>{{1, 2}, {}, {0, 2}}));
}

TEST(TransformTest, FieldsOutOfRangeAreNamed) {
  const auto refuses = [](const Transform& transform, const char* message) {
    EXPECT_VALUE_ERROR(vocabulary_size(transform), message);
  };
  refuses(Hash{}, "[Hash] num_bins must be in [1, 2^53], but got 0");
  refuses(Hash{.num_bins = kMax}, "num_bins must be in [1, 2^53]");
  refuses(Hash{.num_bins = 1}, "num_bins must be >= 2 with Missing::kOwnId");
  refuses(Cross{.num_bins = -1}, "[Cross] num_bins must be in");
  refuses(Bucketize{}, "[Bucketize] boundaries must have one or more");
  refuses(
      Bucketize{.boundaries = {0.0, 2.0, 2.0}},
      "boundaries must ascend, but 2 is followed by 2");
  refuses(Bucketize{.boundaries = {kNaN}}, "boundaries must be finite");
  refuses(Bucketize{.boundaries = {0.0, kInfinity}}, "must be finite");
  refuses(
      Bucketize{.boundaries = {0.0}, .missing = Missing::kAsValue},
      "missing must be own_id, drop or error, but got as_value");
  refuses(Vocabulary{}, "values must have 1 to 2^30 entries, but got 0");
  refuses(
      Vocabulary{.values = Ids{1}, .num_oov_indices = -1},
      "num_oov_indices must be in [0, 2^53]");
  refuses(Vocabulary{.values = Texts{"a", ""}}, "stand for missing");
  refuses(Vocabulary{.values = Ids{kMissing}}, "stand for missing");
  refuses(Identity{}, "[Identity] num_ids must be in");
  refuses(
      Identity{.num_ids = 3, .default_id = 3},
      "default_id must be in [0, 3), but got 3");
  refuses(Log1p{}, "[Log1p] gives numbers instead of ids, so it has no table");
}

TEST(TransformTest, MissingHasNamesForEachPolicy) {
  for (const Missing policy :
       {Missing::kOwnId, Missing::kDrop, Missing::kAsValue, Missing::kError}) {
    EXPECT_EQ(missing_from_string(to_string(policy)), policy);
  }
  EXPECT_EQ(to_string(Missing::kOwnId), "own_id");
  EXPECT_VALUE_ERROR(
      missing_from_string("skip"),
      "must be one of own_id, drop, as_value, error, but got 'skip'");
}

}  // namespace tessera::data::transforms_test
