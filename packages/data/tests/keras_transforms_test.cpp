// SPDX-License-Identifier: Apache-2.0
// Compares transforms with the numbers that Keras computed. make_transform_fixtures.py
// writes them to transforms.json.
#include <tessera/data/statistics.h>
#include <tessera/data/transforms.h>
#include <tessera/data/vocabulary_builder.h>

#include "packages/data/tests/column_builders.h"
#include "tests/test_files.h"

namespace tessera::data::keras_transforms_test {

using namespace transforms;  // NOLINT(google-build-using-namespace)
using nlohmann::json;

const json& fixtures(const char* name) {
  static const json all = [] {
    std::ifstream file(test_file("golden/transforms.json"));
    return json::parse(file);
  }();
  return all.at(name);
}

std::vector<float> floats_of(const json& list) {
  std::vector<float> values;
  for (const json& item : list) {
    values.push_back(
        item.is_string() ? std::stof(item.get<std::string>())
                         : item.get<float>());
  }
  return values;
}

bool is_text(const json& list) {
  return list.at(0).is_string();
}

Column column_of(const json& list) {
  return is_text(list) ? text(list.get<Texts>())
                       : integers(list.get<std::vector<int64_t>>());
}

VocabularyValues values_of(const json& list) {
  if (is_text(list)) {
    return list.get<Texts>();
  }
  return list.get<std::vector<int64_t>>();
}

TEST(KerasTransformsTest, BucketizeGivesTheBinsOfDiscretization) {
  for (const json& item : fixtures("discretization")) {
    EXPECT_EQ(
        ids_of(
            Bucketize{
                .boundaries = item.at("boundaries").get<std::vector<double>>(),
                .missing = Missing::kError},
            {numbers(floats_of(item.at("inputs")))}),
        item.at("ids").get<Ids>());
  }
}

// Replaces Keras's mask token by the value that is missing here: kMissing for integers.
Column with_missing(const json& item) {
  json inputs = item.at("inputs");
  if (!is_text(inputs) && !item.at("mask").is_null()) {
    for (json& value : inputs) {
      if (value == item.at("mask")) {
        value = kMissing;
      }
    }
  }
  return column_of(inputs);
}

TEST(KerasTransformsTest, VocabularyHasTheLayoutOfLookups) {
  size_t num_unknown = 0;
  for (const json& item : fixtures("lookup")) {
    const bool has_mask = !item.at("mask").is_null();
    const Vocabulary vocabulary{
        .values = values_of(item.at("vocabulary")),
        .num_oov_indices = item.at("num_oov_indices"),
        .missing = has_mask ? Missing::kOwnId : Missing::kAsValue};
    EXPECT_EQ(vocabulary_size(vocabulary), item.at("vocabulary_size"));
    const Ids ids = ids_of(vocabulary, {with_missing(item)});
    const Ids expected = item.at("ids");
    ASSERT_EQ(ids.size(), expected.size());
    for (size_t i = 0; i < ids.size(); ++i) {
      const bool is_masked = has_mask && expected[i] == 0;
      if (item.at("is_known")[i] || is_masked ||
          vocabulary.num_oov_indices == 1) {
        EXPECT_EQ(ids[i], expected[i]) << item;
      } else {  // Keras chooses the id of an unknown value by a different hash
        ++num_unknown;
        EXPECT_GE(ids[i], has_mask ? 1 : 0);
        EXPECT_LT(ids[i], vocabulary.num_oov_indices + (has_mask ? 1 : 0));
      }
    }
  }
  EXPECT_GE(num_unknown, 10);
}

TEST(KerasTransformsTest, VocabularyBuilderOrdersLikeAdapt) {
  for (const json& item : fixtures("builder")) {
    VocabularyBuilder builder;
    builder.add(column_of(item.at("data")));
    detail::VocabularyLimits limits;
    if (!item.at("max_size").is_null()) {
      limits.max_size = item.at("max_size").get<int64_t>();
    }
    EXPECT_EQ(builder.finish(limits).values, values_of(item.at("vocabulary")));
  }
}

TEST(KerasTransformsTest, NormalizeGivesTheNumbersOfNormalization) {
  for (const json& item : fixtures("normalization")) {
    expect_close(
        dense_of(
            Normalize{.mean = item.at("mean"), .variance = item.at("variance")},
            numbers(floats_of(item.at("inputs"))))
            .view({-1}),
        at::tensor(floats_of(item.at("outputs")), at::kFloat));
  }
}

}  // namespace tessera::data::keras_transforms_test
