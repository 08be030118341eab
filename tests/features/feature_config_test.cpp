// SPDX-License-Identifier: Apache-2.0
#include <tessera/features/feature_config.h>

#include "tests/test_util.h"

namespace tessera::test::feature_config_test {

TablePtr users() {
  return make_table({.name = "users", .vocabulary_size = 10, .dim = 4});
}

TEST(FeatureConfigTest, DefaultsMatchUpstream) {
  const FeatureConfig feature;
  EXPECT_EQ(feature.table, nullptr);
  EXPECT_EQ(feature.max_sequence_length, 0);
  EXPECT_FALSE(feature.output_shape.has_value());
  EXPECT_TRUE(feature.validate_weights_and_indices);
  EXPECT_EQ(feature.out_of_range, OutOfRange::kError);
  EXPECT_EQ(feature.name, "");
}

TEST(FeatureConfigTest, ComparesByValueAndTablesByObject) {
  const TablePtr table = users();
  const FeatureConfig feature{.table = table};
  EXPECT_EQ(feature, FeatureConfig{.table = table});
  EXPECT_NE(feature, FeatureConfig{.table = users()});
  EXPECT_NE(feature, (FeatureConfig{.table = table, .max_sequence_length = 1}));
  EXPECT_NE(
      feature,
      (FeatureConfig{.table = table, .output_shape = std::vector{int64_t{2}}}));
  EXPECT_NE(
      feature,
      (FeatureConfig{.table = table, .validate_weights_and_indices = false}));
  EXPECT_NE(
      feature,
      (FeatureConfig{.table = table, .out_of_range = OutOfRange::kZero}));
  EXPECT_NE(feature, (FeatureConfig{.table = table, .name = "user"}));
}

TEST(FeatureConfigTest, AcceptsCombinedSequenceAndShapedFeatures) {
  const TablePtr table = users();
  validate({.table = table}, "user");
  validate({.table = table, .max_sequence_length = 3}, "user");
  validate({.table = table, .output_shape = std::vector<int64_t>{2, 3}}, "");
  validate({.table = table, .output_shape = {{2, 3}}}, "");
  validate({.table = table, .output_shape = {{std::nullopt, 3}}}, "");
  validate({.table = table, .output_shape = PartialShape{std::nullopt}}, "");
}

TEST(FeatureConfigTest, AnOutputShapeReplacesTheSequenceLength) {
  FeatureConfig feature{.table = users(), .max_sequence_length = 2};
  EXPECT_EQ(feature.sequence_length(), 2);
  feature.output_shape = PartialShape{std::nullopt, 4};
  validate(feature, "a");
  EXPECT_EQ(feature.sequence_length(), 0);
  EXPECT_EQ(feature.max_sequence_length, 2);
}

TEST(PartialShapeTest, ConvertsFromAndToKnownSizes) {
  const std::vector<int64_t> sizes{2, 3};
  const PartialShape shape = sizes;
  EXPECT_EQ(shape, (PartialShape{2, 3}));
  EXPECT_EQ(known_sizes(shape), sizes);
  EXPECT_EQ(to_string(shape), "[2, 3]");
  const PartialShape partial{std::nullopt, 3};
  EXPECT_NE(partial, shape);
  EXPECT_EQ(known_sizes(partial), std::nullopt);
  EXPECT_EQ(to_string(partial), "[?, 3]");
}

TEST(FeatureConfigTest, RefusesUnusableOptions) {
  const TablePtr table = users();
  const auto no_dim = std::make_shared<const TableConfig>(
      TableConfig{.name = "users", .vocabulary_size = 1});
  expect_refusals<FeatureConfig>(
      {{{},
        "[FeatureConfig 'user/history/0'] table must be set, but is empty. Make "
        "a table with make_table()."},
       {{.table = no_dim}, "[TableConfig 'users'] dim must be >= 1, but got 0"},
       {{.table = table, .max_sequence_length = -1},
        "0'] max_sequence_length must be >= 0, but got -1"},
       {{.table = table, .output_shape = std::vector<int64_t>{2, 0}},
        "0'] output_shape must have one or more dimensions, which are >= 1 or "
        "unknown, but got [2, 0]. Correct it, and leave out the dim of the "
        "table."},
       {{.table = table, .output_shape = std::vector<int64_t>{-1}},
        "but got [-1]."},
       {{.table = table, .output_shape = std::vector<int64_t>{}},
        "but got []."},
       {{.table = table, .output_shape = PartialShape{std::nullopt, 0}},
        "but got [?, 0]."}},
      [](const FeatureConfig& config) { validate(config, "user/history/0"); });
}

TEST(OutOfRangeTest, NamesReadBackAsTheSamePolicy) {
  for (const OutOfRange policy : {OutOfRange::kError, OutOfRange::kZero}) {
    EXPECT_EQ(out_of_range_from_string(to_string(policy)), policy);
  }
  EXPECT_EQ(to_string(OutOfRange::kZero), "zero");
}

TEST(OutOfRangeTest, AnUnknownNameListsTheChoices) {
  EXPECT_VALUE_ERROR(
      out_of_range_from_string("clip"),
      "out_of_range must be one of error, zero, but got 'clip'");
}

}  // namespace tessera::test::feature_config_test
