// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/nest.h>

#include "tests/test_util.h"

#include <ranges>

namespace tessera::test::nest_test {

using Ints = Nest<int>;

// {"user": 1, "history": [2, {"deep": 3}], "movie": 4}
Ints sample() {
  return {
      {"user", 1},
      {"history", Ints::list({2, Ints{{"deep", 3}}})},
      {"movie", 4}};
}

TEST(NestTest, StartsAsTheEmptyMap) {
  const Ints nest;
  EXPECT_TRUE(nest.is_map());
  EXPECT_TRUE(nest.empty());
  EXPECT_EQ(nest.size(), 0U);
  EXPECT_TRUE(nest.flatten().empty());
}

TEST(NestTest, AValueIsALeaf) {
  const Ints nest = 7;
  EXPECT_TRUE(nest.is_leaf());
  EXPECT_FALSE(nest.is_list());
  EXPECT_FALSE(nest.is_map());
  EXPECT_EQ(nest.size(), 1U);
  EXPECT_EQ(nest.leaf(), 7);
  EXPECT_EQ(nest.paths(), std::vector<std::string>{""});
}

TEST(NestTest, ConvertsToTheLeafType) {
  const Nest<std::string> text = "text";
  EXPECT_EQ(text.leaf(), "text");
  const Nest<std::optional<int>> absent = std::nullopt;
  EXPECT_FALSE(absent.leaf().has_value());
  const Nest<std::optional<int>> present = 3;
  EXPECT_EQ(present.leaf(), 3);
}

TEST(NestTest, HasAnOrderPathsAndDirectChildren) {
  EXPECT_EQ(sample().size(), 3U);
  EXPECT_EQ(sample().at("history").size(), 2U);
  EXPECT_EQ(sample().flatten(), (std::vector<int>{1, 2, 3, 4}));
  const Ints backwards{{"z", 1}, {"a", 2}};
  EXPECT_EQ(backwards.flatten(), (std::vector<int>{1, 2}));
  EXPECT_EQ(
      sample().paths(),
      (std::vector<std::string>{
          "user", "history/0", "history/1/deep", "movie"}));
}

TEST(NestTest, ForEachAndARangeForGiveEachLeafWithItsPath) {
  std::string seen;
  const auto append = [&](const std::string& path, int leaf) {
    seen += path + "=" + std::to_string(leaf) + " ";
  };
  sample().for_each(append);
  for (const auto& [path, leaf] : sample()) {
    append(path, leaf);
  }
  const std::string once = "user=1 history/0=2 history/1/deep=3 movie=4 ";
  EXPECT_EQ(seen, once + once);
  for (const auto& [path, leaf] : Ints(7)) {
    EXPECT_EQ(path, "");
    EXPECT_EQ(leaf, 7);
  }
  // The references are to the leaves of the nest. Empty maps and lists have no leaves.
  const Ints nest{{"empty", Ints()}, {"none", Ints::list({})}, {"one", 1}};
  for (const auto& [path, leaf] : nest) {
    EXPECT_EQ(path, "one");
    EXPECT_EQ(&leaf, &nest["one"]);
  }
  static_assert(std::ranges::input_range<const Ints>);
}

TEST(NestTest, BracesAroundSeveralValuesAreAList) {
  const Ints list{1, 2, 3};
  EXPECT_EQ(list, Ints::list({1, 2, 3}));
  const Ints nested{list, 4, Ints{{"deep", 5}}};
  EXPECT_EQ(nested, Ints::list({list, 4, Ints{{"deep", 5}}}));
  const Ints map{{"a", 1}, {"b", {2, 3}}};
  EXPECT_EQ(map.at("b"), Ints::list({2, 3}));
  const Nest<std::string> text{"a", "b"};
  EXPECT_EQ(text, Nest<std::string>::list({"a", "b"}));
  const auto given = [](const Ints& nest) { return nest; };
  EXPECT_EQ(given({7, 8}), Ints::list({7, 8}));
}

TEST(NestTest, BracesAroundOneValueAreThatValue) {
  const Ints list{1, 2};
  const Ints copy{list};
  EXPECT_EQ(copy, list);
  const Ints assigned = {list};
  EXPECT_EQ(assigned, list);
  const Ints leaf{1};
  EXPECT_TRUE(leaf.is_leaf());
}

TEST(NestTest, IndexGivesTheLeafAndAtTheSubNest) {
  const Ints nest = sample();
  EXPECT_EQ(nest["user"], 1);
  EXPECT_EQ(nest.at("history").at(1).at("deep").leaf(), 3);
  EXPECT_EQ(nest.at("history")[0], 2);
  EXPECT_TRUE(nest.at("history").is_list());
  Ints changed = 1;
  changed.leaf() = 5;
  EXPECT_EQ(changed.leaf(), 5);
}

TEST(NestTest, ContainsFindsOnlyKeysOfAMap) {
  const Ints nest = sample();
  EXPECT_TRUE(nest.contains("movie"));
  EXPECT_FALSE(nest.contains("deep"));
  EXPECT_FALSE(nest.at("history").contains("0"));
  EXPECT_FALSE(nest.at("user").contains("user"));
}

TEST(NestTest, EqualityLooksAtShapeOrderAndLeaves) {
  EXPECT_EQ(sample(), sample());
  EXPECT_NE((Ints{{"a", 1}, {"b", 2}}), (Ints{{"b", 2}, {"a", 1}}));
  EXPECT_NE((Ints{{"a", 1}}), (Ints{{"a", 2}}));
  EXPECT_NE((Ints{{"0", 1}}), Ints::list({1}));
  EXPECT_NE(Ints::list({}), Ints());
}

TEST(NestTest, PackPutsOtherLeavesIntoTheSameShape) {
  const auto packed =
      sample().pack(std::vector<std::string>{"a", "b", "c", "d"});
  EXPECT_EQ(packed.paths(), sample().paths());
  EXPECT_EQ(packed["user"], "a");
  EXPECT_EQ(packed.at("history").at(1)["deep"], "c");
  EXPECT_EQ(sample().pack(sample().flatten()), sample());
  // It keeps empty maps and lists.
  const Ints nest{{"none", Ints()}, {"nothing", Ints::list({})}, {"one", 1}};
  EXPECT_EQ(nest.pack(std::vector<int>{1}), nest);
}

TEST(NestTest, PackRefusesAnotherNumberOfLeaves) {
  EXPECT_VALUE_ERROR(
      sample().pack(std::vector<int>{1, 2}), "pack() got too few leaves: 2");
  EXPECT_VALUE_ERROR(
      sample().pack(std::vector<int>(5)),
      "pack() expected 4 leaves, but got 5");
}

TEST(NestTest, RefusesADuplicateKey) {
  EXPECT_VALUE_ERROR(
      (Ints{{"b", 1}, {"a", 2}, {"c", 3}, {"a", 4}, {"b", 5}}),
      "'a' is given twice");
  EXPECT_VALUE_ERROR(Ints::map({{"a", 1}, {"a", 1}}), "'a' is given twice");
}

TEST(NestTest, RefusesUnknownKeysAndTheWrongKind) {
  EXPECT_VALUE_ERROR(
      sample()["film"],
      "[Nest] no entry 'film' in a map. Known: user, history, movie.");
  EXPECT_VALUE_ERROR(Ints()["film"], "Known: (none).");
  EXPECT_VALUE_ERROR(
      sample().at("history").at("film"), "no entry 'film' in a list");
  EXPECT_VALUE_ERROR(Ints(1).at("film"), "no entry 'film' in a value");
  EXPECT_INDEX_ERROR(
      sample().at("history").at(2), "list index must be < 2, but got 2");
  EXPECT_VALUE_ERROR(sample().at(0), "expected a list, but got a map");
  EXPECT_VALUE_ERROR(sample().leaf(), "expected a single value, but got a map");
  EXPECT_VALUE_ERROR(
      sample()["history"], "expected a single value, but got a list");
  EXPECT_VALUE_ERROR(Ints(1).entries(), "expected a map, but got a value");
  EXPECT_VALUE_ERROR(Ints(1).items(), "expected a list, but got a value");
}

std::vector<int> matched_leaves(const Ints& structure, const Ints& value) {
  std::vector<int> leaves;
  for (const int* leaf : leaves_like(structure, value, "features")) {
    leaves.push_back(*leaf);
  }
  return leaves;
}

TEST(LeavesLikeTest, MatchesMapsByKeyAndKeepsTheOrderOfTheStructure) {
  const Ints value{
      {"movie", 40},
      {"history", Ints::list({20, Ints{{"deep", 30}}})},
      {"user", 10}};
  EXPECT_EQ(
      matched_leaves(sample(), value), (std::vector<int>{10, 20, 30, 40}));
  EXPECT_EQ(matched_leaves(1, 5), std::vector<int>{5});
}

TEST(PartLikeTest, HasTheNestOfTheValue) {
  EXPECT_EQ(
      part_like(
          sample(), (Nest<char>{{"movie", 'a'}, {"user", 'b'}}), "features"),
      (Ints{{"movie", sample()["movie"]}, {"user", sample()["user"]}}));
  EXPECT_EQ(part_like(Ints(5), Nest<char>('a'), "features"), Ints(5));
  EXPECT_TRUE(part_like(sample(), Nest<char>(), "features").empty());
  EXPECT_TRUE(part_like(Ints(), Nest<char>(), "features").empty());
}

TEST(PartLikeTest, NamesThePathOfAnUnknownEntry) {
  const auto part = [](const Ints& value) {
    part_like((Ints{{"a", Ints{{"b", 1}, {"c", 2}}}}), value, "features");
  };
  EXPECT_VALUE_ERROR(
      part({{"a", Ints{{"c", 1}, {"d", 2}}}}),
      "[features] 'a/d' is not among the feature configs. Known: b, c.");
  EXPECT_VALUE_ERROR(
      part({{"a", 1}}),
      "[features 'a'] expected a map here, as in the feature configs, but got a "
      "value.");
  EXPECT_VALUE_ERROR(
      part_like(Ints(), (Ints{{"a", 1}}), "features"), "Known: (none).");
}

TEST(LeavesLikeTest, SomeLeavesMayBeMissing) {
  const auto some = [](const Ints& value) {
    std::vector<int> leaves;
    for (const int* leaf : some_leaves_like(sample(), value, "weights")) {
      leaves.push_back(leaf == nullptr ? -1 : *leaf);
    }
    return leaves;
  };
  EXPECT_EQ(some({{"movie", 40}}), (std::vector<int>{-1, -1, -1, 40}));
  EXPECT_EQ(
      some({{"history", Ints::list({20, Ints{{"deep", 30}}})}}),
      (std::vector<int>{-1, 20, 30, -1}));
  EXPECT_EQ(some(Ints()), (std::vector<int>{-1, -1, -1, -1}));
  EXPECT_VALUE_ERROR(some({{"films", 1}}), "unexpected entry 'films'");
  EXPECT_VALUE_ERROR(
      some({{"history", Ints::list({20})}}), "expected a list of 2");
}

TEST(LeavesLikeTest, NamesThePathOfWhatDiffers) {
  const Ints deep{{"a", Ints{{"b", 1}, {"c", 2}}}};
  using Pair = std::pair<Ints, Ints>;
  expect_refusals<Pair>(
      {{{sample(), {{"user", 1}, {"movie", 2}}},
        "[features] missing entry 'history'. Got: user, movie."},
       {{deep, {{"a", Ints{{"b", 1}}}}}, "[features 'a'] missing entry 'a/c'"},
       {{{{"a", 1}}, {{"a", 1}, {"b", 2}}},
        "[features] unexpected entry 'b'. Known: a."},
       {{sample(),
         {{"user", 1}, {"history", Ints::list({2, 3})}, {"movie", 4}}},
        "[features 'history/1'] expected a map here, but got a value"},
       {{Ints::list({1}), {{"0", 1}}},
        "[features] expected a list here, but got a map"},
       {{sample(), {{"user", 1}, {"history", Ints::list({2})}, {"movie", 4}}},
        "[features 'history'] expected a list of 2 entries, but got 1"}},
      [](const Pair& pair) { matched_leaves(pair.first, pair.second); });
}

// Comparing each key with every other key would take many minutes.
TEST(NestTest, ManyKeysAreFoundFast) {
  constexpr int kKeys = 200'000;
  Ints::Map forwards;
  Ints::Map backwards;
  for (int i = 0; i < kKeys; ++i) {
    forwards.emplace_back("feature_" + std::to_string(i), i);
    const int other = kKeys - 1 - i;
    backwards.emplace_back("feature_" + std::to_string(other), other);
  }
  const Ints structure = Ints::map(std::move(forwards));
  const Ints values = Ints::map(std::move(backwards));
  const auto leaves = leaves_like(structure, values, "values");
  ASSERT_EQ(leaves.size(), structure.size());
  for (int i = 0; i < kKeys; ++i) {
    ASSERT_EQ(*leaves[i], i);
  }
  const auto packed = structure.pack(structure.flatten());
  EXPECT_TRUE(packed == structure);
  EXPECT_EQ(packed["feature_77777"], 77'777);
  EXPECT_FALSE(packed.contains("feature_200000"));
}

}  // namespace tessera::test::nest_test
